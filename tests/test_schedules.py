"""Learning rates that follow a schedule over samples."""

import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    MultiStepLR,
    SequentialLR,
)

from cbs_lightning.analysis.hyperparameters import hyperparameter_panels
from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.errors import ConfigError
from cbs_lightning.optim.learning_rate import RateSchedule, rates_of, set_rates
from cbs_lightning.optim.schedules import WSD, Constant, Cosine, Linear, Schedule, Step
from cbs_lightning.results import store
from cbs_lightning.results.store import read_run
from cbs_lightning.training.build import rate_schedule
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.studies import make_run
from tests.test_lr_scaling import losses, rates  # noqa: F401
from tests.test_restart import assert_same_runs
from tests.test_tensorboard import events_of

N = 1797
STEPS, SIZE = 40, 25  # of the horizon
HORIZON = STEPS * SIZE
ALL: list[Schedule] = [
    Constant(), Cosine(HORIZON, 0.1), Linear(HORIZON), Step(HORIZON), WSD(HORIZON, 0.05)
]  # fmt: skip


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


TORCHS = {
    "cosine": (Cosine(HORIZON), lambda sgd: CosineAnnealingLR(sgd, STEPS)),
    "cosine to a tenth": (
        Cosine(HORIZON, final=0.1), lambda sgd: CosineAnnealingLR(sgd, STEPS, eta_min=0.1)
    ),
    "linear": (Linear(HORIZON), lambda sgd: LinearLR(sgd, 1.0, 0.0, STEPS)),
    "linear to a fifth": (Linear(HORIZON, final=0.2), lambda sgd: LinearLR(sgd, 1.0, 0.2, STEPS)),
    "step": (Step(HORIZON), lambda sgd: MultiStepLR(sgd, [20, 30], 0.1)),
    "step, others": (
        Step(HORIZON, milestones=[0.1, 0.55, 1.0], gamma=0.5),
        lambda sgd: MultiStepLR(sgd, [4, 22, 40], 0.5),
    ),
    "wsd": (
        WSD(HORIZON, final=0.1, decay=0.25, shape="linear"),
        lambda sgd: SequentialLR(sgd, [ConstantLR(sgd, 1.0), LinearLR(sgd, 1.0, 0.1, 10)], [30]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCHS)
def test_the_factors_are_those_of_torchs_schedulers(name):
    """The first step has the whole rate, and after the horizon it stays."""
    schedule, make = TORCHS[name]
    optimizer = sgd()
    theirs = make(optimizer)
    expected = []
    for step in range(STEPS + 5):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < STEPS:  # beyond it torch's cosine rises again
            theirs.step()
    factors = [schedule.factor(step * SIZE) for step in range(STEPS + 5)]
    assert factors == pytest.approx(expected, abs=1e-12)
    assert factors[0] == 1 and len(set(factors[STEPS:])) == 1


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 1), (0.8, 1), (0.85, 0.5), (0.9, 1 - math.sqrt(0.5)), (1, 0)]
)
def test_the_decay_of_wsd_is_one_less_a_root(share, expected):
    assert WSD(HORIZON).factor(round(share * HORIZON)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_no_schedule_rises_or_leaves_its_range(schedule):
    factors = [schedule.factor(samples) for samples in range(0, 2 * HORIZON, 7)]
    assert factors[0] == 1 and min(factors) >= 0
    assert all(later <= earlier for earlier, later in pairwise(factors))


def test_a_milestone_counts_from_its_very_sample():
    """Although 0.07 * 100 is a little more than 7."""
    assert [Step(100, [0.07]).factor(samples) for samples in (6, 7, 8)] == [1, 0.1, 0.1]


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("warmup", [0, 130])
def test_a_warm_up_multiplies_the_schedule_whose_horizon_it_is_part_of(schedule, warmup):
    combined = RateSchedule(warmup, schedule)
    sizes = [25, 25, 7, 25, 25, 25, 25, 25, 7] * 10
    seen = np.cumsum([0, *sizes]).tolist()
    expected = [
        schedule.factor(before) * (min(1.0, after / warmup) if warmup else 1.0)
        for before, after in pairwise(seen)
    ]
    assert combined.factors(sizes).tolist() == pytest.approx(expected, rel=1e-15)
    assert combined.factors(sizes[20:], seen[20]).tolist() == combined.factors(sizes).tolist()[20:]
    assert combined.is_constant == (warmup == 0 and isinstance(schedule, Constant))


def test_parameter_groups_keep_their_own_rates():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1], "lr": 3.0}, {"params": weights[1:]}], lr=1)
    own = rates_of(optimizer)
    set_rates(optimizer, own, 0.5)
    assert rates_of(optimizer) == [1.5, 0.5]
    set_rates(optimizer, own)
    assert rates_of(optimizer) == [3, 1]


@pytest.mark.parametrize(
    ("overrides", "horizon"),
    [
        ("scheduler=cosine scheduler.horizon_samples=500", 500),
        ("scheduler=linear scheduler.horizon_epochs=2", 2 * N),
        ("scheduler=step scheduler.horizon_epochs=0.5", round(N / 2)),
        ("scheduler=wsd scheduler.horizon_epochs=3 batch_size=4096 stop.max_epochs=9", 3 * N),
    ],
)
def test_a_horizon_is_in_samples_or_epochs_and_never_the_budget(overrides, horizon):
    cfg = compose(overrides.split())
    check(cfg)
    assert rate_schedule(cfg, N).schedule.horizon_samples == horizon


def test_a_stream_has_no_horizon_in_epochs():
    cfg = compose(["scheduler=cosine", "scheduler.horizon_epochs=2"])
    with pytest.raises(ConfigError) as error:
        rate_schedule(cfg, None)
    assert str(error.value) == (
        "scheduler.horizon_epochs=2: digits is a stream without a length; "
        "set scheduler.horizon_samples instead"
    )
    cfg = compose(["scheduler=cosine", "scheduler.horizon_samples=9"])
    assert rate_schedule(cfg, None).schedule == Cosine(9)


SCHEDULED = {
    "cosine": "scheduler=cosine scheduler.horizon_epochs=2.3 warmup_samples=500",
    "wsd": "scheduler=wsd scheduler.horizon_samples=4000 scheduler.decay=0.5",
    "own": "scheduler=halved",
}


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("batch_size", [100, 4096])
def test_every_step_has_its_rate_and_the_curve_shows_it(tiny, rates, name, batch_size):  # noqa: F811
    """Also beyond the short batch at an epoch's end, across chunks, and after the horizon."""
    cfg = tiny(
        *SCHEDULED[name].split(), f"batch_size={batch_size}", "stop.max_steps=60",
        "lr_scaling=sqrt", "tensorboard.points=100",
    )  # fmt: skip
    rates.clear()
    result = run(cfg)
    factors = rate_schedule(cfg, N).factors(read_run(run_directory(cfg)).trajectory.size)
    assert rates == (result.lr * factors).tolist() and len(set(rates)) > 1
    events = events_of(run_directory(cfg)).Scalars("learning_rate/by_step")
    np.testing.assert_allclose([event.value for event in events], rates, rtol=1e-6)


def test_the_result_has_the_base_rate_and_the_scheduler(tiny, capsys):
    cfg = tiny("scheduler=cosine", "scheduler.horizon_epochs=2", "stop.max_epochs=2")
    result = run(cfg)
    (said, _) = capsys.readouterr().out.splitlines()
    assert said == (
        "adam cosine horizon_epochs=2 b=256: learning rate follows scheduler=cosine over "
        "3,594 samples"
    )
    assert result.lr == 1e-3 and result.variant == "adam cosine horizon_epochs=2"
    stored = OmegaConf.load(run_directory(cfg) / store.CONFIG)
    assert stored.scheduler.horizon_epochs == 2 and stored.names.scheduler == "cosine"
    assert result.configuration["scheduler"]["_target_"].endswith("Cosine")


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [("", True), ("scheduler.final=0.1", False), ("stop.max_epochs=2", False)],
)
def test_a_budget_beyond_a_rate_of_0_is_warned_of(tiny, capsys, overrides, warned):
    cfg = tiny(
        "scheduler=linear", "scheduler.horizon_epochs=2", "stop.max_epochs=3", *overrides.split()
    )
    run(cfg)
    assert ("warning: the learning rate is 0 after 3,594 samples" in capsys.readouterr().out) == (
        warned
    )


@pytest.mark.parametrize("first", [5, 20, 40])
def test_a_run_goes_on_in_the_middle_of_its_schedule(cli, tmp_path, first):
    """Within the warm-up, the decay, and after the horizon."""
    arguments = [
        *TINY, "model=restless", "stop.loss=1e-9", "checkpoint.keep=true", "batch_size=100",
        "scheduler=cosine", "scheduler.horizon_epochs=2", "scheduler.final=0.1",
        "warmup_samples=900",
    ]  # fmt: skip
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*arguments, "stop.max_steps=60", f"output_dir={in_one}").code == 0
    assert cli(*arguments, f"stop.max_steps={first}", f"output_dir={in_two}").code == 0
    outcome = cli(*arguments, "stop.max_steps=60", f"output_dir={in_two}")
    assert "resuming from" in outcome.out, outcome.err
    assert_same_runs(in_one, in_two)


def test_a_schedule_changes_the_losses_from_its_second_step_on(tiny):
    plain = tiny("stop.max_steps=10")
    decayed = tiny("scheduler=linear", "scheduler.horizon_samples=5000", "stop.max_steps=10")
    run(plain), run(decayed)
    differ = losses(plain) != losses(decayed)
    assert not differ[:2].any() and differ[2:].all()  # a loss is seen before its own step


@pytest.mark.parametrize(
    ("overrides", "variant"),
    [
        ("scheduler=constant", "adam"),
        ("scheduler=cosine scheduler.horizon_epochs=10", "adam cosine horizon_epochs=10"),
        ("scheduler=cosine scheduler.horizon_samples=900", "adam cosine horizon_samples=900"),
        ("scheduler=wsd scheduler.horizon_epochs=3 scheduler.decay=0.1 optimizer.lr=0.01",
         "adam wsd lr=0.01 horizon_epochs=3 decay=0.1"),
        ("scheduler=step scheduler.horizon_epochs=3 scheduler.milestones=[0.3,0.6]",
         "adam step horizon_epochs=3 milestones=0.3,0.6"),
        ("experiment=digits scheduler=linear scheduler.horizon_epochs=3",
         "adam linear horizon_epochs=3"),
    ],
)  # fmt: skip
def test_the_label_names_the_scheduler_and_its_horizon(overrides, variant):
    assert compose(overrides.split()).names.variant == variant


def test_an_experiments_own_scheduler_is_not_in_its_labels(tmp_path, monkeypatch):
    """Nor is its horizon; another one is, and so is no scheduler at all."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "decayed.yaml").write_text(
        "# @package _global_\n"
        "defaults: [{override /scheduler: cosine}]\nscheduler: {horizon_epochs: 5}\n"
    )
    monkeypatch.setattr("cbs_lightning.config.composition.CONF_DIR", _copied(tmp_path))
    labels = {
        overrides: compose(["experiment=decayed", *overrides.split()]).names.variant
        for overrides in ("", "scheduler.horizon_epochs=6", "optimizer=sgd")
    }
    assert list(labels.values()) == ["adam", "adam horizon_epochs=6", "sgd"]
    linear = compose(["experiment=decayed", "scheduler=linear"])
    assert linear.names.variant == "adam linear" and linear.scheduler["horizon_epochs"] == 5


def _copied(directory):
    """The project's configuration, with what is in the directory."""
    shutil.copytree(CONF_DIR, directory, dirs_exist_ok=True)
    return directory


def test_the_hash_covers_the_scheduler_and_old_ones_stay():
    for constant in ("scheduler=constant", "scheduler.horizon_epochs=3"):
        assert config_hash(compose([constant])) == "2055d13b89a807b9"
    different = [
        "", "scheduler=cosine scheduler.horizon_epochs=3",
        "scheduler=cosine scheduler.horizon_epochs=4",
        "scheduler=cosine scheduler.horizon_samples=3",
        "scheduler=linear scheduler.horizon_epochs=3",
        "scheduler=cosine scheduler.horizon_epochs=3 scheduler.final=0.1",
        "scheduler=cosine scheduler.horizon_epochs=3 warmup_samples=9",
    ]  # fmt: skip
    configs = [compose(overrides.split()) for overrides in different]
    assert len({config_hash(cfg) for cfg in configs}) == len(different)
    assert len({cfg.names.variant for cfg in configs}) == len(different)
    budgets = ["stop.max_epochs=7", "stop.max_steps=7", "stop.loss=1"]
    scheduled = ["scheduler=cosine", "scheduler.horizon_epochs=3"]
    assert {config_hash(compose([*scheduled, budget])) for budget in budgets} == {
        config_hash(compose(scheduled))
    }


BAD = {
    "scheduler=cosine":
        "scheduler=cosine: needs a horizon: set scheduler.horizon_epochs or "
        "scheduler.horizon_samples",
    "scheduler=cosine scheduler.horizon_epochs=3 scheduler.horizon_samples=9":
        "scheduler.horizon_epochs=3: not beside scheduler.horizon_samples=9; set one of the two",
    "scheduler=cosine scheduler.horizon_samples=0":
        "scheduler.horizon_samples=0: must be a whole number >= 1",
    "scheduler=cosine scheduler.horizon_samples=1.5":
        "scheduler.horizon_samples=1.5: must be a whole number >= 1",
    "scheduler=linear scheduler.horizon_epochs=-1":
        "scheduler.horizon_epochs=-1: must be a number > 0",
    "scheduler=linear scheduler.horizon_epochs=many":
        "scheduler.horizon_epochs=many: must be a number > 0",
    "scheduler=cosine scheduler.horizon_epochs=3 scheduler.final=2":
        "scheduler=cosine: final must be a number from 0 to 1, not 2",
    "scheduler=step scheduler.horizon_epochs=3 scheduler.milestones=[0.5,0.2]":
        "scheduler=step: milestones must be a list of growing shares of the horizon",
    "scheduler=step scheduler.horizon_epochs=3 scheduler.milestones=0.5":
        "scheduler=step: milestones must be a list of growing shares of the horizon",
    "scheduler=step scheduler.horizon_epochs=3 scheduler.gamma=0":
        "scheduler=step: gamma must be a number above 0, at most 1, not 0",
    "scheduler=wsd scheduler.horizon_epochs=3 scheduler.decay=0":
        "scheduler=wsd: decay must be a number above 0, at most 1, not 0",
    "scheduler=wsd scheduler.horizon_epochs=3 scheduler.shape=round":
        "scheduler=wsd: shape must be one of linear, sqrt, not round",
    "scheduler=cosine scheduler.horizon_epochs=3 +scheduler.speed=1":
        "scheduler.speed=1: allowed: final, horizon_epochs, horizon_samples",
    "scheduler.horizon_epochs=0": "scheduler.horizon_epochs=0: must be a number > 0",
    "scheduler._target_=tests.additions.Halved +scheduler.after=1 scheduler.horizon_epochs=3":
        "scheduler.horizon_epochs=3: allowed: after",
    "scheduler._target_=torch.nn.Linear":
        "scheduler._target_=torch.nn.Linear: must be a class with a method factor(samples)",
    "scheduler._target_=not_there.Schedule":
        "scheduler._target_=not_there.Schedule: cannot be imported",
    "scheduler._target_=tests.additions.Halved": "scheduler=constant: Halved.__init__() missing",
    "scheduler._target_=tests.additions.Endless scheduler.horizon_epochs=2":
        "scheduler=constant: its factors must be numbers >= 0, not ['fast', 'fast']",
}  # fmt: skip


@pytest.mark.parametrize("overrides", BAD)
def test_a_bad_value_is_named_with_what_is_allowed(overrides):
    with pytest.raises(ConfigError) as error:
        check(compose(overrides.split()))
    assert str(error.value).startswith(BAD[overrides]) and "\n" not in str(error.value)


def test_a_horizon_that_a_warm_up_fills_is_refused_before_anything_is_written(cli, tmp_path):
    arguments = ["scheduler=cosine", "scheduler.horizon_epochs=2", "warmup_samples=3594"]
    outcome = cli(*TINY, *arguments, f"output_dir={tmp_path / 'out'}")
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1 and not (tmp_path / "out").exists()
    assert line == (
        "error: warmup_samples=3594: must be less than the scheduler's horizon, 3,594 samples"
    )


def test_an_unknown_scheduler_is_answered_with_those_there_are(cli):
    outcome = cli("scheduler=exponential")
    assert outcome.err == (
        "error: scheduler=exponential: allowed: constant, cosine, linear, step, wsd\n"
    )


def test_a_scheduled_run_is_repeated_and_one_from_before_has_none(cli, tmp_path):
    trusting = "trusted_packages=[tests]"
    arguments = [*TINY, trusting, "stop.max_steps=9", f"output_dir={tmp_path / 'original'}"]
    assert cli(*arguments, "scheduler=wsd", "scheduler.horizon_samples=2000").code == 0
    (stored,) = (tmp_path / "original").glob("*/*/")
    again = [f"repeat='{stored}'", trusting, "report=false", f"output_dir={tmp_path / 'again'}"]
    outcome = cli(*again)
    assert outcome.code == 0 and "is not what" not in outcome.out, outcome.err
    assert_same_runs(tmp_path / "original", tmp_path / "again")
    other = compose([*again, "scheduler=cosine", "scheduler.horizon_epochs=1"])
    assert other.names.scheduler == "cosine" and "decay" not in other.scheduler
    values = OmegaConf.load(stored / store.CONFIG)
    del values["scheduler"], values["callbacks"], values.names["scheduler"]
    (stored / store.CONFIG).write_text(OmegaConf.to_yaml(values))
    old = compose(again)
    assert old.names.scheduler == "constant" and old.scheduler == compose([]).scheduler


def test_schedulers_are_swept_as_variants_of_their_own(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "scheduler=constant,cosine,linear", "scheduler.horizon_epochs=4",
        "stop.max_epochs=4", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    variants = {read_run(path.parent).result.variant for path in tmp_path.glob("*/*/result.json")}
    assert variants == {"adam", "adam cosine horizon_epochs=4", "adam linear horizon_epochs=4"}
    assert "warning: scheduler=constant has no horizon; its 7,188 samples are not used" in (
        outcome.out
    )


def test_runs_with_another_scheduler_are_no_sweep_of_a_hyperparameter(tmp_path):
    results = [
        replace(make_run(tmp_path / "study", "adam", 8, 5, seed=seed), lr=lr)
        for seed, lr in enumerate((1e-3, 1e-2, 1e-1))
    ]
    constant = {"scheduler": compose([]).scheduler}
    later = replace(results[1], configuration=results[1].configuration | constant)
    (panel,) = hyperparameter_panels([results[0], later, results[2]])
    assert panel.values == [1e-3, 1e-2, 1e-1]
    cosine = {"scheduler": {"_target_": "cbs_lightning.optim.schedules.Cosine"}}
    other = replace(results[1], configuration=results[1].configuration | cosine)
    assert hyperparameter_panels([results[0], other, results[2]]) == []
