"""From YAML files and the command line to a typed configuration."""

from dataclasses import replace
from functools import cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.config.identity import variant_label
from cbs_lightning.config.repeat import repeated
from cbs_lightning.config.schema import Names, RunConfig, Settings, read
from cbs_lightning.errors import UserError, require
from cbs_lightning.files import PROJECT

CONF_DIR = PROJECT / "conf"
GROUPS = ("data", "model", "optimizer")
OF_HYDRA_AND_SWEEP = ("hydra", "sweep")  # what a run itself is not told


def compose(overrides: list[str]) -> RunConfig:
    """The configuration that `python train.py <overrides>` runs with.

    Args:
        overrides: as on the command line, such as `["optimizer=sgd", "batch_size=8"]`.

    Returns:
        The typed configuration, with every key checked that can be without torch.

    Raises:
        UserError: for a key that does not exist or a value that it may not have.

    Example:
        >>> from cbs_lightning import compose
        >>> cfg = compose(["optimizer=sgd", "batch_size=8"])
        >>> cfg.batch_size, cfg.names.optimizer, cfg.study
        (8, 'sgd', 'digits_resnet20')
    """
    if GlobalHydra.instance().is_initialized():
        return _composed(overrides)
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return _composed(overrides)


def compose_whole(overrides: list[str]) -> DictConfig:
    """What Hydra composes of them, with its own part."""
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return hydra_compose("config", overrides, return_hydra_config=True)


def _composed(overrides: list[str]) -> RunConfig:
    cfg = hydra_compose("config", overrides, return_hydra_config=True)
    return complete(cfg, cfg.hydra)


def complete(cfg: DictConfig, hydra: Any) -> RunConfig:
    """What Hydra composed, as the configuration of a run; `hydra` is Hydra's own part.

    Raises `UserError` for a key or a value that cannot be.
    """
    names: dict[str, Any] = {
        group: hydra.runtime.choices[group] for group in (*GROUPS, "experiment")
    }
    values = _plain(cfg)
    if values.get("repeat") is not None:
        _read(values, names)
        quiet = cfg.get("sweep") is not None  # its sweep has said it
        overrides = list(hydra.overrides.task)
        values, names = repeated(values, names, GROUPS, overrides, quiet=quiet)
    stored_variant = names.pop("variant", None)
    completed = _read(values, names)
    searchpath = [o for o in hydra.overrides.hydra if o.startswith("hydra.searchpath=")]
    try:
        variant = variant_label(completed, _usual(completed, searchpath))
    except MissingConfigException:
        if stored_variant is None:
            raise
        variant = stored_variant  # of an optimizer that has no name here
    return replace(completed, names=replace(completed.names, variant=variant))


def _plain(cfg: DictConfig) -> Settings:
    """The values of a run alone, with every interpolation resolved."""
    own = OmegaConf.create(
        {k: v for k, v in cfg.items_ex(resolve=False) if k not in OF_HYDRA_AND_SWEEP}
    )
    _check_interpolations(own)
    values = OmegaConf.to_container(own, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _read(values: Settings, names: dict[str, Any]) -> RunConfig:
    study = values.get("study", "")
    if study is None:
        study = names["experiment"] or f"{names['data']}_{names['model']}"
    known = values | ({"study": str(study)} if "study" in values else {})
    completed = read(RunConfig, known, names=Names(**names))
    budget = completed.stop.max_epochs is not None or completed.stop.max_steps is not None
    needed = "a budget is needed: set stop.max_epochs or stop.max_steps to a whole number >= 1"
    require(budget, "stop.max_epochs", None, needed)
    return completed


def _check_interpolations(cfg: DictConfig, prefix: str = "") -> None:
    for key in cfg:
        try:
            value = cfg[key]
        except OmegaConfBaseException as error:
            raise UserError(f"{prefix}{key!s}: {str(error).splitlines()[0]}") from error
        if isinstance(value, DictConfig):
            _check_interpolations(value, f"{prefix}{key!s}.")


def _usual(cfg: RunConfig, searchpath: list[str]) -> RunConfig:
    """What a run of the same study and optimizer is told where nothing else is said."""
    names = cfg.names
    overrides = [*searchpath, f"optimizer='{names.optimizer}'"]  # which may be called null, or 1
    if (CONF_DIR / "experiment" / f"{cfg.study}.yaml").exists():
        overrides.append(f"experiment={cfg.study}")
    elif cfg.study == f"{names.data}_{names.model}":
        overrides += [f"data='{names.data}'", f"model='{names.model}'"]
    return _composed_once(tuple(overrides))


@cache
def _composed_once(overrides: tuple[str, ...]) -> RunConfig:
    cfg = hydra_compose("config", list(overrides), return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    names = {group: choices[group] for group in (*GROUPS, "experiment")}
    return _read(_plain(cfg), names)
