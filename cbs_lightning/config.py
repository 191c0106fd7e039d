"""A composed configuration: completed, checked, and told apart from others by its hash."""

import hashlib
import inspect
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from cbs_lightning.errors import ConfigError
from cbs_lightning.trajectory import RuleName

CONF_DIR = Path(__file__).parents[1] / "conf"
GROUPS = ("data", "model", "optimizer")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
# What decides a run's losses. Everything else of the trainer's settings does too, but these:
LOSS_KEYS = (*GROUPS, "batch_size", "micro_batch_size", "seed")
NEUTRAL_TRAINER_KEYS = ("accelerator", "devices")


def compose(overrides: list[str]) -> DictConfig:
    """The completed configuration that `python train.py <overrides>` runs with."""
    if GlobalHydra.instance().is_initialized():
        return _completed(overrides)
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return _completed(overrides)


def _completed(overrides: list[str]) -> DictConfig:
    cfg = hydra_compose("config", overrides, return_hydra_config=True)
    return complete(cfg, cfg.hydra)


def complete(cfg: DictConfig, hydra: Any) -> DictConfig:
    """The configuration without Hydra's part, with everything automatic resolved.

    `names` says which option of each group was chosen, and the variant that makes of the run.
    """
    names = {group: hydra.runtime.choices[group] for group in (*GROUPS, "experiment")}
    completed = OmegaConf.create({k: v for k, v in cfg.items_ex(resolve=False) if k != "hydra"})
    OmegaConf.resolve(completed)
    if completed.study is None:
        completed.study = names["experiment"] or f"{names['data']}_{names['model']}"
    searchpath = [o for o in hydra.overrides.hydra if o.startswith("hydra.searchpath=")]
    with open_dict(completed):
        completed.names = names | {"variant": _variant(completed, names, searchpath)}
    return completed


def identity(cfg: DictConfig) -> dict[str, Any]:
    """All that determines the losses, as plain values."""
    values = _plain({key: cfg[key] for key in LOSS_KEYS})
    trainer = _plain(cfg.trainer)
    values["trainer"] = {k: v for k, v in trainer.items() if k not in NEUTRAL_TRAINER_KEYS}
    return values


def config_hash(cfg: DictConfig) -> str:
    # 1 and 1.0 are one setting.
    canonical = json.dumps(_flat(identity(cfg)), sort_keys=True, default=str)
    canonical = re.sub(r"(?<=\d)\.0\b", "", canonical)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _variant(cfg: DictConfig, names: Mapping[str, str], searchpath: list[str]) -> str:
    """What distinguishes a run of its study beyond batch size and seed.

    The optimizer's name, and whatever else determines the losses and is not as the study's own
    experiment, or else the plain defaults, have it.
    """
    overrides = [*searchpath, f"optimizer={names['optimizer']}"]
    if (CONF_DIR / "experiment" / f"{cfg.study}.yaml").exists():
        overrides.append(f"experiment={cfg.study}")
    elif cfg.study == f"{names['data']}_{names['model']}":
        overrides += [f"data={names['data']}", f"model={names['model']}"]
    usual = _usual(tuple(overrides)).copy()
    label = [names["optimizer"]]
    for group in ("data", "model"):
        if usual.hydra.runtime.choices[group] != names[group]:
            label.append(names[group])
            usual[group] = cfg[group]
    for key in ("batch_size", "seed"):
        usual[key] = cfg[key]
    usual_values = _flat(identity(usual))
    for key, value in _flat(identity(cfg)).items():
        if usual_values.get(key) != value:
            label.append(f"{key.rpartition('.')[2]}={_short(value)}")
    return " ".join(label)


@cache
def _usual(overrides: tuple[str, ...]) -> DictConfig:
    return hydra_compose("config", list(overrides), return_hydra_config=True)


def hyperparameters(cfg: DictConfig) -> dict[str, Any]:
    """The optimizer's settings but its learning rate."""
    settings = _plain(cfg.optimizer)
    return {k: v for k, v in settings.items() if k != "lr" and not k.startswith("_")}


def check(cfg: DictConfig) -> None:
    """Raise `ConfigError` for the first value that cannot be."""
    defaults = set(OmegaConf.load(CONF_DIR / "config.yaml")) | {*GROUPS, "trainer", "names"}
    for key in cfg:
        _require(key in defaults, str(key), cfg[key], _one_of(defaults - {"hydra", "defaults"}))
    _check_whole_number("batch_size", cfg.batch_size, 1)
    _check_whole_number("seed", cfg.seed, 0, most=2**32 - 1)
    for key in ("threads", "micro_batch_size"):
        if cfg[key] is not None:
            _check_whole_number(key, cfg[key], 1, or_null=True)
    for key in ("checkpoint.every_seconds", "progress.every_seconds"):
        _check_positive(key, OmegaConf.select(cfg, key))
    _check_whole_number("tensorboard.points_per_epoch", cfg.tensorboard.points_per_epoch, 1)
    for key in ("study", "output_dir", "data_dir"):
        _require(isinstance(cfg[key], str) and cfg[key] != "", key, cfg[key], "must be a name")
    _require(
        re.fullmatch(r"[\w.+=-]*\w[\w.+=-]*", cfg.study) is not None,
        "study",
        cfg.study,
        "must be a folder's name: letters, digits and . _ + = -",
    )
    _check_stop(cfg.stop)
    _check_trainer(cfg.trainer)
    _check_optimizer(cfg.optimizer, cfg.names.optimizer)
    for group in ("data", "model"):
        _check_arguments(group, cfg[group])
    for key in ("normalize", "augment", "replacement"):
        value = cfg.data.get(key, False)
        _require(isinstance(value, bool), f"data.{key}", value, "must be true or false")


def _check_stop(stop: DictConfig) -> None:
    _check_keys("stop", stop, {"loss", "rule", "window", "max_epochs", "max_steps"})
    _check_positive("stop.loss", stop.loss)
    _require(stop.rule in list(RuleName), "stop.rule", stop.rule, _one_of(RuleName))
    for key in ("window", "max_epochs", "max_steps"):
        if stop[key] is not None:
            _check_whole_number(f"stop.{key}", stop[key], 1, or_null=True)
    _require(
        stop.max_epochs is not None or stop.max_steps is not None,
        "stop.max_epochs",
        None,
        "a budget is needed: set stop.max_epochs or stop.max_steps to a whole number >= 1",
    )


def _check_trainer(trainer: DictConfig) -> None:
    _check_arguments("trainer", trainer, L.Trainer)
    _require(
        trainer.accelerator in ACCELERATORS,
        "trainer.accelerator",
        trainer.accelerator,
        _one_of(ACCELERATORS),
    )
    _require(trainer.devices == 1, "trainer.devices", trainer.devices, "a run has 1 device")
    _require(
        trainer.precision in PRECISIONS, "trainer.precision", trainer.precision, _one_of(PRECISIONS)
    )
    for key in ("max_epochs", "max_steps"):
        _require(key not in trainer, f"trainer.{key}", trainer.get(key), f"set stop.{key} instead")


def _check_optimizer(optimizer: DictConfig, name: str) -> None:
    _check_arguments("optimizer", optimizer)
    _check_positive("optimizer.lr", optimizer.lr)
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
            value = optimizer[key]
            _require(_is_number(value) and value >= 0, f"optimizer.{key}", value, "must be >= 0")
    try:
        instantiate(optimizer)([torch.nn.Parameter(torch.zeros(1))])
    except Exception as error:  # whatever an optimizer's own checks raise is the user's to mend
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("optimizer", name, reason) from error


def _check_arguments(group: str, cfg: DictConfig, call: Any = None) -> None:
    """The keys of a group must be parameters of what it builds."""
    parameters = inspect.signature(call or get_object(cfg["_target_"])).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    _check_keys(group, cfg, set(parameters) - {"params", "optimizer"})


def _check_keys(group: str, cfg: DictConfig, allowed: set[str]) -> None:
    for key in cfg:
        if not str(key).startswith("_"):
            _require(key in allowed, f"{group}.{key!s}", cfg[key], _one_of(allowed))


def _check_whole_number(
    key: str, value: Any, least: int, *, most: int = 2**63 - 1, or_null: bool = False
) -> None:
    limit = f" and <= {most}" if most < 2**63 - 1 else ""
    allowed = f"must be a whole number >= {least}{limit}" + (" or null" if or_null else "")
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


def _plain(values: Any) -> dict[str, Any]:
    container = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
