"""Builds a run's DataModule from the configuration."""

import inspect

import lightning as L
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, UserError

GIVEN = ("batch_size", "seed", "data_dir")  # what a DataModule is told, if it takes it

_fingerprints: dict[tuple[str, str], str] = {}  # by settings and data_dir: reading data takes time


def build_datamodule(cfg: RunConfig) -> L.LightningDataModule:
    values = {"batch_size": cfg.batch_size, "seed": cfg.seed, "data_dir": cfg.data_dir}
    taken = {key: values[key] for key in taken_by(get_object(cfg.data["_target_"]))}
    settings = {"_convert_": "all", **cfg.data}
    try:
        found: L.LightningDataModule = instantiate(settings, **taken)
    except InstantiationException as error:
        raise mistake(cfg.names.data, "data", error) from error
    return found


def taken_by(datamodule: type) -> list[str]:
    """The given arguments that its constructor names; with **kwargs, also the batch size."""
    parameters = inspect.signature(datamodule).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    also = GIVEN if issubclass(datamodule, ImageDataModule) else ("batch_size",)
    return [key for key in GIVEN if key in parameters or (anything and key in also)]


def mistake(name: str, group: str, error: InstantiationException) -> UserError:
    """The error of a user's class when it was built, or of this project's check."""
    cause = error.__cause__ or error
    if isinstance(cause, UserError):
        return cause
    reason = " ".join(str(cause).split())
    return ConfigError(group, name, f"{type(cause).__name__}: {reason}")


def fingerprint(cfg: RunConfig) -> str | None:
    """What distinguishes the data from other data of the same name; None if the class has no such
    attribute.

    Read from a DataModule that was built but not set up.
    """
    try:
        target = get_object(str(cfg.data.get("_target_")))
    except Exception:  # whatever a class that cannot be imported raises; `check` tells of it
        return None
    is_data = inspect.isclass(target) and issubclass(target, L.LightningDataModule)
    if not is_data or not hasattr(target, "fingerprint"):
        return None
    key = str(sorted(cfg.data.items())), cfg.data_dir
    if key not in _fingerprints:
        found = build_datamodule(cfg).fingerprint  # type: ignore[attr-defined]
        if not isinstance(found, str):
            reason = f"its fingerprint is {found!r}; it must be a string"
            raise ConfigError("data", cfg.names.data, reason)
        _fingerprints[key] = found
    return _fingerprints[key]
