"""Writes a run's loss and accuracy for TensorBoard, by step and by SFO."""

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from cbs_lightning.callbacks.recorder import TrajectoryRecorder


class LogCurves(L.Callback):
    """After every epoch, at most `points_per_epoch` points, each the mean over its steps."""

    def __init__(
        self, recorder: TrajectoryRecorder, points_per_epoch: int, effective_batch_size: int
    ) -> None:
        self.recorder = recorder
        self.points_per_epoch = points_per_epoch
        self.effective_batch_size = effective_batch_size
        self._steps_logged = 0

    def on_train_start(self, *_: object) -> None:
        self._steps_logged = len(self.recorder.trajectory)  # a resumed run has logged those

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(trainer.logger, TensorBoardLogger)
        trajectory = self.recorder.trajectory
        steps = np.arange(self._steps_logged, len(trajectory))
        for part in np.array_split(steps, min(self.points_per_epoch, max(1, len(steps)))):
            if not len(part):
                continue
            step = int(part[-1]) + 1
            span = trajectory[part[0] : step]
            values = {
                "loss": float(np.average(span.loss, weights=span.size)),
                "accuracy": float(span.correct.sum() / span.size.sum()),
            }
            for axis, position in (("step", step), ("sfo", step * self.effective_batch_size)):
                trainer.logger.log_metrics(
                    {f"{name}/by_{axis}": value for name, value in values.items()}, position
                )
        self._steps_logged = len(trajectory)
