"""Checks that need torch: the Trainer, and the groups that are instantiated."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from hydra.utils import get_object

from cbs_lightning.config.constraints import Flag, OneOf, one_of
from cbs_lightning.config.datamodule import taken_by
from cbs_lightning.config.extensions import check_extensions, import_target
from cbs_lightning.config.identity import OWN
from cbs_lightning.config.optimizer_checks import check_optimizer
from cbs_lightning.config.plain_checks import check_plainly
from cbs_lightning.config.schema import AUTO, RunConfig, Settings
from cbs_lightning.config.trainer_flags import check_trainer
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, did_you_mean, require
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import obstacle
from cbs_lightning.models.torchvision_net import TorchvisionNet, classifier_names
from cbs_lightning.optim.groups import KEY
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.optim.packages import require_package

GPUS: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
}
GIVEN_BY_RUN = {  # parameters that a run fills in from other keys
    "data": {"data_dir", "batch_size", "seed"},
    "model": {
        "in_channels", "num_classes", "image_size", "optimizer", "micro_batch_size",
        "rate_schedule",
    },
    "optimizer": {"params"},
}  # fmt: skip
HYDRAS = {"_target_", "_partial_", "_recursive_", "_convert_"}  # of what it instantiates
ANYTHING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
CONVERSIONS = ("none", "partial", "object", "all")
BASES = {
    "data": L.LightningDataModule,
    "model": L.LightningModule,
    "optimizer": torch.optim.Optimizer,
}


def check(cfg: RunConfig, *, here: bool = True) -> None:
    """Raise `ConfigError` for the first invalid value; `here` means on this very machine."""
    # A sweep has made of it the runs with each learning rate before they are checked.
    allowed = "needs a sweep, with -m; allowed here: linear, none, sqrt"
    require(cfg.lr_scaling is not Scaling.TUNED, "lr_scaling", cfg.lr_scaling, allowed)
    check_plainly(cfg)
    if here:
        check_trainer(cfg.trainer, lambda kind: kind in GPUS and GPUS[kind]())
        _check_compile(cfg)
    for group, settings in (("data", cfg.data), ("model", cfg.model)):
        _check_arguments(group, settings)
    if cfg.names.optimizer == OWN:
        _check_own_optimizer(cfg)
    else:
        require_package(cfg.optimizer, cfg.names.optimizer)
        _check_arguments("optimizer", cfg.optimizer)
        check_optimizer(cfg.optimizer, cfg.names.optimizer)
        cfg.rules.check(cfg.names.optimizer, cfg.optimizer)
    _check_strangers(cfg)
    check_extensions(cfg)
    if "name" in cfg.model and get_object(cfg.model["_target_"]) is TorchvisionNet:
        OneOf(classifier_names()).check("model.name", cfg.model["name"])


def check_all(configs: Iterable[RunConfig], *, here: bool = True) -> None:
    """Check a sweep's jobs; those that differ only in batch size and seed are checked once, since
    nothing that is checked depends on these."""
    kinds: dict[str, RunConfig] = {}
    for cfg in configs:
        kinds.setdefault(repr(replace(cfg, batch_size=1, seed=0)), cfg)
    for cfg in kinds.values():
        check(cfg, here=here)


def _check_compile(cfg: RunConfig) -> None:
    mode, accelerator = cfg.compile, cfg.trainer["accelerator"]
    if mode is not None and (reason := obstacle(mode, device_type(accelerator))) is not None:
        raise ConfigError("compile", mode, reason)


def _check_own_optimizer(cfg: RunConfig) -> None:
    """Refuse keys that rescale an optimizer: they would not reach the module's own."""
    optimizer = f"optimizer={OWN}"
    require(not cfg.optimizer, "optimizer", cfg.optimizer, f"{optimizer} has no keys here")
    model = get_object(cfg.model["_target_"])
    base = Classifier if issubclass(model, Classifier) else L.LightningModule
    configures = model.configure_optimizers is not base.configure_optimizers
    allowed = f"{cfg.names.model} does not override configure_optimizers; choose an optimizer"
    require(configures, "optimizer", OWN, allowed)
    allowed = f"not with {optimizer}, whose settings are its own; allowed with it"
    for key in ("lr_scaling", "scaling_rule", "weight_decay_scaling"):
        require((rule := getattr(cfg, key)) == "none", key, rule, f"{allowed}: none")
    require(not cfg.warmup_samples, "warmup_samples", cfg.warmup_samples, f"{allowed}: 0")


def _check_strangers(cfg: RunConfig) -> None:
    """Refuse what works only with this project's models and data."""
    model, data = (get_object(settings["_target_"]) for settings in (cfg.model, cfg.data))
    if issubclass(model, Classifier):
        reason = f"{cfg.names.model} needs images: data from a class derived from ImageDataModule"
        require(issubclass(data, ImageDataModule), "data", cfg.names.data, reason)
        return
    allowed = "only for this project's classifiers; allowed here"
    slices = cfg.micro_batch_size
    require(slices != AUTO, "micro_batch_size", slices, f"{allowed}: null or a number")
    require(cfg.compile is None, "compile", cfg.compile, f"{allowed}: null")
    allowed = "its constructor must take batch_size, for its DataLoader"
    require("batch_size" in taken_by(data), "data._target_", cfg.data["_target_"], allowed)


def device_type(accelerator: str) -> str:
    """The type of the device that Lightning uses here."""
    if accelerator in ("auto", "gpu"):
        return next((name for name, is_here in GPUS.items() if is_here()), "cpu")
    return accelerator


def _check_arguments(group: str, settings: Settings) -> None:
    """The keys of a group must be parameters of the class that it builds."""
    key, target = f"{group}._target_", settings.get("_target_")
    built = import_target(group, target)
    base = BASES[group]
    valid = inspect.isclass(built) and issubclass(built, base)
    require(valid, key, target, f"must be a class derived from {base.__name__}")
    allowed = allowed_settings(group, built, settings)
    for name in settings:
        meant = did_you_mean(str(name), allowed, f"{group}.{{}}")
        none = f"{built.__name__} has no settings"
        reason = f"{built.__name__} has no such setting; {meant}{one_of(allowed)}"
        valid = name in allowed or name in HYDRAS
        require(valid, f"{group}.{name!s}", settings[name], reason if allowed else none)
    _check_hydras(group, settings)


def allowed_settings(group: str, built: Any, asked: Iterable[Any]) -> set[Any]:
    """The keys of a group that its class takes; with **kwargs, also any that is asked for."""
    kinds = {name: each.kind for name, each in inspect.signature(built).parameters.items()}
    allowed: set[Any] = {name for name, kind in kinds.items() if kind not in ANYTHING}
    if group == "optimizer":
        allowed.add(KEY)
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        allowed |= {key for key in asked if not str(key).startswith("_")}
    if group != "model" or issubclass(built, Classifier):
        allowed -= GIVEN_BY_RUN.get(group, set())  # a stranger's model has its own settings alone
    return allowed


def _check_hydras(group: str, settings: Settings) -> None:
    """Check `_partial_`: an optimizer is built later, once there are parameters."""
    later = group == "optimizer"
    value, allowed = settings.get("_partial_", False), str(later).lower()
    missing = "; write the line _partial_: true in its file" if later else ""
    require(value is later, f"{group}._partial_", value, f"must be {allowed}{missing}")
    if "_recursive_" in settings:
        Flag().check(f"{group}._recursive_", settings["_recursive_"])
    if "_convert_" in settings:
        OneOf(CONVERSIONS).check(f"{group}._convert_", settings["_convert_"])
