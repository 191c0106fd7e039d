"""A composed configuration: completed, and told apart from others by its hash and its label."""

import hashlib
import json
import re
from collections.abc import Mapping, Set
from functools import cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.config.repeat import repeated
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.files import PROJECT
from cbs_lightning.optim.learning_rate import Scaling

CONF_DIR = PROJECT / "conf"
GROUPS = ("data", "model", "optimizer")
BASIC = "basic"  # Hydra's own launcher, which runs one job after the other
# What decides a run's losses. Everything else of the trainer's settings does too, but these:
LOSS_KEYS = (
    *GROUPS, "batch_size", "micro_batch_size", "compile", "seed",
    "lr_scaling", "lr_reference_batch_size", "warmup_samples",
)  # fmt: skip
# Keys that there have not always been, with what runs from before had.
LATER_KEYS = {"compile": None, "lr_scaling": Scaling.NONE, "warmup_samples": 0}
NEUTRAL_TRAINER_KEYS = ("accelerator", "devices", "profiler")


def compose(overrides: list[str]) -> DictConfig:
    """The completed configuration that `python train.py <overrides>` runs with."""
    if GlobalHydra.instance().is_initialized():
        return _completed(overrides)
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return _completed(overrides)


def compose_whole(overrides: list[str]) -> DictConfig:
    """What Hydra composes of them, with its own part."""
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return hydra_compose("config", overrides, return_hydra_config=True)


def _completed(overrides: list[str]) -> DictConfig:
    cfg = hydra_compose("config", overrides, return_hydra_config=True)
    return complete(cfg, cfg.hydra)


def complete(cfg: DictConfig, hydra: Any) -> DictConfig:
    """The configuration without Hydra's part, with everything automatic resolved.

    `names` says which option of each group was chosen, and the variant that makes of the run.
    """
    names = {group: hydra.runtime.choices[group] for group in (*GROUPS, "experiment")}
    completed = _without_hydra(cfg)
    _check_interpolations(completed)
    OmegaConf.resolve(completed)
    _check_shape(completed)
    stored_variant = None
    if completed.repeat is not None:
        overrides = list(hydra.overrides.task)
        completed, names = repeated(completed, names, GROUPS, overrides)
        stored_variant = names.pop("variant")
        _check_shape(completed)
    if completed.study is None:
        completed.study = names["experiment"] or f"{names['data']}_{names['model']}"
    completed.study = str(completed.study)
    searchpath = [o for o in hydra.overrides.hydra if o.startswith("hydra.searchpath=")]
    try:
        variant = _variant(completed, names, searchpath)
    except MissingConfigException:
        if stored_variant is None:
            raise
        variant = stored_variant  # of an optimizer that has no name here
    with open_dict(completed):
        completed.names = names | {"variant": variant}
    return completed


def _without_hydra(cfg: DictConfig) -> DictConfig:
    return OmegaConf.create({k: v for k, v in cfg.items_ex(resolve=False) if k != "hydra"})


def _check_interpolations(cfg: DictConfig, prefix: str = "") -> None:
    for key in cfg:
        try:
            value = cfg[key]
        except OmegaConfBaseException as error:
            raise UserError(f"{prefix}{key!s}: {str(error).splitlines()[0]}") from error
        if isinstance(value, DictConfig):
            _check_interpolations(value, f"{prefix}{key!s}.")


def _check_shape(cfg: DictConfig) -> None:
    """A configuration has the keys of conf/config.yaml, no more and no less."""
    defaults = _defaults()
    expected = {key: defaults[key] for key in defaults if key not in ("defaults", "hydra")}
    _check_same_keys("", cfg, {*expected, *GROUPS, "trainer"}, hidden={"sweep"})
    for key, default in expected.items():
        if isinstance(default, DictConfig):
            _check_group(str(key), cfg[key])
            _check_same_keys(f"{key!s}.", cfg[key], set(default))
    for group in (*GROUPS, "trainer"):
        _check_group(group, cfg[group])


@cache
def _defaults() -> DictConfig:
    defaults = OmegaConf.load(CONF_DIR / "config.yaml")
    assert isinstance(defaults, DictConfig)
    return defaults


def _check_group(key: str, value: Any) -> None:
    if not isinstance(value, DictConfig):
        raise ConfigError(key, value, f"must be a group of keys, such as {key}.<key>=<value>")


def _check_same_keys(
    prefix: str, cfg: DictConfig, expected: Set[Any], hidden: Set[str] = frozenset()
) -> None:
    for key in cfg:
        if key not in expected:
            allowed = ", ".join(sorted(prefix + str(name) for name in expected - hidden))
            raise ConfigError(f"{prefix}{key!s}", cfg[key], f"no such key; allowed: {allowed}")
    for key in sorted(expected - set(cfg)):
        raise UserError(f"{prefix}{key!s}: was removed, but is needed")


def identity(cfg: DictConfig) -> dict[str, Any]:
    """All that determines the losses, as plain values."""
    values = _plain({key: cfg[key] for key in LOSS_KEYS})
    trainer = _plain(cfg.trainer)
    values["trainer"] = {k: v for k, v in trainer.items() if k not in NEUTRAL_TRAINER_KEYS}
    return values


def config_hash(cfg: DictConfig) -> str:
    values = _flat(identity(cfg))
    if values["lr_scaling"] == Scaling.NONE:
        del values["lr_reference_batch_size"]
    for key, before in LATER_KEYS.items():
        if values[key] == before:
            del values[key]
    # 1 and 1.0 are one setting.
    canonical = json.dumps(values, sort_keys=True, default=str)
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
    usual, usual_names = _usual(tuple(overrides))
    usual = usual.copy()
    label = [names["optimizer"]]
    for group in ("data", "model"):
        if usual_names[group] != names[group]:
            label.append(names[group])
            usual[group] = cfg[group]
    unscaled = cfg.lr_scaling == Scaling.NONE
    for key in ("batch_size", "seed", *(["lr_reference_batch_size"] if unscaled else [])):
        usual[key] = cfg[key]
    usual_values, values = _flat(identity(usual)), _flat(identity(cfg))
    for key in dict.fromkeys([*values, *usual_values]):
        if key not in values:
            label.append(f"{key.rpartition('.')[2]}=default")
        elif key not in usual_values or usual_values[key] != values[key]:
            label.append(f"{key.rpartition('.')[2]}={_short(values[key])}")
    return " ".join(label)


@cache
def _usual(overrides: tuple[str, ...]) -> tuple[DictConfig, Mapping[str, str]]:
    """What Hydra composes of the overrides, and which option of each group it then has."""
    cfg = hydra_compose("config", list(overrides), return_hydra_config=True)
    return _without_hydra(cfg), dict(cfg.hydra.runtime.choices)


def hyperparameters(cfg: DictConfig) -> dict[str, Any]:
    """The optimizer's settings but its learning rate."""
    settings = _plain(cfg.optimizer)
    return {k: v for k, v in settings.items() if k != "lr" and not k.startswith("_")}


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
    return str(value)
