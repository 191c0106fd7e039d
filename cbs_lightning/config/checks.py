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
from cbs_lightning.config.packages import require_package
from cbs_lightning.config.schema import AUTO, RunConfig, Settings
from cbs_lightning.config.trainer_flags import check_trainer
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, did_you_mean, require
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import CUDA_GRAPHS, MODES, obstacle
from cbs_lightning.models.torchvision_net import TorchvisionNet, classifier_names
from cbs_lightning.noise.theorem import INSTEAD, OPTIMIZERS
from cbs_lightning.optim.groups import KEY
from cbs_lightning.optim.learning_rate import Scaling

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
    check_trainer(cfg.trainer, (lambda kind: kind in GPUS and GPUS[kind]()) if here else None)
    _check_noise(cfg)
    if cfg.compile is not None:
        _check_compile(cfg, here)
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
    for key in ("normalize", "augment", "replacement"):
        Flag().check(f"data.{key}", cfg.data.get(key, False))


def check_all(configs: Iterable[RunConfig], *, here: bool = True) -> None:
    """Check a sweep's jobs; those that differ only in batch size and seed are checked once, since
    nothing that is checked depends on these."""
    kinds: dict[str, RunConfig] = {}
    for cfg in configs:
        kinds.setdefault(repr(replace(cfg, batch_size=1, seed=0)), cfg)
    for cfg in kinds.values():
        check(cfg, here=here)


def _check_compile(cfg: RunConfig, here: bool) -> None:
    mode = str(cfg.compile)
    require(cfg.compile in MODES, "compile", cfg.compile, one_of(("null", *MODES)))
    allowed = "not with activation_checkpointing=true; allowed with it: null"
    require(not cfg.activation_checkpointing, "compile", mode, allowed)
    # Adding to a gradient that a CUDA graph wrote adds to what the next replay overwrites.
    allowed = "not with micro_batch_size; allowed with it: null, default"
    sliced = cfg.micro_batch_size is not None
    require(mode != CUDA_GRAPHS or not sliced, "compile", mode, allowed)
    if here and (reason := obstacle(mode, device_type(cfg.trainer["accelerator"]))) is not None:
        raise ConfigError("compile", mode, reason)


def _check_noise(cfg: RunConfig) -> None:
    noise = cfg.noise
    if not noise.probes:
        for key in ("branches", "theorem"):
            allowed = "needs probes: set noise.probes to how many; allowed without: false"
            require(not getattr(noise, key), f"noise.{key}", True, allowed)
        return
    # What a CUDA graph has recorded, a probe's batches of another size would replace.
    allowed = "not with compile=reduce-overhead; allowed with it: 0"
    require(cfg.compile != CUDA_GRAPHS, "noise.probes", noise.probes, allowed)
    allowed = "one is along the step, the others along noise; allowed: 0, or at least 2"
    require(noise.products != 1, "noise.products", noise.products, allowed)
    if noise.batch_size is not None:
        allowed = f"at most half of noise.samples={noise.samples}: two batches are needed"
        fits = 2 * noise.batch_size <= noise.samples
        require(fits, "noise.batch_size", noise.batch_size, allowed)
    if noise.theorem:
        _check_theorem(cfg)


def _check_theorem(cfg: RunConfig) -> None:
    """Theorem 3.1 covers three optimizers, with a constant learning rate."""
    key, name, names = "noise.theorem", cfg.names.optimizer, ", ".join(OPTIMIZERS)
    allowed = f"Theorem 3.1 is about other steps than those of optimizer={name}"
    if name in INSTEAD:
        other, why = INSTEAD[name]
        allowed += f" ({why}: try {other})"
    require(name in OPTIMIZERS, key, True, f"{allowed}; allowed: {names}")
    decay = cfg.optimizer.get("weight_decay", 0)
    require(not decay, key, True, f"it allows no weight decay: optimizer.weight_decay={decay}")
    require(KEY not in cfg.optimizer, key, True, "it allows no parameter groups: optimizer.groups")
    constant = cfg.names.scheduler == "constant" and not cfg.warmup_samples
    require(constant, key, True, "needs a constant learning rate: scheduler=constant, no warm-up")


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
        reason = f"{cfg.names.model} needs images, as an ImageDataModule of this project's has them"
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
    parameters = inspect.signature(built).parameters
    allowed = set(parameters) | ({KEY} if group == "optimizer" else set())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        allowed |= {key for key in settings if not str(key).startswith("_")}
    if group != "model" or issubclass(built, Classifier):
        allowed -= GIVEN_BY_RUN[group]  # a stranger's model is built of its own settings alone
    _check_keys(group, settings, allowed | HYDRAS, built.__name__)
    _check_hydras(group, settings)


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


def _check_keys(group: str, settings: Settings, allowed: set[Any], built: str) -> None:
    for key in settings:
        meant = did_you_mean(str(key), allowed - HYDRAS, f"{group}.{{}}")
        reason = f"{built} has no such setting; {meant}{one_of(allowed - HYDRAS)}"
        require(key in allowed, f"{group}.{key!s}", settings[key], reason)
