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


def schedules_of(trainer: L.Trainer) -> list[dict[str, Any]]:
    """The learning-rate schedulers, with what JSON can hold of their settings."""
    return [
        {
            "name": type(config.scheduler).__name__,
            "interval": config.interval,
            "frequency": config.frequency,
            **{
                key: value
                for key, value in plain_values(config.scheduler.state_dict()).items()
                if not key.startswith("_")
            },
        }
        for config in trainer.lr_scheduler_configs
    ]


def require_steps(trainer: L.Trainer, module: L.LightningModule) -> None:
    """Raise unless every optimizer makes a step of one gradient, so that steps can be counted."""
    for optimizer in trainer.optimizers:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} needs several losses per step (a closure); choose an "
                "optimizer that needs a single loss"
            )
    if not any(each.param_groups for each in trainer.optimizers):
        raise MisconfigurationException(
            f"{type(module).__name__}.configure_optimizers returns no optimizer, so there are no "
            "steps to count"
        )


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
        require_steps(trainer, module)
        if self.on_settings is not None:
            self.on_settings(OptimizerSettings.of(trainer.optimizers[0]))
