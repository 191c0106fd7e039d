"""What needs torch to be checked: the trainer, and the groups that are instantiated."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from hydra.utils import get_object, instantiate

from cbs_lightning.config.constraints import Flag, OneOf, Positive, is_fraction, is_number, one_of
from cbs_lightning.config.schema import RunConfig, Settings
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, require
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import CUDA_GRAPHS, MODES, obstacle
from cbs_lightning.models.torchvision_net import TorchvisionNet, classifier_names
from cbs_lightning.optim.learning_rate import Scaling

GPUS: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
}
ACCELERATORS = ("auto", "cpu", "gpu", *GPUS)
PROFILERS = ("simple", "advanced", "pytorch")
PRECISIONS = ("32-true", "bf16-mixed")
TRAINER_KEYS = {"accelerator", "devices", "precision", "deterministic", "benchmark", "profiler"}
GIVEN_BY_RUN = {  # parameters that a run fills in from other keys
    "data": {"data_dir", "batch_size", "seed"},
    "model": {"in_channels", "num_classes", "optimizer", "micro_batch_size", "warmup_samples"},
    "optimizer": {"params"},
}
HYDRAS = {"_target_", "_partial_", "_recursive_", "_convert_"}  # of what it instantiates
CONVERSIONS = ("none", "partial", "object", "all")
BASES = {"data": ImageDataModule, "model": Classifier, "optimizer": torch.optim.Optimizer}


def check(cfg: RunConfig, *, here: bool = True) -> None:
    """Raise `ConfigError` for the first value that cannot be; `here`: on this very machine."""
    # A sweep has made of it the runs with each learning rate before they are checked.
    allowed = "needs a sweep over a grid, with -m; allowed here: linear, none, sqrt"
    require(cfg.lr_scaling is not Scaling.TUNED, "lr_scaling", cfg.lr_scaling, allowed)
    _check_trainer(cfg.trainer, here)
    if cfg.compile is not None:
        _check_compile(cfg, here)
    for group, settings in (("data", cfg.data), ("model", cfg.model), ("optimizer", cfg.optimizer)):
        _check_arguments(group, settings)
    _check_optimizer(cfg.optimizer, cfg.names.optimizer)
    if "name" in cfg.model and get_object(cfg.model["_target_"]) is TorchvisionNet:
        OneOf(classifier_names()).check("model.name", cfg.model["name"])
    for key in ("normalize", "augment", "replacement"):
        Flag().check(f"data.{key}", cfg.data.get(key, False))


def _check_trainer(trainer: Settings, here: bool) -> None:
    for key in ("max_epochs", "max_steps"):
        require(key not in trainer, f"trainer.{key}", trainer.get(key), f"set stop.{key} instead")
    _check_keys("trainer", trainer, TRAINER_KEYS)
    accelerator, allowed = trainer.get("accelerator"), one_of(ACCELERATORS)
    require(accelerator in ACCELERATORS, "trainer.accelerator", accelerator, allowed)
    needed = {"gpu": list(GPUS), "cuda": ["cuda"], "mps": ["mps"]}.get(str(accelerator), [])
    present = not (here and needed) or any(GPUS[name]() for name in needed)
    require(present, "trainer.accelerator", accelerator, "there is none here; allowed: auto, cpu")
    devices, precision = trainer.get("devices"), trainer.get("precision")
    require(devices == 1 and type(devices) is int, "trainer.devices", devices, "a run has 1 device")
    require(precision in PRECISIONS, "trainer.precision", precision, one_of(PRECISIONS))
    profiler = trainer.get("profiler")
    require(profiler in (None, *PROFILERS), "trainer.profiler", profiler, one_of(PROFILERS))
    benchmark = trainer.get("benchmark")
    valid = benchmark is None or isinstance(benchmark, bool)
    require(valid, "trainer.benchmark", benchmark, "must be true or false")
    deterministic = trainer.get("deterministic", False)
    valid = isinstance(deterministic, bool) or deterministic == "warn"
    require(valid, "trainer.deterministic", deterministic, "allowed: true, false, warn")


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


def device_type(accelerator: str) -> str:
    """Of the device that Lightning takes for it here."""
    if accelerator in ("auto", "gpu"):
        return next((name for name, is_here in GPUS.items() if is_here()), "cpu")
    return accelerator


def _check_optimizer(optimizer: Settings, name: str) -> None:
    Positive().check("optimizer.lr", optimizer.get("lr"))
    in_range = "must be in [0, 1)"
    if "momentum" in optimizer:
        momentum = optimizer["momentum"]
        require(is_fraction(momentum), "optimizer.momentum", momentum, in_range)
    if "betas" in optimizer:
        betas = optimizer["betas"]
        valid = isinstance(betas, list) and len(betas) == 2 and all(map(is_fraction, betas))
        require(valid, "optimizer.betas", betas, f"two numbers, each {in_range}")
    for key in ("weight_decay", "eps"):
        if key in optimizer:
            value, allowed = optimizer[key], "must be a number >= 0"
            require(is_number(value) and value >= 0, f"optimizer.{key}", value, allowed)
    for key in ("fused", "foreach", "amsgrad", "nesterov", "maximize"):
        value = optimizer.get(key)
        valid = value is None or isinstance(value, bool)
        require(valid, f"optimizer.{key}", value, "must be true or false")
    _check_numbers(optimizer)
    try:
        made = instantiate(optimizer)([torch.nn.Parameter(torch.zeros(1))])
    except Exception as error:  # whatever an optimizer's own checks raise is the user's to mend
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("optimizer", name, reason) from error
    # A step to try it would open the GPU, in a process that may be a sweep's.
    closure = inspect.signature(made.step).parameters.get("closure")
    once = closure is None or closure.default is not inspect.Parameter.empty
    require(once, "optimizer", name, "needs several losses a step; here a step is one batch")
    dense = not isinstance(made, torch.optim.SparseAdam)
    require(dense, "optimizer", name, "needs sparse gradients; those of nets here are dense")


def _check_numbers(optimizer: Settings) -> None:
    """What an optimizer has a number for must be one, which not every optimizer checks."""
    for name, parameter in inspect.signature(get_object(optimizer["_target_"])).parameters.items():
        default = parameter.default
        if name in optimizer and isinstance(default, int | float) and not isinstance(default, bool):
            value = optimizer[name]
            require(is_number(value), f"optimizer.{name}", value, "must be a number")


def _check_arguments(group: str, settings: Settings) -> None:
    """The keys of a group must be parameters of what it builds."""
    key, target = f"{group}._target_", settings.get("_target_")
    try:
        built = get_object(str(target))
    except Exception as error:
        raise ConfigError(key, target, "cannot be imported") from error
    base = BASES[group]
    valid = inspect.isclass(built) and issubclass(built, base)
    require(valid, key, target, f"must be a class derived from {base.__name__}")
    parameters = inspect.signature(built).parameters
    allowed = set(parameters) - GIVEN_BY_RUN[group]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        named = {key for key in settings if not str(key).startswith("_")}
        allowed |= named - GIVEN_BY_RUN[group]
    _check_keys(group, settings, allowed | HYDRAS)
    _check_hydras(group, settings)


def _check_hydras(group: str, settings: Settings) -> None:
    """How it is built: an optimizer once there are parameters, everything else at once."""
    later = group == "optimizer"
    value, allowed = settings.get("_partial_", False), str(later).lower()
    require(value is later, f"{group}._partial_", value, f"must be {allowed}")
    if "_recursive_" in settings:
        Flag().check(f"{group}._recursive_", settings["_recursive_"])
    if "_convert_" in settings:
        OneOf(CONVERSIONS).check(f"{group}._convert_", settings["_convert_"])


def _check_keys(group: str, settings: Settings, allowed: set[Any]) -> None:
    for key in settings:
        require(key in allowed, f"{group}.{key!s}", settings[key], one_of(allowed - HYDRAS))
