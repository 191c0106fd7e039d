"""Turns YAML files and the command line into a typed configuration."""

from dataclasses import MISSING, replace
from functools import cache, partial
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.config.grammar import list_of
from cbs_lightning.config.identity import NAMED_IN_LABEL, OWN, variant_label
from cbs_lightning.config.plain_checks import check_plainly
from cbs_lightning.config.repeat import repeated
from cbs_lightning.config.schema import Names, RunConfig, Settings, read
from cbs_lightning.errors import ConfigError, UserError, require
from cbs_lightning.files import PACKAGE

CONF_DIR = PACKAGE / "conf"  # in a clone, a link to its folder conf
GROUPS = ("data", "model", "optimizer", "scheduler")
GLOBAL = "# @package _global_"  # the first line of an experiment, else its keys would be below it
DEFAULT_OPTIMIZER = "default"  # the option that nobody chose
OWN_INSTEAD = (  # of keys of an optimizer that is the module's own
    "optimizer=own uses your configure_optimizers: set it there, or choose optimizer=adam, say"
)
OWN_MODELS = "cbs_lightning.models."


def compose(overrides: list[str]) -> RunConfig:
    """Build the configuration that `python train.py <overrides>` would use.

    Args:
        overrides: keys as on the command line, such as `["optimizer=sgd", "batch_size=8"]`.

    Returns:
        The typed configuration. Everything that can be checked without torch has been checked.

    Raises:
        UserError: a key does not exist, or its value is not allowed.

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
    """What Hydra composes from the overrides, including its own part."""
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return hydra_compose("config", overrides, return_hydra_config=True)


def _composed(overrides: list[str]) -> RunConfig:
    cfg = hydra_compose("config", overrides, return_hydra_config=True)
    return complete(cfg, cfg.hydra)


def complete(cfg: DictConfig, hydra: Any) -> RunConfig:
    """The configuration of a run that Hydra composed; `hydra` is Hydra's own part.

    Raises `UserError` for an unknown key or an invalid value.
    """
    names: dict[str, Any] = {
        group: hydra.runtime.choices.get(group) for group in (*GROUPS, "experiment")
    }
    for group in GROUPS:
        if names[group] is None:
            raise _not_one(group, hydra)
    values = _plain(cfg)
    if "experiment" in values:
        raise UserError(f"experiment={names['experiment']}: its file must begin with {GLOBAL}")
    if values.get("repeat") is not None:
        _read(values, names)
        quiet = cfg.get("sweep") is not None  # its sweep has said it
        overrides = list(hydra.overrides.task)
        values, names = repeated(values, names, GROUPS, overrides, quiet=quiet)
    stored_variant = names.pop("variant", None)
    _settle_optimizer(values, names)
    typed = [each for each in hydra.overrides.task if each.lstrip("+~").startswith("optimizer.")]
    if names["optimizer"] == OWN and typed:
        raise UserError(f"{typed[0]}: {OWN_INSTEAD}")
    completed = _read(values, names)
    check_plainly(completed)
    try:
        variant = variant_label(completed, _usual(completed, tuple(hydra.searchpath)))
    except MissingConfigException:
        if stored_variant is None:
            raise
        variant = stored_variant  # of an optimizer that has no name here
    return replace(completed, names=replace(completed.names, variant=variant))


def _not_one(group: str, hydra: Any) -> UserError:
    """Of a group that was removed, or given a list of options."""
    several = [word for word in hydra.overrides.task if word.startswith(f"{group}=[")]
    if several:
        options = several[-1].partition("=")[2].strip("[] ")
        return UserError(f"{several[-1]}: to sweep, without brackets: -m {group}={options}")
    options = _options(_search_path(), tuple(hydra.searchpath), group)
    allowed = ", ".join(each for each in options if each != DEFAULT_OPTIMIZER)
    return UserError(f"~{group}: a run needs {group}; choose one of {group}={allowed}")


def _settle_optimizer(values: Settings, names: dict[str, Any]) -> None:
    """Choose an optimizer if nobody did: the own one of a user's module, otherwise Adam."""
    if names["optimizer"] != DEFAULT_OPTIMIZER:
        return
    target = (values.get("model") or {}).get("_target_", OWN_MODELS)
    names["optimizer"] = "adam"
    if not str(target).startswith(OWN_MODELS) and not _is_classifier(str(target)):
        names["optimizer"], values["optimizer"] = OWN, {}


def _is_classifier(target: str) -> bool:
    """Whether it is one of this project's; also true if it cannot be imported, which the checks
    report."""
    from hydra.utils import get_class

    from cbs_lightning.models import Classifier

    try:
        return issubclass(get_class(target), Classifier)
    except Exception:
        return True


def _plain(cfg: DictConfig) -> Settings:
    """The values of a run alone, with all interpolations resolved."""
    own = cfg
    if "hydra" in cfg:
        own = OmegaConf.create({k: v for k, v in cfg.items_ex(resolve=False) if k != "hydra"})
    try:
        values = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        _check_interpolations(own)  # which names the key
        raise
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "sweep"}


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
            raise ConfigError(f"{prefix}{key!s}", MISSING, str(error).splitlines()[0]) from error
        if isinstance(value, DictConfig):
            _check_interpolations(value, f"{prefix}{key!s}.")


def _usual(cfg: RunConfig, searchpath: tuple[str, ...]) -> RunConfig:
    """The usual configuration of this study and optimizer.

    Its `names` are the options that the study usually has; the settings of its data and model are
    those of the run's options, as far as they are known here.
    """
    options = partial(_options, _search_path(), searchpath)
    # In quotes, since an option may be called null, or 1.
    overrides = [*_where(searchpath), f"optimizer='{cfg.names.optimizer}'"]
    own = {group: getattr(cfg.names, group) for group in NAMED_IN_LABEL}
    options_of_run = [f"{group}='{name}'" for group, name in own.items() if name in options(group)]
    if cfg.study in options("experiment"):
        overrides.append(f"experiment='{cfg.study}'")
    elif cfg.study == f"{own['data']}_{own['model']}":
        overrides += [f"{group}='{own[group]}'" for group in ("data", "model")]
    usual = _composed_once(_search_path(), tuple(overrides))
    if all(getattr(usual.names, group) == name for group, name in own.items()):
        return usual
    with_options = _composed_once(_search_path(), (*overrides, *options_of_run))
    unknown = {group: getattr(cfg, group) for group in own if own[group] not in options(group)}
    return replace(with_options, names=usual.names, **unknown)


def _search_path() -> tuple[str, ...]:
    """Where Hydra looks for YAML files, apart from `hydra.searchpath`."""
    loader = GlobalHydra.instance().config_loader()
    return tuple(element.path for element in loader.get_search_path().get_path())


def _where(searchpath: tuple[str, ...]) -> list[str]:
    return [f"hydra.searchpath={list_of(list(searchpath))}"] if searchpath else []


@cache
def _options(_: tuple[str, ...], searchpath: tuple[str, ...], group: str) -> list[str]:
    """The options of a group that Hydra finds."""
    loader = GlobalHydra.instance().config_loader()
    return loader.get_group_options(group, config_name="config", overrides=_where(searchpath))


@cache
def _composed_once(_: tuple[str, ...], overrides: tuple[str, ...]) -> RunConfig:
    cfg = hydra_compose("config", list(overrides), return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    names = {group: choices[group] for group in (*GROUPS, "experiment")}
    values = _plain(cfg)
    _settle_optimizer(values, names)
    return _read(values, names)
