"""Callbacks and loggers that a user adds to a run."""

import csv
import importlib.util
import shutil
import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cbs_lightning.analysis.study import read
from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.config.extensions import loop_obstacles
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.results.events import PREFIX
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run, studies
from cbs_lightning.training.build import rate_schedule
from cbs_lightning.training.run import run
from tests.additions import Epochs, EveryStep, Remembering
from tests.conftest import TINY
from tests.test_lr_scaling import losses
from tests.test_restart import assert_same_runs
from tests.test_schedules import SCHEDULED
from tests.test_tensorboard import events_of

HERE = "tests.additions"
EPOCHS = f"+callbacks.epochs._target_={HERE}.Epochs"
SHAKEN = f"+callbacks.shaken._target_={HERE}.Shaken"
PLAIN_HASH = "2055d13b89a807b9"


def test_a_callback_is_called_after_the_projects_own(tiny):
    run(tiny(EPOCHS, "stop.max_epochs=3"))
    assert Epochs.latest.count == 3
    own = Epochs.latest.callbacks
    assert isinstance(own[1], TrajectoryRecorder) and own[-1] is Epochs.latest


def test_a_callback_may_change_the_losses_and_is_part_of_what_a_run_is(tiny):
    plain, shaken = tiny("stop.max_steps=5"), tiny(SHAKEN, "stop.max_steps=5")
    run(plain), run(shaken)
    assert not np.array_equal(losses(plain), losses(shaken))
    assert run_directory(plain) != run_directory(shaken)
    assert read_run(run_directory(shaken)).result.variant == "adam shaken"
    callbacks = read_run(run_directory(shaken)).result.configuration["callbacks"]
    assert callbacks == {"shaken": {"_target_": f"{HERE}.Shaken"}}


@pytest.mark.parametrize(
    ("overrides", "variant"),
    [
        ([SHAKEN], "adam shaken"),
        ([SHAKEN, "+callbacks.shaken.factor=3"], "adam shaken factor=3"),
        ([SHAKEN, EPOCHS, "optimizer.lr=0.1"], "adam lr=0.1 shaken epochs"),
        ([SHAKEN, "+callbacks.shaken.neutral=false"], "adam shaken"),
    ],
)
def test_the_label_names_callbacks_and_their_settings(overrides, variant):
    cfg = compose(overrides)
    assert cfg.names.variant == variant and config_hash(cfg) != PLAIN_HASH


def test_the_hash_covers_callbacks_that_are_not_neutral():
    cases = ([SHAKEN], [EPOCHS], [SHAKEN, EPOCHS], [SHAKEN, "+callbacks.shaken.factor=3"])
    assert len({config_hash(compose(case)) for case in cases} | {PLAIN_HASH}) == len(cases) + 1
    assert config_hash(compose([SHAKEN, "+callbacks.shaken.neutral=false"])) == config_hash(
        compose([SHAKEN])
    )
    neutral = compose([SHAKEN, "+callbacks.shaken.neutral=true"])
    assert config_hash(neutral) == PLAIN_HASH and neutral.names.variant == "adam"
    assert config_hash(compose(["callbacks=none", "logger=none"])) == PLAIN_HASH


def test_an_experiments_own_callbacks_are_not_in_its_labels(tmp_path, monkeypatch):
    shutil.copytree(CONF_DIR, tmp_path, dirs_exist_ok=True)
    (tmp_path / "experiment" / "shaken.yaml").write_text(
        f"# @package _global_\ncallbacks: {{shaken: {{_target_: {HERE}.Shaken}}}}\n"
    )
    monkeypatch.setattr("cbs_lightning.config.composition.CONF_DIR", tmp_path)
    labels = [
        compose(["experiment=shaken", *overrides]).names.variant
        for overrides in ([], ["~callbacks.shaken"], [f"callbacks.shaken._target_={HERE}.Epochs"])
    ]
    assert labels == ["adam", "adam shaken=none", f"adam _target_={HERE}.Epochs"]


def test_a_callbacks_state_goes_on_with_the_run(cli, tmp_path):
    arguments = [*TINY, EPOCHS, "stop.loss=1e-9", "checkpoint.keep=true"]
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*arguments, "stop.max_epochs=5", f"output_dir={in_one}").code == 0
    assert cli(*arguments, "stop.max_epochs=2", f"output_dir={in_two}").code == 0
    outcome = cli(*arguments, "stop.max_epochs=5", f"output_dir={in_two}")
    assert "resuming from" in outcome.out, outcome.err
    assert Epochs.latest.count >= 4  # a checkpoint comes before an epoch's end
    assert_same_runs(in_one, in_two)


def test_a_callback_that_stops_a_run_is_refused_in_a_line(tiny):
    """Else the same command would train it again and again."""
    cfg = tiny(f"+callbacks.stopping._target_={HERE}.Stopping")
    with pytest.raises(UserError, match=r"training stopped after 8 of 1600 steps: .* a callback"):
        run(cfg)
    assert read_run(run_directory(cfg)).result.status is Status.FAILED


def test_a_checkpoint_of_the_users_is_below_the_runs_directory(tiny):
    """Lightning refuses one unless checkpointing is on, and adds its own where it is."""
    cfg = tiny(
        "+callbacks.own._target_=lightning.pytorch.callbacks.ModelCheckpoint", "stop.max_epochs=2"
    )
    run(cfg)
    (saved,) = run_directory(cfg).glob("checkpoints/*.ckpt")
    assert saved.name.startswith("epoch=1")


BAD_CALLBACKS = {
    "+callbacks.mine=5":
        "callbacks.mine=5: must be a group of keys, such as callbacks.mine._target_=<class>",
    "callbacks=5": "callbacks=5: choose one of the group's options, or leave it out",
    "+callbacks.mine.first=5": "callbacks.mine._target_=null: must be a class's import path",
    "+callbacks.mine._target_=no.such.Thing":
        "callbacks.mine._target_=no.such.Thing: cannot be imported",
    "+callbacks.mine._target_=torch.nn.Linear":
        "callbacks.mine._target_=torch.nn.Linear: must be a class derived from lightning's Ca",
    f"{EPOCHS} +callbacks.epochs.speed=1": "callbacks.epochs.speed=1: allowed: first, neutral",
    f"{EPOCHS} +callbacks.epochs.neutral=maybe":
        "callbacks.epochs.neutral=maybe: must be true or false",
    f"{EPOCHS} +callbacks.epochs.first=-1":
        f"callbacks.epochs._target_={HERE}.Epochs: first must not be negative",
    "+callbacks.a._target_=lightning.pytorch.callbacks.GradientAccumulationScheduler":
        "callbacks.a._target_=lightning.pytorch.callbacks.GradientAccumulationScheduler: a step is "
        "one batch; set batch_size and micro_batch_size",
    "+callbacks.a._target_=lightning.pytorch.callbacks.BatchSizeFinder":
        "callbacks.a._target_=lightning.pytorch.callbacks.BatchSizeFinder: it would change",
    "+callbacks.a._target_=lightning.pytorch.callbacks.LearningRateFinder":
        "callbacks.a._target_=lightning.pytorch.callbacks.LearningRateFinder: it would change",
    "+logger.mine=5":
        "logger.mine=5: must be a group of keys, such as logger.mine._target_=<class>",
    "+logger.mine._target_=torch.nn.Linear":
        "logger.mine._target_=torch.nn.Linear: must be a class derived from lightning's Logger",
    "logger=csv +logger.csv.speed=1":
        "logger.csv.speed=1: allowed: flush_logs_every_n_steps, name, prefix, version",
    "logger=csv +logger.csv.save_dir=elsewhere": "logger.csv.save_dir=elsewhere: allowed: flush",
    f"+logger={{a/b:{{_target_:{HERE}.Remembering}}}}": "logger.a/b=",
}  # fmt: skip


@pytest.mark.parametrize("overrides", BAD_CALLBACKS)
def test_bad_input_ends_in_one_line_and_writes_nothing(cli, tmp_path, overrides):
    outcome = cli(*overrides.split(), *TINY, f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and not (tmp_path / "out").exists()
    (line,) = outcome.err.splitlines()
    assert line.removeprefix("error: ").lstrip("+").startswith(BAD_CALLBACKS[overrides])


def test_what_needs_single_steps_is_named():
    cfg = compose([
        f"+callbacks.every._target_={HERE}.EveryStep", EPOCHS, "trainer.gradient_clip_val=1",
        "+callbacks.saved._target_=lightning.pytorch.callbacks.ModelCheckpoint",
    ])  # fmt: skip
    clipping, every, saved = loop_obstacles(cfg)
    assert clipping == "trainer.gradient_clip_val=1"
    assert every == "callbacks.every (on_before_optimizer_step)"
    assert saved == "callbacks.saved (on_train_batch_end)"
    assert "on_train_batch_start" not in vars(EarlyStopping)
    early = "lightning.pytorch.callbacks.EarlyStopping"
    quiet = compose([EPOCHS, f"+callbacks.a._target_={early}", "+callbacks.a.monitor=loss"])
    assert loop_obstacles(quiet) == loop_obstacles(compose([])) == []


EVERY = f"+callbacks.every._target_={HERE}.EveryStep"


def test_a_callback_with_hooks_around_a_step_is_called_for_every_step(tiny, capsys):
    plain, watched = tiny("stop.max_steps=20"), tiny(EVERY, "stop.max_steps=20")
    run(plain), run(watched)
    assert len(EveryStep.latest.rates) == 20
    assert "callbacks.every (on_before_optimizer_step)" in capsys.readouterr().out
    np.testing.assert_allclose(losses(watched), losses(plain), rtol=1e-5)


def test_gradients_are_clipped(tiny):
    """A step of SGD is as long as the clipped gradient times the learning rate."""
    cfg = tiny(
        "trainer.gradient_clip_val=0.01", "optimizer=sgd", "optimizer.lr=10", "stop.max_steps=5"
    )
    before: list[list[torch.Tensor]] = []

    def moved(optimizer, *_):
        before.append([w.detach().clone() for g in optimizer.param_groups for w in g["params"]])

    hook = register_optimizer_step_pre_hook(moved)
    try:
        run(cfg)
    finally:
        hook.remove()
    lengths = [
        float(torch.cat([(a - b).flatten() for a, b in zip(*pair, strict=True)]).norm())
        for pair in pairwise(before)
    ]
    assert lengths == pytest.approx([10 * 0.01] * len(lengths), rel=1e-3) and len(lengths) == 4


@pytest.mark.parametrize("slices", ["", "micro_batch_size=32"])
@pytest.mark.parametrize("name", SCHEDULED)
def test_the_general_loop_follows_the_same_schedule(tiny, name, slices):
    cfg = tiny(
        *SCHEDULED[name].split(), EVERY, "batch_size=100", "stop.max_steps=60", *slices.split()
    )
    result = run(cfg)
    directory = run_directory(cfg)
    factors = rate_schedule(cfg, 1797).factors(read_run(directory).trajectory.size)
    assert EveryStep.latest.rates == (result.lr * factors).tolist() and len(factors) == 60
    assert len(set(EveryStep.latest.rates)) > 1
    events = events_of(directory).Scalars("learning_rate/by_step")
    assert events[-1].value == pytest.approx(EveryStep.latest.rates[-1], rel=1e-6)


@pytest.mark.parametrize("first", [5, 20, 40])
def test_a_run_of_the_general_loop_goes_on_in_the_middle_of_its_schedule(cli, tmp_path, first):
    arguments = [
        *TINY, "model=restless", "stop.loss=1e-9", "checkpoint.keep=true", "batch_size=100",
        "scheduler=cosine", "scheduler.horizon_epochs=2", "scheduler.final=0.1",
        "warmup_samples=900", EVERY,
    ]  # fmt: skip
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*arguments, "stop.max_steps=60", f"output_dir={in_one}").code == 0
    assert cli(*arguments, f"stop.max_steps={first}", f"output_dir={in_two}").code == 0
    outcome = cli(*arguments, "stop.max_steps=60", f"output_dir={in_two}")
    assert "resuming from" in outcome.out, outcome.err
    assert_same_runs(in_one, in_two)


def test_a_stored_callback_has_to_be_trusted(tiny, tmp_path):
    cfg = tiny(SHAKEN, "stop.max_steps=3")
    run(cfg)
    stored = f"repeat='{run_directory(cfg)}'"
    with pytest.raises(ConfigError, match=r"_target_=tests\."):
        compose([stored])
    again = compose([stored, "trusted_packages=[tests]"])
    assert again.callbacks == cfg.callbacks and config_hash(again) == config_hash(cfg)
    assert compose([stored, "trusted_packages=[tests]", "callbacks=none"]).callbacks == {}


def test_loggers_are_told_what_the_run_is_and_what_came_of_it(tiny):
    cfg = tiny(
        f"+logger.mine._target_={HERE}.Remembering", "+logger.mine.project=null",
        "+logger.mine.run_name=null", "+logger.mine.limit=null", "stop.loss=1.5",
    )  # fmt: skip
    assert config_hash(cfg) == config_hash(tiny()) and cfg.names.variant == "adam"
    result, logger = run(cfg), Remembering.latest
    assert Path(logger.save_dir_given) == run_directory(cfg) / "mine"
    assert (logger.project, logger.run_name) == ("digits_tiny", "adam b=256")
    assert logger.limit is None  # what has no other meaning stays null
    assert logger.hyperparameters["optimizer.lr"] == 1e-3
    found = {name: logger.metrics[name] for name in ("steps", "sfo", "samples")}
    assert found == {"steps": result.steps, "sfo": result.sfo, "samples": result.samples}
    assert "logger" not in result.configuration


@pytest.mark.parametrize("loop", [[], ["trainer.gradient_clip_val=100"]])
def test_loggers_are_given_the_losses_in_both_loops(tiny, loop):
    cfg = tiny("logger=csv", "trainer.log_every_n_steps=2", "stop.max_steps=5", *loop)
    run(cfg)
    stored = read_run(run_directory(cfg)).trajectory.loss
    path = run_directory(cfg) / "csv" / "version_0" / "metrics.csv"
    with path.open() as file:
        rows = {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}
    assert rows == {2: pytest.approx(stored[1]), 4: pytest.approx(stored[3])}


def test_a_logger_that_cannot_be_reached_is_told_of_in_a_line(cli, tmp_path):
    arguments = [f"+logger.far._target_={HERE}.Unreachable", f"output_dir={tmp_path}"]
    outcome = cli(*TINY, *arguments)
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1
    assert line == f"error: logger.far={HERE}.Unreachable: no server there"
    assert list(tmp_path.glob("*/*/result.json")) == []
    assert cli(*TINY, "stop.max_steps=2", f"output_dir={tmp_path}").code == 0


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_an_absent_package_is_named_with_the_extra_to_install(cli, tmp_path, monkeypatch, package):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == package else find_spec(name)
    )
    outcome = cli(*TINY, f"logger={package}", f"output_dir={tmp_path / 'out'}")
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1 and not (tmp_path / "out").exists()
    assert line.startswith(f"error: logger.{package}._target_=lightning.pytorch.loggers.")
    assert line.endswith(f": needs the package {package}: pip install '.[{package}]'")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_extras_exist_and_the_settings_are_the_loggers_own(name, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert any(each.startswith(name) for each in project["optional-dependencies"][name])
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    check(compose([f"logger={name}"]))


def test_lightnings_loggers_write_beside_the_runs_own_files(cli, tmp_path):
    """Each session of a run its own version; TensorBoard's pages and the study's readers stay."""
    plain, logged = tmp_path / "plain", tmp_path / "logged"
    arguments = [*TINY, "stop.loss=1.5"]
    loggers = "logger=[csv,tensorboard]"
    assert cli(*arguments, f"output_dir={plain}").code == 0
    assert cli(*arguments, loggers, "stop.max_steps=30", f"output_dir={logged}").code == 0
    outcome = cli(*arguments, loggers, f"output_dir={logged}")
    assert outcome.code == 0, outcome.err
    assert_same_runs(plain, logged)
    (directory,) = logged.glob("digits_tiny/*/")
    assert {path.name for path in directory.glob("*/*")} == {"version_0", "version_1"}
    rows = list(csv.DictReader((directory / "csv" / "version_1" / "metrics.csv").open()))
    assert all(int(each["step"]) > 30 for each in rows)  # what went before is in version_0
    (row,) = (each for each in rows if each["steps"])
    assert int(float(row["steps"])) == read_run(directory).result.steps
    below = EventAccumulator(str(directory / "tensorboard" / "version_1"))
    below.Reload()
    assert set(below.Tags()["scalars"]) >= {"loss", "steps", "sfo", "samples"}
    with pytest.raises(KeyError):  # no row of the study's own table
        below.PluginTagToContent("hparams")
    assert len(list(directory.glob(f"{PREFIX}*"))) == 2  # the project's own: curves and result
    assert set(events_of(directory).Tags()["scalars"]) == set(
        events_of(next(plain.glob("digits_tiny/*/"))).Tags()["scalars"]
    )
    assert list(studies(logged)) == [logged / "digits_tiny"]
    assert list(studies(directory)) == []
    study, broken = read(logged / "digits_tiny")
    assert len(study.answers) == 1 and broken == []


def test_a_study_of_runs_with_loggers_is_reported(tiny, monkeypatch):
    for seed in (0, 1):
        cfg = tiny("logger=csv", f"seed={seed}", "stop.loss=1.5")
        run(cfg)
    monkeypatch.setattr("cbs_lightning.reporting.study_files.write_figures", lambda study: [])
    assert not any("damaged" in line for line in write_study(run_directory(cfg).parent))
