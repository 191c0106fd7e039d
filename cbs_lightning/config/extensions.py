"""The groups that add to a run: its scheduler, callbacks and loggers."""

import importlib.util
import inspect
import sys
from collections.abc import Collection
from typing import Any

from hydra.utils import get_object, instantiate
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    Timer,
)
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger

from cbs_lightning.commands import install_command
from cbs_lightning.config.constraints import Flag, is_number, one_of
from cbs_lightning.config.identity import NEUTRAL, OWN
from cbs_lightning.config.plain_checks import EPOCHS, SAMPLES, check_horizon
from cbs_lightning.config.schema import RunConfig, Settings
from cbs_lightning.config.trainer_flags import steps_must_be_single
from cbs_lightning.errors import ConfigError, did_you_mean, require

TRIED_HORIZON = 1000  # samples, where an epoch's are not known yet
ENDS = "a run ends at stop.loss, stop.max_epochs or stop.max_steps"
INSTEAD: dict[type[Callback], str] = {
    GradientAccumulationScheduler: "a step is one batch; set batch_size and micro_batch_size",
    BatchSizeFinder: "it would change the batch size; set micro_batch_size=auto",
    LearningRateFinder: "it would change the learning rate; set lr_scaling=tuned, in a sweep",
    EarlyStopping: f"{ENDS}; leave it out",
    Timer: f"{ENDS}; leave it out",
}
EXTRAS: dict[type[Logger], str] = {WandbLogger: "wandb", MLFlowLogger: "mlflow"}
GIVEN_TO_LOGGER = {"save_dir"}
# Lightning calls these around each step, which the loop of many steps per call does not.
STEP_HOOKS = (
    "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step",
)  # fmt: skip


def check_extensions(cfg: RunConfig) -> None:
    """Raise `ConfigError` for the first one that cannot be built."""
    _check_scheduler(cfg)
    for name, settings in cfg.callbacks.items():
        _check_callback(f"callbacks.{name}", settings)
    for name, settings in cfg.logger.items():
        _check_logger(f"logger.{name}", settings)


def loop_obstacles(cfg: RunConfig) -> list[str]:
    """The parts of the configuration that need one step per call of `training_step`."""
    found = steps_must_be_single(cfg.trainer)
    for name, settings in cfg.callbacks.items():
        built = get_object(settings["_target_"])
        if hooks := [hook for hook in STEP_HOOKS if _overrides(built, hook)]:
            found.append(f"callbacks.{name} ({', '.join(hooks)})")
    return found


def scheduler_arguments(settings: Settings) -> Settings:
    """The scheduler's arguments, without a horizon that is null."""
    return {k: v for k, v in settings.items() if k not in (SAMPLES, EPOCHS) or v is not None}


def _overrides(built: type, hook: str) -> bool:
    return getattr(built, hook) is not getattr(Callback, hook)


def _check_scheduler(cfg: RunConfig) -> None:
    name, settings = cfg.names.scheduler, scheduler_arguments(cfg.scheduler)
    built = import_target("scheduler", settings.get("_target_"))
    valid = inspect.isclass(built) and callable(getattr(built, "factor", None))
    allowed = "must be a class with a method factor(samples)"
    require(valid, "scheduler._target_", settings["_target_"], allowed)
    takes_horizon = SAMPLES in inspect.signature(built).parameters
    _check_arguments("scheduler", built, settings, also={EPOCHS} if takes_horizon else set())
    if takes_horizon:
        check_horizon(cfg, needed=_needs_horizon(built))
        settings.setdefault(SAMPLES, TRIED_HORIZON)
    settings.pop(EPOCHS, None)
    try:
        made = instantiate(settings, _convert_="all")
        factors = [made.factor(samples) for samples in (0, settings.get(SAMPLES, TRIED_HORIZON))]
    except Exception as error:  # whatever its own checks raise is the user's to mend
        raise ConfigError("scheduler", name, _reason(error)) from error
    valid = all(is_number(factor) and factor >= 0 for factor in factors)
    require(valid, "scheduler", name, f"its factors must be numbers >= 0, not {factors}")
    kept = "not with optimizer=own, which keeps the module's own; allowed with it: constant"
    require(cfg.names.optimizer != OWN or name == "constant", "scheduler", name, kept)


def _needs_horizon(built: Any) -> bool:
    return inspect.signature(built).parameters[SAMPLES].default is inspect.Parameter.empty


def _check_callback(key: str, settings: Settings) -> None:
    target = settings.get("_target_")
    built = import_target(key, target)
    valid = inspect.isclass(built) and issubclass(built, Callback)
    require(valid, f"{key}._target_", target, "must be a class derived from lightning's Callback")
    require_harmless(f"{key}._target_", target, built)
    Flag().check(f"{key}.{NEUTRAL}", settings.get(NEUTRAL, False))
    _check_arguments(key, built, settings, also={NEUTRAL})
    try:
        instantiate({k: v for k, v in settings.items() if k != NEUTRAL}, _convert_="all")
    except Exception as error:
        raise ConfigError(f"{key}._target_", target, _reason(error)) from error


def require_harmless(key: str, value: Any, kind: type) -> None:
    """Raise `ConfigError` for a kind of callback that would change what a step or a run is."""
    for refused, instead in INSTEAD.items():
        require(not issubclass(kind, refused), key, value, instead)


def _check_logger(key: str, settings: Settings) -> None:
    """Check a logger without building it, which might contact a server."""
    target = settings.get("_target_")
    built = import_target(key, target)
    valid = inspect.isclass(built) and issubclass(built, Logger)
    require(valid, f"{key}._target_", target, "must be a class derived from lightning's Logger")
    for kind, package in EXTRAS.items():
        absent = issubclass(built, kind) and importlib.util.find_spec(package) is None
        install = f"needs the package {package}: {install_command(package)}"
        require(not absent, f"{key}._target_", target, install)
    _check_arguments(key, built, settings, given=GIVEN_TO_LOGGER)


def import_target(key: str, target: Any) -> Any:
    """What `<key>._target_` names; raises `ConfigError` with the reason where that fails."""
    path = "must be a class's import path, such as my_file.MyClass"
    require(isinstance(target, str) and "." in target, f"{key}._target_", target, path)
    try:
        return get_object(target)
    except Exception as error:  # whatever a user's file raises
        reason = _not_in_module(target) or f"cannot be imported: {_reason(error)}"
        raise ConfigError(f"{key}._target_", target, reason) from error


def _not_in_module(target: str) -> str | None:
    """What to say of a class that a module does not have; None if the module is not there."""
    where, _, name = target.rpartition(".")
    module = sys.modules.get(where)  # which looking for the class has imported
    if module is None or hasattr(module, name):
        return None
    names = [each for each in dir(module) if not each.startswith("_")]
    meant = did_you_mean(name, names, f"{where}.{{}}")
    return f"module {where} has no {name}; {meant}".rstrip("; ")


def _check_arguments(
    key: str,
    built: Any,
    settings: Settings,
    *,
    given: Collection[str] = (),
    also: Collection[str] = (),
) -> None:
    """The keys must be parameters of the class, apart from those that are `given` to it."""
    parameters = inspect.signature(built).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        also = [*also, *(name for name in settings if name not in given)]
    allowed = (set(parameters) - set(given)) | set(also)
    for name, value in settings.items():
        valid = name in allowed or name in ("_target_", "_recursive_", "_convert_")
        require(valid, f"{key}.{name}", value, one_of(allowed))


def _reason(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())
