import json
import os
import signal
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import UserError
from cbs_lightning.models import Classifier
from cbs_lightning.results import store
from cbs_lightning.results.result import Request, Result, Status, answer
from cbs_lightning.results.store import read_run
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import request_for, run
from cbs_lightning.training.source import Extent

CONTRACT = [
    "schema_version",
    "status",
    "study",
    "variant",
    "data",
    "model",
    "optimizer",
    "lr",
    "hyperparameters",
    "batch_size",
    "effective_batch_size",
    "micro_batch_size",
    "seed",
    "threshold",
    "rule",
    "window",
    "steps",
    "sfo",
    "samples",
    "steps_run",
    "epochs_run",
    "loss",
    "accuracy",
    "test_accuracy",
    "seconds",
    "seconds_per_step",
    "threads",
    "device",
    "config_hash",
    "versions",
]


def forbid_training(monkeypatch):
    def train(*_):
        raise AssertionError("trained what it knew")

    monkeypatch.setattr("cbs_lightning.training.run.train", train)


def test_a_run_that_reaches_its_threshold(tiny):
    cfg = tiny("stop.loss=1.5")
    result = run(cfg)
    stored = read_run(run_directory(cfg))
    assert stored.result == result
    assert result.status is Status.REACHED
    assert result.loss <= 1.5
    assert result.steps % 8 == 0 and result.steps == result.steps_run == len(stored.trajectory)
    assert result.sfo == result.steps * 256
    assert result.samples == result.steps // 8 * 1797
    assert result.epochs_run == result.steps / 8
    assert result.seconds == pytest.approx(result.seconds_per_step * result.steps)
    assert result.test_accuracy is None
    assert (result.data, result.model, result.optimizer) == ("digits", "tiny", "adam")
    assert result.hyperparameters == {
        "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "fused": True
    }  # fmt: skip
    sizes = stored.trajectory.size.reshape(-1, 8)
    assert (sizes == [256] * 7 + [5]).all()
    last = stored.trajectory[-8:]
    assert result.loss == pytest.approx(last.loss.mean(dtype=np.float64))
    assert result.accuracy == last.correct.sum() / 1797
    arrays = stored.trajectory
    assert (arrays.loss.dtype, arrays.correct.dtype, arrays.size.dtype) == (
        np.float32, np.int32, np.int32
    )  # fmt: skip


def test_the_files_of_a_run(tiny):
    cfg = tiny("stop.loss=1.5")
    run(cfg)
    directory = run_directory(cfg)
    assert {"result.json", "trajectory.npz", "config.yaml"} <= {p.name for p in directory.iterdir()}
    assert not (directory / store.CHECKPOINT).exists()
    stored = json.loads((directory / "result.json").read_text())
    assert set(CONTRACT) <= set(stored)
    assert set(stored) == {field.name for field in fields(Result)} | {"digest"}
    assert stored["status"] == "reached" and stored["rule"] == "epoch"


def test_a_run_that_uses_up_its_budget_in_epochs(tiny):
    result = run(tiny("stop.loss=1e-9", "stop.max_epochs=2"))
    assert result.status is Status.EXHAUSTED
    assert (result.steps, result.sfo, result.samples) == (None, None, None)
    assert result.steps_run == 16 and result.epochs_run == 2
    assert result.loss > 0 and 0 <= result.accuracy <= 1


@pytest.mark.parametrize("batch_size", [4, 256])
def test_a_budget_in_steps_ends_inside_an_epoch(tiny, batch_size):
    cfg = tiny("stop.loss=1e-9", "stop.max_steps=5", f"batch_size={batch_size}")
    result = run(cfg)
    assert result.status is Status.EXHAUSTED
    assert result.steps_run == 5 == len(read_run(run_directory(cfg)).trajectory)
    assert result.loss is not None


def test_the_smaller_budget_counts(tiny):
    extent = Extent(size=1797, steps_per_epoch=8)
    assert request_for(tiny("stop.max_steps=5", "stop.max_epochs=2"), extent).max_steps == 5
    assert request_for(tiny("stop.max_steps=50", "stop.max_epochs=2"), extent).max_steps == 16


def test_a_run_that_diverges(tiny):
    cfg = tiny("optimizer=sgd", "optimizer.lr=1e30")
    result = run(cfg)
    trajectory = read_run(run_directory(cfg)).trajectory
    assert result.status is Status.DIVERGED
    assert result.steps is None and result.loss is None
    assert result.steps_run == len(trajectory) == trajectory.first_non_finite() < 16


def test_a_run_that_diverges_ends_within_its_epoch(tiny, monkeypatch):
    """With b = 4 an epoch has 450 steps, in four chunks."""
    steps = []
    training_step = Classifier.training_step

    def counted(self, *arguments):
        steps.append(self.trainer.global_step)
        return training_step(self, *arguments)

    monkeypatch.setattr(Classifier, "training_step", counted)
    cfg = tiny(
        "optimizer=sgd", "optimizer.lr=1e30", "batch_size=4", "checkpoint.every_seconds=1e-9"
    )
    result = run(cfg)
    assert result.status is Status.DIVERGED and result.steps_run < 128
    assert len(steps) == 1
    assert not list(run_directory(cfg).glob("*.ckpt"))


def test_a_run_that_fails_says_so_and_keeps_what_it_has(tiny, monkeypatch):
    cfg = tiny("stop.loss=1e-9", "stop.max_epochs=3")
    training_step = Classifier.training_step

    def fails_later(self, *arguments):
        if self.trainer.global_step == 16:
            raise RuntimeError("the roof fell in")
        return training_step(self, *arguments)

    monkeypatch.setattr(Classifier, "training_step", fails_later)
    with pytest.raises(RuntimeError, match="roof"):
        run(cfg)
    monkeypatch.undo()
    stored = read_run(run_directory(cfg))
    assert stored.result.status is Status.FAILED
    assert stored.result.steps_run == 16
    assert "the roof fell in" in (run_directory(cfg) / store.ERROR).read_text()
    # The same command tries again.
    assert run(cfg).status is Status.EXHAUSTED
    assert not (run_directory(cfg) / store.ERROR).exists()


def test_a_run_that_fails_after_its_threshold_is_not_taken_for_finished(tiny, monkeypatch):
    cfg = tiny("stop.loss=1.5")
    with monkeypatch.context() as patch:

        def no_room(*_):
            raise OSError("no room")

        patch.setattr("cbs_lightning.callbacks.LogCurves.on_train_epoch_end", no_room)
        patch.setattr("cbs_lightning.callbacks.StopAtThreshold._log", no_room)
        with pytest.raises(UserError, match="no room"):
            run(tiny("stop.loss=9"))
    stored = read_run(run_directory(cfg)).result
    assert (stored.status, stored.steps, stored.sfo) == (Status.FAILED, None, None)
    assert run(cfg).status is Status.REACHED


def interrupt_after(monkeypatch, steps, number=signal.SIGTERM):
    batch_end = TrajectoryRecorder.on_train_batch_end

    def on_train_batch_end(self, trainer, module, outputs, *rest):
        batch_end(self, trainer, module, outputs, *rest)
        if trainer.global_step >= steps:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrajectoryRecorder, "on_train_batch_end", on_train_batch_end)


@pytest.mark.parametrize("steps", [2, 8, 12, 16])
@pytest.mark.parametrize("optimizer", ["adam", "momentum_ema", "adam_monotone"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    tiny, monkeypatch, tmp_path, steps, optimizer
):
    request = ["stop.loss=1e-9", "stop.max_epochs=3", "data.augment=true", f"optimizer={optimizer}"]
    undisturbed = tiny(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = tiny(*request)
    with monkeypatch.context() as patch:
        interrupt_after(patch, steps)
        with pytest.raises(Interrupted) as interrupted:
            run(cfg)
    assert interrupted.value.exit_code == 143
    stored = read_run(run_directory(cfg))
    assert stored.result.status is Status.INTERRUPTED
    assert stored.result.steps_run == len(stored.trajectory) == steps
    assert (run_directory(cfg) / store.CHECKPOINT).exists()
    result = run(cfg)
    assert result.status is Status.EXHAUSTED and result.steps_run == 24
    expected = read_run(run_directory(undisturbed)).trajectory
    found = read_run(run_directory(cfg)).trajectory
    assert np.array_equal(found.loss, expected.loss)
    assert np.array_equal(found.correct, expected.correct)
    assert np.array_equal(found.size, expected.size)
    assert not (run_directory(cfg) / store.CHECKPOINT).exists()


def test_checkpoints_are_taken_by_time_and_load_safely(tiny, monkeypatch):
    cfg = tiny("stop.loss=1e-9", "stop.max_epochs=2", "checkpoint.every_seconds=1e-9")
    saved = []
    monkeypatch.setattr(
        "cbs_lightning.callbacks.timed_checkpoint.TimedCheckpoint._save",
        lambda self, trainer: saved.append(trainer.global_step),
    )
    run(cfg)
    assert saved == [2, 4, 6, 8, 10, 12, 14, 16]
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            run(tiny("seed=1"))
    torch.load(run_directory(tiny("seed=1")) / store.CHECKPOINT, weights_only=True)


def test_the_same_command_reuses_what_is_finished(tiny, monkeypatch):
    cfg = tiny("stop.loss=1.5")
    result = run(cfg)
    forbid_training(monkeypatch)
    assert run(cfg) == result


def test_a_looser_threshold_or_another_rule_is_answered_from_the_losses(tiny, monkeypatch):
    strict = run(tiny("stop.loss=1.0"))
    forbid_training(monkeypatch)
    cfg = tiny("stop.loss=1.8")
    loose = run(cfg)
    assert loose.threshold == 1.8 and loose.steps < strict.steps
    assert read_run(run_directory(cfg)).result == loose
    assert (loose.seconds_per_step, loose.steps_run) == (strict.seconds_per_step, strict.steps_run)
    window = run(tiny("stop.loss=1.8", "stop.rule=window", "stop.window=512"))
    assert window.rule is RuleName.WINDOW and window.window == 512
    assert window.steps <= loose.steps
    # A smaller budget that the threshold was not met in
    short = run(tiny("stop.loss=1.0", "stop.max_epochs=1"))
    assert short.status is Status.EXHAUSTED and short.steps is None


def test_a_stricter_threshold_or_a_larger_budget_trains_on(tiny):
    assert run(tiny("stop.loss=1.8")).status is Status.REACHED
    stricter = run(tiny("stop.loss=1.0"))
    assert stricter.status is Status.REACHED and stricter.loss <= 1.0
    first = run(tiny("stop.loss=1e-9", "stop.max_epochs=1", "seed=1"))
    larger = run(tiny("stop.loss=1e-9", "stop.max_epochs=2", "seed=1"))
    assert (first.steps_run, larger.steps_run) == (8, 16)


def test_a_damaged_result_is_trained_anew(tiny, capsys):
    cfg = tiny("stop.loss=1.5")
    result = run(cfg)
    (run_directory(cfg) / store.RESULT).write_text("{")
    again = run(cfg)
    assert "result.json: damaged" in capsys.readouterr().out
    assert again.steps == result.steps
    assert (run_directory(cfg) / "result.json.corrupt").read_text() == "{"


def test_k_and_sfo_follow_from_the_trajectory(tiny):
    for rule in RuleName:
        cfg = tiny("stop.loss=1.3", f"stop.rule={rule}", f"seed={len(rule)}")
        result = run(cfg)
        stored = read_run(run_directory(cfg))
        blank = replace(result, steps=None, sfo=None, samples=None, loss=None, accuracy=None)
        recomputed = answer(blank, stored.trajectory, Request(1.3, rule, result.window))
        assert recomputed == result


def test_window_rule_counts_where_it_was_met_not_where_it_was_noticed(tiny):
    result = run(tiny("stop.loss=1.5", "stop.rule=window", "stop.window=600"))
    assert result.status is Status.REACHED
    assert result.steps_run % 2 == 0  # a chunk has two steps, after which it is noticed
    assert result.steps_run - 2 < result.steps <= result.steps_run


def test_a_threshold_is_noticed_within_an_epoch(tiny):
    """An epoch has 450 steps in four chunks."""
    request = ["batch_size=4", "stop.rule=window", "stop.window=100"]
    result = run(tiny(*request, "stop.loss=2.28"))
    assert result.status is Status.REACHED and result.steps_run == 128


def test_batch_larger_than_the_data_set(tiny):
    result = run(tiny("batch_size=65536", "stop.loss=2", "stop.max_epochs=60"))
    assert result.status is Status.REACHED
    assert (result.batch_size, result.effective_batch_size) == (65536, 1797)
    assert result.sfo == result.steps * 1797 == result.samples


def test_runs_are_bitwise_reproducible_and_seeds_matter(tiny, tmp_path):
    runs = []
    for index, seed in enumerate((0, 0, 1)):
        cfg = tiny("stop.max_epochs=2", f"seed={seed}", f"output_dir={tmp_path / str(index)}")
        run(cfg)
        runs.append(read_run(run_directory(cfg)).trajectory.loss)
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_slices_of_a_batch_are_recorded_and_change_little_without_batch_norm(tiny, capsys):
    whole = tiny("stop.max_epochs=1")
    sliced = tiny("stop.max_epochs=1", "micro_batch_size=100")
    run(whole)
    result = run(sliced)
    assert result.micro_batch_size == 100
    assert "BatchNorm" not in capsys.readouterr().out
    one, other = (read_run(run_directory(cfg)).trajectory for cfg in (whole, sliced))
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-4)


def test_slices_with_batch_norm_are_warned_about(tmp_path, capsys):
    from cbs_lightning.config.composition import compose

    run(compose([f"output_dir={tmp_path}", "stop.max_steps=1", "micro_batch_size=32"]))
    assert "BatchNorm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ("data=cifar10 model=resnet20_authors batch_size=32", 300),
        ("data=mnist model=resnet18 batch_size=16", 120),
    ],
)
def test_real_data_trains_with_falling_loss(real_data, tmp_path, overrides, steps):
    from cbs_lightning.config.composition import compose

    cfg = compose(
        [
            *overrides.split(),
            f"output_dir={tmp_path}",
            f"stop.max_steps={steps}",
            "stop.loss=1e-9",
            "threads=1",
        ]
    )
    result = run(cfg)
    loss = read_run(run_directory(cfg)).trajectory.loss
    assert len(loss) == steps
    assert loss[-50:].mean() < 0.8 * loss[:50].mean()
    assert result.test_accuracy is None, "no K, so no accuracy there"
    assert result.test_accuracy_at_end > 0.2


def test_under_slurm_no_other_runs_checkpoint_is_taken(tiny, tmp_path, monkeypatch):
    """Lightning keeps checkpoints of its own there, and begins every run from them."""
    cfg = tiny("stop.max_steps=4")
    run(cfg)
    monkeypatch.chdir(tmp_path)
    interrupted = tiny("stop.max_steps=4", "seed=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            run(interrupted)
    (run_directory(interrupted) / store.CHECKPOINT).rename(tmp_path / "hpc_ckpt_1.ckpt")
    for name, value in {"NTASKS": "1", "JOB_ID": "7", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    again = tiny("stop.max_steps=4", f"output_dir={tmp_path / 'slurm'}")
    run(again)
    one, other = (read_run(run_directory(c)).trajectory.loss for c in (cfg, again))
    assert np.array_equal(one, other)
