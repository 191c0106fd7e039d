"""Lets optimizers such as the schedule-free ones evaluate other weights than those they train."""

from typing import Any

import lightning as L

from cbs_lightning.optim.schedule_free import set_training


class SwitchWeights(L.Callback):
    """Calls the optimizer's `eval` before evaluation and its `train` before training.

    Optimizers without these methods are left alone. Checkpoints contain the weights that are
    trained.
    """

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        _set(trainer, training=True)

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        _set(trainer, training=False)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        _set(trainer, training=True)

    def on_test_start(self, trainer: L.Trainer, *_: Any) -> None:
        _set(trainer, training=False)

    def on_test_end(self, trainer: L.Trainer, *_: Any) -> None:
        _set(trainer, training=True)


def _set(trainer: L.Trainer, *, training: bool) -> None:
    for optimizer in trainer.optimizers:
        set_training(optimizer, training)
