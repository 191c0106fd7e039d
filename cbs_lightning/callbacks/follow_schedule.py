"""Applies warm-up and schedule to the learning rate of each step, in Lightning's own loop."""

from typing import Any

import lightning as L
from torch.optim import Optimizer

from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.optim.learning_rate import RateSchedule, rates_of, set_rates


class FollowSchedule(L.Callback):
    """Multiplies the optimizer's rates for one step, and restores them after it.

    The factor depends only on the samples seen so far, so a resumed run continues exactly.
    """

    def __init__(self, rates: RateSchedule, recorder: TrajectoryRecorder) -> None:
        self.rates = rates
        self.recorder = recorder
        self._seen = 0  # samples of the steps so far
        self._size = 0  # of this step
        self._before: list[float] | None = None

    def on_train_start(self, *_: Any) -> None:
        self._seen = int(self.recorder.trajectory.size.sum())

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._size += self.recorder.samples_of(trainer, batch, batch_idx)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        self._before = rates_of(optimizer)
        set_rates(optimizer, self._before, self.rates.factor(self._seen, self._size))

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self._before is not None:
            set_rates(trainer.optimizers[0], self._before)
            self._seen, self._size, self._before = self._seen + self._size, 0, None
