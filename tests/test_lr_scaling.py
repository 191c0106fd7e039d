"""Learning rates that move with the batch size, warm up, or are tuned."""

import csv
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.hyperparameters import hyperparameter_panels
from cbs_lightning.analysis.lr_comparison import lr_comparisons, lr_of, tuned_curves
from cbs_lightning.analysis.study import read
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.reporting.figures import figures_of
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.sweep.tuning import expand
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.studies import make_run
from tests.test_restart import assert_same_runs
from tests.test_sweep import settings_of
from tests.test_tensorboard import events_of

N = 1797


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("batch_size=256", 1e-3),
        ("batch_size=64 lr_scaling=sqrt", 1e-3),
        ("batch_size=256 lr_scaling=sqrt", 2e-3),
        ("batch_size=16 lr_scaling=linear", 0.25e-3),
        ("batch_size=256 lr_scaling=linear lr_reference_batch_size=16 optimizer.lr=0.5", 8.0),
        ("batch_size=4096 lr_scaling=linear lr_reference_batch_size=1", 1.797),
    ],
)
def test_the_learning_rate_follows_the_effective_batch_size(overrides, expected):
    assert compose(overrides.split()).optimizer_settings(N)["lr"] == pytest.approx(
        expected, rel=1e-15
    )


def test_a_scaled_rate_is_one_set_by_hand_and_is_seen(tiny, capsys):
    scaled = tiny("batch_size=128", "lr_scaling=linear", "stop.max_steps=20")
    by_hand = tiny("batch_size=128", "optimizer.lr=0.002", "stop.max_steps=20")
    plain = tiny("batch_size=128", "stop.max_steps=20")
    assert run(scaled).lr == run(by_hand).lr == 0.002
    run(plain)
    told = "adam lr_scaling=linear b=128: learning rate 0.002 by lr_scaling=linear; "
    told += "at b = 64 learning rate 0.001"
    assert capsys.readouterr().out.splitlines()[0] == told
    one, other, third = (losses(cfg) for cfg in (scaled, by_hand, plain))
    assert np.array_equal(one, other) and not np.array_equal(one, third)
    stored = OmegaConf.load(run_directory(scaled) / store.CONFIG)
    assert stored.optimizer.lr == 0.001 and stored.lr_scaling == "linear"
    rates = events_of(run_directory(scaled)).Scalars("learning_rate/by_step")
    assert {event.value for event in rates} == {np.float32(0.002)}


def losses(cfg):
    return read_run(run_directory(cfg)).trajectory.loss


@pytest.fixture
def rates():
    """The learning rates of all steps, as the optimizer has them."""
    seen: list[float] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"])
    )
    yield seen
    hook.remove()


@pytest.mark.parametrize("replacement", ["false", "true"])
@pytest.mark.parametrize(("batch_size", "warmup"), [(100, 2500), (600, 4000), (4096, 3000)])
def test_a_warm_up_is_exact_to_the_sample(tiny, rates, batch_size, warmup, replacement):
    """Also beyond the short batch at an epoch's end, and across chunks."""
    cfg = tiny(
        f"batch_size={batch_size}", f"warmup_samples={warmup}", "stop.max_steps=40",
        f"data.replacement={replacement}", "lr_scaling=sqrt", "tensorboard.points=100",
    )  # fmt: skip
    rates.clear()  # checking a configuration makes an optimizer, but no step
    result = run(cfg)
    seen = read_run(run_directory(cfg)).trajectory.size.cumsum()
    assert rates == [result.lr * min(1.0, samples / warmup) for samples in seen.tolist()]
    assert rates[0] < rates[-1] == result.lr
    events = events_of(run_directory(cfg)).Scalars("learning_rate/by_step")
    np.testing.assert_allclose([event.value for event in events], rates, rtol=1e-6)


def test_a_point_of_the_curve_is_the_mean_over_its_steps(tiny, rates):
    cfg = tiny(
        "batch_size=100", "warmup_samples=2500", "stop.max_steps=40", "tensorboard.points=11"
    )
    run(cfg)
    events = events_of(run_directory(cfg)).Scalars("learning_rate/by_step")
    ends = [0, *(event.step for event in events)]
    means = [np.mean(rates[start:end]) for start, end in pairwise(ends)]
    np.testing.assert_allclose([event.value for event in events], means, rtol=1e-6)


def test_a_warm_up_that_the_first_step_ends_is_none(tiny):
    warm, plain = tiny("warmup_samples=256", "stop.max_steps=10"), tiny("stop.max_steps=10")
    run(warm), run(plain)
    assert run_directory(warm) != run_directory(plain)
    assert np.array_equal(losses(warm), losses(plain))


@pytest.mark.parametrize("first", [5, 20, 30])
def test_a_run_goes_on_in_the_middle_of_its_warm_up(cli, tmp_path, first):
    arguments = [
        *TINY, "model=restless", "stop.loss=1e-9", "checkpoint.keep=true", "batch_size=100",
        "warmup_samples=2900", "lr_scaling=linear",
    ]  # fmt: skip
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*arguments, "stop.max_steps=60", f"output_dir={in_one}").code == 0
    assert cli(*arguments, f"stop.max_steps={first}", f"output_dir={in_two}").code == 0
    outcome = cli(*arguments, "stop.max_steps=60", f"output_dir={in_two}")
    assert "resuming from" in outcome.out
    assert_same_runs(in_one, in_two)


def test_runs_from_before_keep_their_hashes():
    """As they were computed when there were none of these keys."""
    for overrides, before in {
        "": "2055d13b89a807b9",
        "optimizer=sgd optimizer.lr=0.01 batch_size=8": "1c1f879eeeb43793",
        "experiment=digits optimizer=momentum compile=default seed=3": "c4dc4a32abf2f0bc",
    }.items():
        unused = ["lr_reference_batch_size=8", "lr_tuning=[1,2]"]
        assert config_hash(compose(overrides.split())) == before
        assert config_hash(compose([*overrides.split(), *unused])) == before


def test_the_hash_covers_how_the_rate_moves():
    different = [
        "", "lr_scaling=sqrt", "lr_scaling=linear", "lr_scaling=sqrt lr_reference_batch_size=8",
        "warmup_samples=100", "warmup_samples=200", "lr_scaling=sqrt warmup_samples=100",
    ]  # fmt: skip
    configs = [compose(overrides.split()) for overrides in different]
    assert len({config_hash(cfg) for cfg in configs}) == len(different)
    assert len({cfg.names.variant for cfg in configs}) == len(different)


@pytest.mark.parametrize(
    ("overrides", "variant"),
    [
        ("lr_scaling=sqrt", "adam lr_scaling=sqrt"),
        ("lr_scaling=sqrt batch_size=8", "adam lr_scaling=sqrt"),
        ("lr_reference_batch_size=8", "adam"),
        ("lr_scaling=sqrt lr_reference_batch_size=8",
         "adam lr_scaling=sqrt lr_reference_batch_size=8"),
        ("warmup_samples=100", "adam warmup_samples=100"),
        ("experiment=lr_scaling lr_scaling=linear", "adam lr_scaling=linear"),
    ],
)  # fmt: skip
def test_a_variant_is_one_way_to_scale_over_all_batch_sizes(overrides, variant):
    assert compose(overrides.split()).names.variant == variant


BAD = {
    "lr_scaling=cubic": "lr_scaling=cubic: allowed: linear, none, sqrt, tuned",
    "lr_scaling=null": "lr_scaling=null: did you mean lr_scaling=none? ",
    "lr_scaling=tuned": "lr_scaling=tuned: needs a sweep, with -m",
    "lr_reference_batch_size=0": "lr_reference_batch_size=0: must be a whole number >= 1",
    "warmup_samples=-1": "warmup_samples=-1: must be a whole number >= 0",
    "warmup_samples=1.5": "warmup_samples=1.5: must be a whole number >= 0",
    "lr_tuning=[]": "lr_tuning=[]: must be a list of at least two different numbers > 0",
    "-m lr_scaling=tuned lr_tuning=[1,-3]": "lr_tuning=[1,-3]: must be a list",
    "-m lr_scaling=tuned lr_tuning=[1,1]": "lr_tuning=[1,1]: must be a list",
    "-m lr_scaling=tuned lr_tuning=3": "lr_tuning=3: must be a list",
    "-m lr_scaling=tuned optimizer.lr=0": "optimizer.lr=0: must be a number > 0",
    "-m lr_scaling=none,tuned optimizer.lr=0.1,0.2":
        "lr_scaling=tuned: tries multiples of optimizer.lr itself, which cannot be swept as well",
    "lr_tuning=[1,3]": "lr_tuning=[1,3]: has no effect without lr_scaling=tuned, in a sweep",
    "-m lr_scaling=none,sqrt lr_tuning=[1,3]": "lr_tuning=[1,3]: has no effect without",
    "-m hydra/sweeper=critical_batch batch_size=16,32 lr_tuning=[1,3]":
        "lr_tuning=[1,3]: has no effect without",
    "-m lr_scaling=none,cubic": "lr_scaling=cubic: allowed: linear, none, sqrt, tuned",
}  # fmt: skip


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_ends_in_one_line_and_writes_nothing(cli, tmp_path, arguments):
    outcome = cli(*arguments.split(), *TINY, f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and not (tmp_path / "out").exists()
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {BAD[arguments]}")


def test_tuning_tries_each_rate_and_trains_nothing_twice(cli, tmp_path):
    arguments = ("-m", *TINY, "batch_size=128,256", "stop.loss=1.5", f"output_dir={tmp_path}")
    assert cli(*arguments).code == 0
    plain = {path.parent for path in tmp_path.glob("*/*/result.json")}
    tuned = cli(*arguments, "lr_scaling=none,sqrt,tuned", "lr_tuning=[1,3,10]")
    assert tuned.code == 0, tuned.err
    assert tuned.out.startswith("8 jobs")  # at each of two: plain, sqrt, three and ten times
    assert tuned.out.count("already finished") == 2
    stored = [read_run(path.parent) for path in tmp_path.glob("*/*/result.json")]
    assert len(stored) == 8 and plain < {one.directory for one in stored}
    assert {(one.result.variant, one.result.lr) for one in stored} >= {
        ("adam", 0.001), ("adam lr=0.003", 0.003), ("adam lr=0.01", 0.01),
        ("adam lr_scaling=sqrt", 0.002),
    }  # fmt: skip
    assert all(one.result.configuration["lr_scaling"] != "tuned" for one in stored)
    assert "adam lr tuned: use b = " in tuned.out and "Best learning rates: 0." in tuned.out
    again = cli(*arguments, "lr_scaling=tuned", "lr_tuning=[0.3,1,3]")
    assert again.out.count("already finished") == 4 and again.out.startswith("6 jobs")


@pytest.mark.parametrize("scalings", [("none", "tuned"), ("tuned", "none")])
@pytest.mark.parametrize(("typed", "factors"), [("1.0", "[1,3]"), ("1", "[1.0,3.0]")])
def test_a_rate_is_tried_once_however_it_is_spelled(scalings, typed, factors):
    shared = ("optimizer=sgd", f"optimizer.lr={typed}", f"lr_tuning={factors}")
    jobs = [(*shared, f"lr_scaling={scaling}") for scaling in scalings]
    found = expand({job: compose(list(job)) for job in jobs}, lambda job: compose(list(job)))
    assert [cfg.names.variant for cfg in found.values()] == [f"sgd lr={typed}", "sgd lr=3"]


def made(study: Path, batch_size: int, epochs: int, **settings) -> None:
    """A run of adam with a learning rate, a scaling and a seed; `epochs` is its SFO in thousands,
    a little more where b does not divide it. None: not reached."""
    lr, scaling = settings.get("lr", 1e-3), settings.get("scaling", "none")
    rate = f"lr={lr:g}" if scaling == "none" and lr != 1e-3 else f"lr_scaling={scaling}"
    variant = "adam" if rate == "lr_scaling=none" else f"adam {rate}"
    result = make_run(
        study, "adam", batch_size, epochs or 40, variant=variant, reached=epochs is not None,
        seed=settings.get("seed", 0), abandoned=settings.get("abandoned", False),
    )  # fmt: skip
    directory = store.run_directory(
        study.parent, study.name, variant, batch_size, result.seed, result.config_hash
    )
    configuration = result.configuration | {"lr_scaling": scaling}
    store.write_result(
        directory,
        replace(
            result, lr=lr, configuration=configuration, hyperparameters={"betas": [0.9, 0.999]}
        ),
    )


@pytest.fixture
def study(tmp_path) -> Path:
    """Least at b = 4 if fixed, 8 with sqrt, 20 tuned; at 40 the largest rate tried is best."""
    path = tmp_path / "made_up"
    for seed in (0, 1, 2):
        for batch_size, fixed, sqrt, low, high in (
            (4, 5, 9, 6, None), (8, 7, 6, 8, 9), (20, 9, 7, 12, 3), (40, None, 11, None, 8)
        ):  # fmt: skip
            late = seed if batch_size == 40 else 0
            made(path, batch_size, fixed, seed=seed)
            scaled = 1e-3 * (batch_size / 8) ** 0.5
            made(path, batch_size, sqrt, seed=seed, lr=scaled, scaling="sqrt")
            made(path, batch_size, low, seed=seed, lr=3e-4)
            made(path, batch_size, high + late if high else None, seed=seed, lr=3e-3)
    return path


def test_a_tuned_curve_has_the_best_rate_of_each_batch_size(study):
    found, _ = read(study)
    (tuned,) = tuned_curves(found.curves)
    assert tuned.curve.variant == "adam lr tuned"
    assert tuned.best_rates == {4: 1e-3, 8: 1e-3, 20: 3e-3, 40: 3e-3}
    assert tuned.tried == dict.fromkeys((4, 8, 20, 40), (3e-4, 1e-3, 3e-3))
    assert [point.sfo for point in tuned.curve.points] == [5000, 7000, 3000, 9000]
    assert tuned.at_edge == [20, 40]
    assert "adam lr tuned" in {one.variant for one in found.recommendations}


def test_a_tuned_curve_needs_several_rates_at_several_batch_sizes(study):
    found, _ = read(study)
    fixed = [curve for curve in found.curves if curve.variant == "adam"]
    others = [
        replace(curve, points=curve.points[:1])
        for curve in found.curves
        if curve.variant.startswith("adam lr=")
    ]
    assert tuned_curves(fixed) == [] and tuned_curves([*fixed, *others]) == []
    assert (
        tuned_curves([*fixed, *(replace(curve, variant="adam lr=1e-3") for curve in fixed)]) == []
    )


@pytest.fixture
def rate_curves(study) -> list[Curve]:
    """Those of the rates 0.0003, 0.001 and 0.003."""
    found, _ = read(study)
    by_variant = {curve.variant: curve for curve in found.curves}
    return [by_variant[variant] for variant in ("adam lr=0.0003", "adam", "adam lr=0.003")]


def test_a_tuned_curve_has_batch_sizes_of_one_rate_as_well(rate_curves):
    """As a search leaves them, in which each rate visits batch sizes of its own."""
    low, middle, high = rate_curves
    (tuned,) = tuned_curves([
        replace(low, points=low.points[1:3]),
        replace(middle, points=middle.points[:3]),
        replace(high, points=high.points[1:]),
    ])  # fmt: skip
    all_three = (3e-4, 1e-3, 3e-3)
    assert tuned.tried == {4: (1e-3,), 8: all_three, 20: all_three, 40: (3e-3,)}
    assert tuned.best_rates == {4: 1e-3, 8: 1e-3, 20: 3e-3, 40: 3e-3}
    assert tuned.at_edge == [4, 20, 40]


def test_where_no_rate_reached_the_closest_is_the_best(rate_curves):
    missed = [
        with_runs(curve, status=Status.EXHAUSTED, steps=None, sfo=None, loss=loss)
        for curve, loss in zip(rate_curves, (2.2, 2.0, None), strict=True)
    ]
    (tuned,) = tuned_curves(missed)
    assert [lr_of(point) for point in tuned.curve.points] == [1e-3] * 4 and tuned.best_rates == {}


def test_of_equal_rates_the_smallest_is_the_best(rate_curves):
    """Wherever their losses were when they reached it."""
    equal = [
        with_runs(curve, status=Status.REACHED, steps=100, sfo=1000, loss=loss)
        for curve, loss in zip(rate_curves, (0.9, 0.8, 0.7), strict=True)
    ]
    (tuned,) = tuned_curves(equal)
    assert set(tuned.best_rates.values()) == {3e-4}


def with_runs(curve: Curve, **values) -> Curve:
    points = [
        replace(point, runs=tuple(replace(run, **values) for run in point.runs))
        for point in curve.points
    ]
    return replace(curve, points=tuple(points))


def test_tuned_rates_are_compared_with_those_of_the_rate_that_was_swept(study):
    """Also where that is not the optimizer's own: here 0.001 stands for another."""
    found, _ = read(study)
    names = {"adam": "adam lr=0.001", "adam lr_scaling=sqrt": "adam lr=0.001 lr_scaling=sqrt"}
    curves = [
        replace(curve, variant=names.get(curve.variant, curve.variant)) for curve in found.curves
    ]
    (compared,) = lr_comparisons(curves)
    assert compared.variant == "adam lr=0.001"
    assert list(compared.curves) == [Scaling.NONE, Scaling.SQRT, Scaling.TUNED]
    (own,) = found.lr_comparisons
    assert compared.as_json() | {"variant": "adam"} == own.as_json()
    fixed = [curve for curve in curves if "lr_scaling" not in curve.variant]
    (compared,) = lr_comparisons(fixed)
    assert compared.variant == "adam lr=0.003" and compared.curves[Scaling.NONE].best.sfo == 3000


def test_the_answer_says_what_is_owed_to_the_fixed_rate(study):
    found, _ = read(study)
    (compared,) = found.lr_comparisons
    assert compared.summary_lines() == [
        "adam: least K·b with a fixed learning rate at b = 4 (the smallest tried), with sqrt "
        "scaling at b = 8, tuned at b = 20.",
        "  - At b = 20 the fixed one takes 3 times the gradients of the tuned one (9,000 and "
        "3,000).",
        "  - Best learning rates: 0.001 at b = 4, 0.001 at b = 8, 0.003 at b = 20, 0.003 at b = "
        "40; at b = 20, 40 that is the edge of those tried, and another may be better.",
    ]


def test_no_b_star_is_made_up_where_runs_were_given_up_too_soon(tmp_path):
    """As in a search that tunes: it gives up runs of a fixed rate that lost the race."""
    path = tmp_path / "made_up"
    for batch_size, fixed, high in ((8, 4, 5), (20, 8, 3), (40, 4, 5)):
        made(path, batch_size, fixed, abandoned=batch_size != 20)
        made(path, batch_size, high, lr=3e-3)
    (compared,) = read(path)[0].lr_comparisons
    assert compared.summary_lines()[0] == (
        "adam: least K·b with a fixed learning rate unknown (b = 8, 40 stopped too soon), tuned at "
        "b = 20."
    )


def test_rates_that_take_as_many_gradients_are_said_to(study):
    found, _ = read(study)
    (compared,) = found.lr_comparisons
    fixed = compared.curves[Scaling.TUNED]
    alike = replace(compared, curves={**compared.curves, Scaling.NONE: fixed})
    assert "takes about as many gradients as the tuned one" in " ".join(alike.summary_lines())


def test_a_scaled_rate_is_no_swept_hyperparameter(study):
    found, _ = read(study)
    panels = hyperparameter_panels(found.answers)
    assert {panel.batch_size for panel in panels} == {4, 8, 20, 40}
    for panel in panels:
        assert panel.name == "lr" and panel.values == [3e-4, 1e-3, 3e-3]
    scaled = [run for run in found.answers if run.lr_scaling == "sqrt"]
    assert hyperparameter_panels(scaled) == []


def test_the_figure_shows_what_the_summary_says(study):
    found, _ = read(study)
    write_summary(study, found.rows)
    rows = list(csv.DictReader((study / "summary.csv").open()))
    rows = [row for row in rows if row["threshold"] == "1.0" and row["rule"] == "epoch"]

    def median(variant, batch_size):
        own = [r["sfo"] for r in rows if (r["variant"], r["batch_size"]) == (variant, batch_size)]
        return np.median([float(sfo) for sfo in own]) if all(own) else None

    figure = next(figure for name, figure in figures_of(found) if name == "lr_scaling_adam")
    upper, middle, lower = figure.axes
    curves = {line.get_marker(): line for line in upper.lines if len(line.get_xdata()) > 2}
    for marker, variant in (("o", "adam"), ("s", "adam lr_scaling=sqrt")):
        drawn_at = dict(zip(*curves[marker].get_data(), strict=True))
        expected = {b: median(variant, str(b)) for b in (4, 8, 20, 40)}
        assert drawn_at == {b: sfo for b, sfo in expected.items() if sfo is not None}
    variants = ("adam", "adam lr=0.0003", "adam lr=0.003")
    for b, sfo in zip(*curves["P"].get_data(), strict=True):
        assert sfo == min(m for v in variants if (m := median(v, str(b))) is not None)
    stars = [(line.get_xdata()[0], line.get_markerfacecolor() == "white") for line in middle.lines]
    crosses = [list(line.get_xdata()) for line in upper.lines if line.get_marker() == "x"]
    assert stars == [(4, True), (8, False), (20, False)] and crosses == [[40]]
    rates = {line.get_marker(): list(line.get_ydata()) for line in lower.lines}
    assert rates["P"] == [1e-3, 1e-3, 3e-3, 3e-3] and rates["o"] == [1e-3] * 4
    assert rates["s"] == pytest.approx([1e-3 * (b / 8) ** 0.5 for b in (4, 8, 20, 40)])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "fixed: least at b = 4, K·b = 5,000", "sqrt: least at b = 8, K·b = 6,000",
            "tuned: least at b = 20, K·b = 3,000",
    ]  # fmt: skip


def test_people_and_scripts_are_told(study, monkeypatch):
    monkeypatch.setattr("cbs_lightning.reporting.study_files.write_figures", lambda study: [])
    told = write_study(study)
    assert any(
        line.startswith("  adam: least K·b with a fixed learning rate at b = 4") for line in told
    )
    assert any(line.startswith("  adam lr tuned: ") and "b = 20" in line for line in told)
    (found,) = json.loads((study / "recommendation.json").read_text())["learning_rates"]
    assert found["variant"] == "adam" and found["tuned_at_edge"] == [20, 40]
    least = {name: one["least_sfo_batch_size"] for name, one in found["scalings"].items()}
    assert least == {"none": 4, "sqrt": 8, "tuned": 20}
    assert found["scalings"]["tuned"]["lr"] == [1e-3, 1e-3, 3e-3, 3e-3]
    assert found["scalings"]["none"]["sfo"] == [5000, 7000, 9000, None]


def test_a_study_of_plain_runs_has_no_comparison(tmp_path):
    for batch_size in (4, 8):
        made(tmp_path / "plain", batch_size, 5)
    found, _ = read(tmp_path / "plain")
    assert found.lr_comparisons == [] and not any("lr_scaling" in n for n, _ in figures_of(found))


def test_the_experiment_compares_all_four():
    cells = settings_of("experiment=lr_scaling")
    for optimizer in ("adam", "momentum"):
        sizes = {
            scaling: {c["batch_size"] for c in cells
                      if (c["optimizer"], c["lr_scaling"]) == (optimizer, scaling)}
            for scaling in Scaling
        }  # fmt: skip
        assert set(map(len, sizes.values())) == {5} and len(set.union(*sizes.values())) == 5
