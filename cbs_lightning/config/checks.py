"""Values of a configuration that cannot be, found before anything is done with them."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config.schema import AUTO
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import CUDA_GRAPHS, MODES, obstacle
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results.trajectory import RuleName

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
BASES = {"data": ImageDataModule, "model": Classifier, "optimizer": torch.optim.Optimizer}


def check(cfg: DictConfig, *, here: bool = True) -> None:
    """Raise `ConfigError` for the first value that cannot be; `here`: on this very machine."""
    _check_whole_number("batch_size", cfg.batch_size, 1)
    _check_whole_number("seed", cfg.seed, 0, most=2**32 - 1)
    if cfg.threads is not None:
        _check_whole_number("threads", cfg.threads, 1, " or null")
    if cfg.jobs != AUTO:
        _check_whole_number("jobs", cfg.jobs, 1, " or auto")
    _check_whole_number("jobs_per_gpu", cfg.jobs_per_gpu, 1)
    if cfg.micro_batch_size not in (None, AUTO):
        _check_whole_number("micro_batch_size", cfg.micro_batch_size, 1, ", null or auto")
    for key in ("activation_checkpointing", "checkpoint.keep", "report"):
        value = OmegaConf.select(cfg, key)
        _require(isinstance(value, bool), key, value, "must be true or false")
    for key in ("checkpoint.every_seconds", "progress.every_seconds"):
        _check_positive(key, OmegaConf.select(cfg, key))
    _check_whole_number("tensorboard.points", cfg.tensorboard.points, 2)
    for key in ("output_dir", "data_dir"):
        _require(isinstance(cfg[key], str) and cfg[key] != "", key, cfg[key], "must be a path")
    trusted = cfg.trusted_packages
    valid = OmegaConf.is_list(trusted) and all(isinstance(name, str) for name in trusted)
    _require(valid, "trusted_packages", trusted, "must be a list of packages' names")
    _require(
        re.fullmatch(r"[\w.+=-]*\w[\w.+=-]*", cfg.study) is not None,
        "study",
        cfg.study,
        "must be a folder's name: letters, digits and . _ + = -",
    )
    _check_learning_rate(cfg)
    _check_stop(cfg.stop)
    _check_trainer(cfg.trainer, here)
    if cfg.compile is not None:
        _check_compile(cfg, here)
    for group in GIVEN_BY_RUN:
        _check_arguments(group, cfg[group])
    _check_optimizer(cfg.optimizer, cfg.names.optimizer)
    for key in ("normalize", "augment", "replacement"):
        value = cfg.data.get(key, False)
        _require(isinstance(value, bool), f"data.{key}", value, "must be true or false")


def _check_learning_rate(cfg: DictConfig) -> None:
    scaling, factors = cfg.lr_scaling, cfg.lr_tuning
    _require(scaling in list(Scaling), "lr_scaling", scaling, _one_of(Scaling))
    _check_whole_number("lr_reference_batch_size", cfg.lr_reference_batch_size, 1)
    _check_whole_number("warmup_samples", cfg.warmup_samples, 0)
    valid = OmegaConf.is_list(factors) and all(_is_number(each) and each > 0 for each in factors)
    allowed = "must be a list of at least two different numbers > 0, such as [0.3,1,3]"
    _require(valid and len(set(factors)) > 1, "lr_tuning", factors, allowed)
    # A sweep has made of it the runs with each learning rate before they are checked.
    allowed = "needs a sweep over a grid, with -m; allowed here: linear, none, sqrt"
    _require(scaling != Scaling.TUNED, "lr_scaling", scaling, allowed)


def _check_stop(stop: DictConfig) -> None:
    _check_positive("stop.loss", stop.loss)
    _require(stop.rule in list(RuleName), "stop.rule", stop.rule, _one_of(RuleName))
    for key in ("window", "max_epochs", "max_steps"):
        if stop[key] is not None:
            _check_whole_number(f"stop.{key}", stop[key], 1, " or null")
    _require(
        stop.max_epochs is not None or stop.max_steps is not None,
        "stop.max_epochs",
        None,
        "a budget is needed: set stop.max_epochs or stop.max_steps to a whole number >= 1",
    )


def _check_trainer(trainer: DictConfig, here: bool) -> None:
    for key in ("max_epochs", "max_steps"):
        _require(key not in trainer, f"trainer.{key}", trainer.get(key), f"set stop.{key} instead")
    _check_keys("trainer", trainer, TRAINER_KEYS)
    accelerator, allowed = trainer.get("accelerator"), _one_of(ACCELERATORS)
    _require(accelerator in ACCELERATORS, "trainer.accelerator", accelerator, allowed)
    needed = {"gpu": list(GPUS), "cuda": ["cuda"], "mps": ["mps"]}.get(accelerator, [])
    present = not (here and needed) or any(GPUS[name]() for name in needed)
    _require(present, "trainer.accelerator", accelerator, "there is none here; allowed: auto, cpu")
    devices, precision = trainer.get("devices"), trainer.get("precision")
    _require(devices == 1, "trainer.devices", devices, "a run has 1 device")
    _require(precision in PRECISIONS, "trainer.precision", precision, _one_of(PRECISIONS))
    profiler = trainer.get("profiler")
    _require(profiler in (None, *PROFILERS), "trainer.profiler", profiler, _one_of(PROFILERS))
    benchmark = trainer.get("benchmark")
    valid = benchmark is None or isinstance(benchmark, bool)
    _require(valid, "trainer.benchmark", benchmark, "must be true or false")
    deterministic = trainer.get("deterministic", False)
    valid = deterministic in (True, False, "warn")
    _require(valid, "trainer.deterministic", deterministic, "allowed: true, false, warn")


def _check_compile(cfg: DictConfig, here: bool) -> None:
    mode = cfg.compile
    _require(mode in MODES, "compile", mode, _one_of(("null", *MODES)))
    allowed = "not with activation_checkpointing=true; allowed with it: null"
    _require(not cfg.activation_checkpointing, "compile", mode, allowed)
    # Adding to a gradient that a CUDA graph wrote adds to what the next replay overwrites.
    allowed = "not with micro_batch_size; allowed with it: null, default"
    sliced = cfg.micro_batch_size is not None
    _require(mode != CUDA_GRAPHS or not sliced, "compile", mode, allowed)
    if here and (reason := obstacle(mode, device_type(cfg.trainer.accelerator))) is not None:
        raise ConfigError("compile", mode, reason)


def device_type(accelerator: str) -> str:
    """Of the device that Lightning takes for it here."""
    if accelerator in ("auto", "gpu"):
        return next((name for name, is_here in GPUS.items() if is_here()), "cpu")
    return accelerator


def _check_optimizer(optimizer: DictConfig, name: str) -> None:
    _check_positive("optimizer.lr", optimizer.get("lr"))
    in_range = "must be in [0, 1)"
    if "momentum" in optimizer:
        momentum = optimizer.momentum
        _require(_is_fraction(momentum), "optimizer.momentum", momentum, in_range)
    if "betas" in optimizer:
        betas = optimizer.betas
        valid = OmegaConf.is_list(betas) and len(betas) == 2 and all(map(_is_fraction, betas))
        _require(valid, "optimizer.betas", betas, f"two numbers, each {in_range}")
    for key in ("weight_decay", "eps"):
        if key in optimizer:
            value, allowed = optimizer[key], "must be a number >= 0"
            _require(_is_number(value) and value >= 0, f"optimizer.{key}", value, allowed)
    for key in ("fused", "foreach", "amsgrad", "nesterov", "maximize"):
        value = optimizer.get(key)
        valid = value is None or isinstance(value, bool)
        _require(valid, f"optimizer.{key}", value, "must be true or false")
    try:
        instantiate(optimizer)([torch.nn.Parameter(torch.zeros(1))])
    except Exception as error:  # whatever an optimizer's own checks raise is the user's to mend
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("optimizer", name, reason) from error


def _check_arguments(group: str, cfg: DictConfig) -> None:
    """The keys of a group must be parameters of what it builds."""
    key, target = f"{group}._target_", cfg.get("_target_")
    try:
        built = get_object(str(target))
    except Exception as error:
        raise ConfigError(key, target, "cannot be imported") from error
    base = BASES[group]
    valid = inspect.isclass(built) and issubclass(built, base)
    _require(valid, key, target, f"must be a class derived from {base.__name__}")
    parameters = inspect.signature(built).parameters
    allowed = set(parameters) - GIVEN_BY_RUN[group]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        allowed |= set(cfg) - GIVEN_BY_RUN[group]
    _check_keys(group, cfg, allowed)


def _check_keys(group: str, cfg: DictConfig, allowed: set[Any]) -> None:
    for key in cfg:
        if not str(key).startswith("_"):
            _require(key in allowed, f"{group}.{key!s}", cfg[key], _one_of(allowed))


def _check_whole_number(
    key: str, value: Any, least: int, others: str = "", *, most: int = 2**63 - 1
) -> None:
    limit = f" and <= {most}" if most < 2**63 - 1 else ""
    allowed = f"must be a whole number >= {least}{limit}{others}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and least <= value <= most, key, value, allowed)


def _check_positive(key: str, value: Any) -> None:
    _require(_is_number(value) and value > 0, key, value, "must be a number > 0")


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(key, value, allowed)


def _one_of(values: Any) -> str:
    return "allowed: " + ", ".join(sorted(str(value) for value in values))


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1
