"""Reads a run's optimizer from the Trainer, also if the module configures its own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.optim import Optimizer

from cbs_lightning.optim.schedule_free import switches

PLAIN = (bool, int, float, str, type(None))


class OptimizerSettings(NamedTuple):
    """The learning rate and other settings of the first parameter group."""

    lr: float | None  # None: it has none
    hyperparameters: dict[str, Any]  # what JSON can hold of the rest

    @classmethod
    def of(cls, optimizer: Optimizer) -> "OptimizerSettings":
        group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        current = group.pop("lr", None)
        lr = group.pop("initial_lr", current)  # which a scheduler notes
        if switches(optimizer):  # it notes in its groups which weights are there
            settings = inspect.signature(type(optimizer)).parameters
            group = {key: value for key, value in group.items() if key in settings}
        return cls(float(lr) if lr is not None and float(lr) > 0 else None, plain_values(group))


def plain_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that JSON can hold, also in lists."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, tuple | list) and all(isinstance(item, PLAIN) for item in value):
            found[key] = list(value)
        elif isinstance(value, PLAIN):
            found[key] = value
    return found


class CheckOptimizer(L.Callback):
    """Refuses optimizers whose steps cannot be counted; passes the settings to `on_settings`."""

    def __init__(self, on_settings: Callable[[OptimizerSettings], None] | None = None) -> None:
        self.on_settings = on_settings

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        name, count = type(module).__name__, len(trainer.optimizers)
        if count != 1:
            raise MisconfigurationException(
                f"{name} has {count} optimizers; a step here is one update by one of them"
            )
        (optimizer,) = trainer.optimizers
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} needs several losses per step (a closure); choose an "
                "optimizer that needs a single loss"
            )
        if self.on_settings is not None:
            self.on_settings(OptimizerSettings.of(optimizer))
