"""Writes a run's loss and accuracy for TensorBoard, by step and by SFO."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.events import EventWriter, event_path, event_paths

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
        for path in event_paths(self.directory, SUFFIX):
            path.unlink()
        self._file = event_path(self.directory, SUFFIX).open("wb")
        self._events = EventWriter(self._file)
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
                self._events.scalar(f"{name}/by_step", value, step)
                self._events.scalar(f"{name}/by_sfo", value, step * self.effective_batch_size)
        self._file.flush()
        self._steps_logged = len(trajectory)

    def on_train_end(self, *_: Any) -> None:
        self._file.close()

    def on_exception(self, *_: Any) -> None:
        if hasattr(self, "_file"):
            with suppress(OSError):  # a disk that fails has been told of already
                self._file.close()
