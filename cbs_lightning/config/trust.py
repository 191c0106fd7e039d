"""What a stored configuration may build, because it may come from somebody else."""

from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
from hydra.utils import get_object
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cbs_lightning.config.schema import Settings
from cbs_lightning.errors import ConfigError
from cbs_lightning.optim.schedules import Schedule

PACKAGES = ("cbs_lightning", "torch", "torchvision", "lightning", "torchmetrics")
# These packages also hold functions and classes that run programs or load code.
HARMLESS = (nn.Module, Optimizer, LRScheduler, L.LightningDataModule, Schedule)
OUTERMOST = tuple(f"{group}._target_" for group in ("data", "model", "optimizer", "scheduler"))
# Of what is inside others' arguments: some modules download what they are made of.
PLAIN_MODULES = "torch.nn.modules."


def check_targets(values: Settings, trusted: Sequence[str]) -> None:
    """Raise `ConfigError` for the first `_target_` that is neither harmless nor trusted."""
    for key, target in _targets(values, ""):
        package = str(target).partition(".")[0]
        if package in trusted:
            continue
        if package not in PACKAGES:
            allowed = f"{', '.join(PACKAGES)}, and what trusted_packages=[...] names"
            raise ConfigError(key, target, f"a stored configuration may only use {allowed}")
        if not _is_harmless(str(target)):
            allowed = "modules, optimizers, schedulers and data modules"
            raise ConfigError(key, target, f"of {package}, only {allowed} are allowed")
        if key not in OUTERMOST and not _is_plain_module(str(target)):
            raise ConfigError(key, target, "inside arguments, only modules of torch.nn are allowed")


def _targets(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "_target_":
                yield f"{prefix}{key}", inner
            yield from _targets(inner, f"{prefix}{key}.")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _targets(inner, f"{prefix}{index}.")


def _is_plain_module(target: str) -> bool:
    return str(get_object(target).__module__).startswith(PLAIN_MODULES)


def _is_harmless(target: str) -> bool:
    try:
        found = get_object(target)
    except Exception:  # whatever an import raises
        return False
    if not isinstance(found, type) or not issubclass(found, HARMLESS):
        return False
    return found.__module__.partition(".")[0] in PACKAGES  # torch.os.system is not torch's
