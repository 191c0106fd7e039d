"""Branches of a run at several batch sizes, and what they say of its local critical batch size."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cbs_lightning.callbacks.probes import branches
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.noise.branches import Branch, fit_branches, schedule_line, suggest_schedule
from cbs_lightning.noise.record import Probe
from cbs_lightning.results.result import Status
from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic
from cbs_lightning.training.run import run
from tests.test_probes import LOOPS, record_of
from tests.test_restart import assert_same_runs

BRANCHES = [
    "noise.probes=2", "noise.samples=64", "noise.curvature=false", "noise.branches=true",
    "noise.branch_steps=8", "noise.branch_repeats=1", "noise.branch_factors=[0.5,1,2]",
]  # fmt: skip
STEPS = (0, 10, 20, 25, 30, 35, 40)
SIZES = (32, 64, 128, 256)
A, C = 0.01, 0.16  # of progress as a share of the loss
LEVEL, NOISE = 0.1, 4.0


def made_up(rng: np.random.Generator | None = None, loss: float = 1.0) -> list[Branch]:
    """Two branches of each batch size that follow the two forms exactly, but for noise."""
    found = []
    for size in SIZES * 2:
        scatter = rng.normal(0, 0.01 / math.sqrt(size)) if rng is not None else 0.0
        progress = A - C / size + scatter
        end = LEVEL + NOISE / size
        losses = [end * math.exp(progress * (STEPS[-1] - step)) for step in STEPS[1:]]
        found.append(Branch(size, STEPS, (loss, *losses)))
    return found


def test_branches_that_follow_the_forms_give_them_back():
    found = fit_branches(made_up(loss=0.5))
    assert found.level_limit == pytest.approx(LEVEL) and found.noise_level == pytest.approx(NOISE)
    assert found.a_branches == pytest.approx(0.5 * A)  # of a loss of 0.5
    assert found.c_branches == pytest.approx(0.5 * C)
    assert found.local_critical_batch == pytest.approx(2 * C / A)
    assert found.local_critical_batch_interval == pytest.approx((2 * C / A, 2 * C / A), rel=1e-3)


def test_the_interval_covers_as_often_as_it_says():
    rng, draws = np.random.default_rng(0), 400
    intervals = [fit_branches(made_up(rng)).local_critical_batch_interval for _ in range(draws)]
    covered = sum(low <= 2 * C / A <= high for low, high in intervals) / draws
    assert 0.85 < covered < 0.95
    widths = [math.log(high / low) for low, high in intervals if low > 0 and high < math.inf]
    assert len(widths) > draws / 2 and np.median(widths) < math.log(6)


def test_branches_that_tell_nothing_say_why():
    flat = [Branch(size, STEPS, (1.0,) * len(STEPS)) for size in SIZES]
    assert "a <= 0" in fit_branches(flat).local_critical_batch_reason
    same = [
        Branch(size, STEPS, tuple(math.exp(-0.01 * step) for step in STEPS)) for size in SIZES * 2
    ]
    upside_down = [replace(each, batch_size=300 - each.batch_size) for each in made_up()]
    for each in (same, upside_down):
        found = fit_branches(each)
        assert found.local_critical_batch is None or found.local_critical_batch < 1e-6
    assert "c <= 0" in fit_branches(upside_down).local_critical_batch_reason
    diverged = [replace(made_up()[0], loss=(1.0,) + (math.nan,) * 6), *made_up()[1:2]]
    assert "fewer than two" in fit_branches(diverged).local_critical_batch_reason
    assert Branch.of(diverged[0].to_dict()).line is None


@pytest.mark.parametrize("lr", [0.05, 0.2])
def test_the_local_critical_batch_size_of_a_noisy_quadratic(lr):
    """It grows along a run, from below b* to above it: b* is that of the run as a whole."""
    spectrum = 1 / np.arange(1, 101)
    problem = NoisyQuadratic(spectrum, lr=lr, noise=50 * spectrum)
    exact = problem.critical_batch(0.2)
    size = 2 * round(exact)
    steps = problem.whole_steps(size, 0.2)

    def branch(after: float, batch_size: int) -> Branch:
        """Expected losses of one that leaves the run after so many of its steps."""
        floor = problem._floor
        start = (0.5 * spectrum - floor / size) * np.exp(after * problem._decay) + floor / size
        away = start - floor / batch_size
        losses = [
            float((away * np.exp(step * problem._decay) + floor / batch_size).sum())
            for step in STEPS
        ]
        return Branch(batch_size, STEPS, tuple(losses))

    local = [
        fit_branches([branch(share * steps, factor * size // 2) for factor in (1, 2, 4, 8)])
        for share in (0.1, 0.4, 0.7, 1.0)
    ]
    found = [each.local_critical_batch for each in local]
    assert found == sorted(found)
    assert exact / 10 < found[0] < exact < found[-1] < 4 * exact
    assert all(each.noise_level > 0 for each in local)


def probe(
    step: int, local: float | None, interval: tuple[float, float] | None = None, tried=(2, 1024)
) -> Probe:
    branches = [{"batch_size": size} for size in tried]
    return Probe(step, 64 * step, 1.0, 10, local_critical_batch=local, branches=branches,
                 local_critical_batch_interval=interval)  # fmt: skip


def test_a_schedule_follows_the_local_critical_batch_sizes():
    bounded = probe(50, 35.0, (16.0, 80.0))
    probes = [probe(10, 15.0), probe(30, None), bounded, probe(90, 60.0)]
    schedule = suggest_schedule(probes, 64, 100)
    assert list(schedule.values()) == [16, 32, 64]
    first, second, third = map(int, schedule)
    assert first == 0
    # K(16) / K(64) with a pole at 7.5, over the 30 steps up to the middle of two probes
    assert second == round(16 * 30 * (16 / 8.5) / (64 / 56.5))
    assert third - second == pytest.approx(32 * 40 * (32 / 14.5) / (64 / 46.5), abs=1)
    assert schedule_line(schedule, probes).endswith("}")


def test_a_schedule_never_falls():
    fell = [probe(10, 64.0, (60.0, 68.0)), probe(20, 16.0, (2.0, 120.0)), probe(30, 900.0)]
    assert list(suggest_schedule(fell, 64, 40).values()) == [64, 1024]
    assert suggest_schedule([probe(10, None)], 64, 100) is None


def test_a_schedule_stays_within_the_branches_and_says_where_they_end():
    tried = (24, 48, 96, 180)
    probes = [
        probe(10, 0.4, tried=tried),
        probe(50, 60.0, (30.0, 120.0), tried=tried),
        probe(90, 900, tried=tried),
    ]
    schedule = suggest_schedule(probes, 48, 100)
    assert list(schedule.values()) == [24, 64, 180]
    line = schedule_line(schedule, probes)
    assert "24 is the smallest of its branches: smaller ones may do better" in line
    assert "180 is the largest of its branches: larger ones may do better" in line


@pytest.mark.parametrize("interval", [None, (0.0, math.inf), (0.0, 40.0), (2.0, math.inf)])
def test_no_schedule_is_made_of_local_critical_batch_sizes_without_bounds(interval):
    probes = [probe(10, None), probe(50, 16.0, interval), probe(90, 30.0, interval)]
    assert suggest_schedule(probes, 64, 100) is None
    for schedule in (None, {"0": 16}):  # that of an earlier version
        line = schedule_line(schedule, probes)
        assert "no batch sizes are suggested" in line and "{" not in line
    assert schedule_line(None, [replace(each, branches=[]) for each in probes]) is None


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_with_branches_ends_as_one_without(loop, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(branches, "HELD_SAMPLES", 64)
    without, branched = (
        compose([*LOOPS[loop], *more, f"output_dir={tmp_path / name}"])
        for name, more in (("without", []), ("branched", BRANCHES))
    )
    assert run(without).status is Status.REACHED
    run(branched)
    assert_same_runs(tmp_path / "without", tmp_path / "branched")
    record = record_of(run_directory(branched))
    size = branched.batch_size
    for each in record.probes:
        assert [branch["batch_size"] for branch in each.branches] == [size // 2, size, 2 * size]
        starts = {branch["loss"][0] for branch in each.branches}
        ends = {branch["loss"][-1] for branch in each.branches}
        assert len(starts) == 1 and len(ends) == 3
        assert each.branches[0]["steps"] == [0, 2, 4, 5, 6, 7, 8]
        assert each.noise_level is not None and each.a_branches is not None
    assert len(record.probes) == 2
    of_steps = 8 * (size // 2 + size + 2 * size)
    of_gradients = record.probes[0].batches * record.probes[0].batch_size
    assert record.cost.gradients == 2 * (of_steps + of_gradients)
    said = "no batch sizes are suggested" if record.schedule is None else "batch sizes suggested"
    assert f"{said} by its branches" in capsys.readouterr().out


def test_a_branch_at_the_runs_batch_size_goes_on_as_the_run_does(tmp_path, monkeypatch):
    """Its loss falls as fast, with the optimizer's state and not from a fresh start."""
    monkeypatch.setattr(branches, "HELD_SAMPLES", 512)
    cfg = compose([
        *LOOPS["fast"], "model=tiny", "optimizer=momentum", "noise.probes=2", "noise.samples=512",
        "noise.branches=true", "noise.branch_steps=40", f"output_dir={tmp_path}",
    ])  # fmt: skip
    run(cfg)
    first, second = record_of(run_directory(cfg)).probes
    same = next(each for each in first.branches if each["batch_size"] == cfg.batch_size)
    falls = np.polyfit(same["steps"], same["loss"], 1)[0]
    assert falls == pytest.approx((second.loss - first.loss) / (second.step - first.step), rel=0.5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("noise.branch_steps=3", "noise.branch_steps=3: must be a whole number >= 8"),
        ("noise.branch_factors=[1]", "must be a list of at least two different numbers > 0"),
        ("noise.branch_factors=[1,1e9]", "two different numbers > 0 and <= 1024, such as"),
        ("noise.branch_repeats=0", "noise.branch_repeats=0: must be a whole number >= 1"),
        ("noise.probes=0", "noise.branches=true: needs probes"),
    ],
)
def test_mistakes_are_told_in_a_line(cli, setting, message, tmp_path):
    done = cli("noise.probes=1", "noise.branches=true", setting, f"output_dir={tmp_path}")
    assert done.code == 1 and message in done.err and done.err.count("\n") == 1
