"""Has optimizers such as the schedule-free ones show the weights to evaluate, and train others."""

from typing import Any

import lightning as L

from cbs_lightning.optim.schedule_free import set_training


class SwitchWeights(L.Callback):
    """Calls `train` of the optimizers that have it and `eval` where training starts and where
    evaluation ends, and `eval` where evaluation starts. So checkpoints hold what is trained.
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
