"""Writes a run's loss and accuracy for TensorBoard, by step and by SFO."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch.utils.tensorboard import SummaryWriter

from cbs_lightning.callbacks.recorder import TrajectoryRecorder

SUFFIX = ".curves"


class LogCurves(L.Callback):
    """After every epoch, at most `points_per_epoch` points, each the mean over its steps.

    The curves of a run that goes on, or starts anew, are written again from its first step.
    """

    def __init__(
        self,
        directory: Path,
        recorder: TrajectoryRecorder,
        points_per_epoch: int,
        steps_per_epoch: int,
        effective_batch_size: int,
    ) -> None:
        self.directory = directory
        self.recorder = recorder
        self.steps_per_point = -(-steps_per_epoch // points_per_epoch)
        self.effective_batch_size = effective_batch_size
        self._steps_logged = 0

    def on_train_start(self, *_: Any) -> None:
        for path in self.directory.glob(f"events.out.tfevents.*{SUFFIX}"):
            path.unlink()
        self._writer = SummaryWriter(str(self.directory), filename_suffix=SUFFIX)
        self._steps_logged = 0

    def on_train_epoch_end(self, *_: Any) -> None:
        trajectory = self.recorder.trajectory
        for start in range(self._steps_logged, len(trajectory), self.steps_per_point):
            span = trajectory[start : start + self.steps_per_point]
            step = start + len(span)
            values = {
                "loss": float(np.average(span.loss, weights=span.size)),
                "accuracy": float(span.correct.sum() / span.size.sum()),
            }
            for name, value in values.items():
                self._writer.add_scalar(f"{name}/by_step", value, step)
                self._writer.add_scalar(f"{name}/by_sfo", value, step * self.effective_batch_size)
        self._steps_logged = len(trajectory)

    def on_train_end(self, *_: Any) -> None:
        self._writer.close()

    def on_exception(self, *_: Any) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()
