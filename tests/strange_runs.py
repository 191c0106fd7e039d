"""Runs of a stranger's module: overrides that name one, and an interruption after some steps."""

import os
import signal

import pytest

from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.config.identity import run_directory
from cbs_lightning.results.store import read_run
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run


def model(name, **settings):
    """The overrides for a class of `strangers`, or of `<file>.<class>` below tests."""
    return _target("model", name if "." in name else f"strangers.{name}", settings)


def data(name="Strange", **settings):
    return _target("data", name if "." in name else f"strange_data.{name}", settings)


def _target(group, name, settings):
    more = [f"+{group}.{key}={value}" for key, value in settings.items()]
    return [f"{group}._target_=tests.{name}", *more]


def losses_of(cfg):
    """Trains, if need be, and returns the loss of every step."""
    run(cfg)
    return read_run(run_directory(cfg)).trajectory.loss.tolist()


def interrupted_after(monkeypatch, cfg, steps):
    batch_end = TrajectoryRecorder.on_train_batch_end

    def on_train_batch_end(self, trainer, module, outputs, *rest):
        batch_end(self, trainer, module, outputs, *rest)
        if trainer.global_step >= steps:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrajectoryRecorder, "on_train_batch_end", on_train_batch_end)
        with pytest.raises(Interrupted):
            run(cfg)
