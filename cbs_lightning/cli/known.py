"""What can be typed, and what may have been meant: groups, their options, and keys."""

import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.commands import train_command
from cbs_lightning.config.composition import CONF_DIR, DEFAULT_OPTIMIZER, OWN_INSTEAD, compose_whole
from cbs_lightning.config.grammar import list_of
from cbs_lightning.config.identity import OWN, flatten
from cbs_lightning.config.trainer_flags import INSTEAD
from cbs_lightning.errors import UserError, nearest
from cbs_lightning.search import settings as search_settings

GROUPS = ("data", "model", "optimizer", "scheduler", "callbacks", "logger", "experiment")
OF_HYDRA = ("hydra/sweeper", "hydra/launcher")
PATHS = ("output_dir", "data_dir", "repeat")
NOT_OPTIONS = (DEFAULT_OPTIMIZER, "none")  # what a group has where nobody chooses
NOT_KEYS = ("hydra", "sweep", "_target_", "_partial_")
SEARCHPATH = "hydra.searchpath"
PARAMS = "hydra.sweeper.params."
SWEEP_KEYS = "on the command line sweep the keys themselves, such as -m batch_size=4,8"


def word_of(key: str) -> str | None:
    """The last word on the command line that is about the key, as it was typed."""
    words = [word for word in sys.argv[1:] if word.lstrip("+~").partition("=")[0] == key]
    return re.sub(r"^repeat='(.*)'$", r"repeat=\1", words[-1]) if words else None


def value_of(key: str) -> Any:
    """What was typed for the key, as Hydra reads it; None if it cannot."""
    with suppress(HydraException):
        return OverridesParser.create().parse_override(word_of(key) or "").value()
    return None


def is_swept(word: str) -> bool:
    """Whether the word gives several values, or cannot be read."""
    try:
        return OverridesParser.create().parse_override(word).is_sweep_override()
    except HydraException:
        return True


def options(group: str) -> list[str]:
    """The options of a group, also those of the user's own configuration."""
    return sorted(set(_files(group)) - set(NOT_OPTIONS))


def is_key(key: str) -> bool:
    """Whether there is such a key, or a group; also true if the configuration is wrong."""
    cfg = _composed()
    if cfg is None or key in (*GROUPS, *OF_HYDRA):
        return True
    above, _, name = key.rpartition(".")
    parent, node = _parent_of(key, cfg)
    return parent == above and isinstance(node, DictConfig) and name in node


def is_list(key: str) -> bool:
    """Whether the key usually has a list."""
    cfg = _composed()
    return cfg is not None and isinstance(OmegaConf.select(cfg, key), ListConfig)


def no_such_key(key: str) -> str:
    """Why the key cannot be set, and what to type instead."""
    cfg = _composed()
    if cfg is None:
        return f"no such key; allowed: see {train_command()} --help"
    parent, node = _parent_of(key, cfg)
    if not isinstance(node, DictConfig):
        return f"no such key; allowed: none, {parent} is {node}"
    keys = sorted(f"{parent}.{name!s}".lstrip(".") for name in node if name not in NOT_KEYS)
    if isinstance(value := value_of(key), dict) and isinstance(cfg.get(key), DictConfig):
        for inner in (each for each in value if each not in cfg[key]):
            return no_such_key(f"{key}.{inner}")
    name = key.rpartition(".")[2]
    if key in keys:  # as composed without what is swept
        having = options_with(parent, name)
        return "; ".join(
            filter(None, [f"not every option of {parent} in this sweep has this key", having])
        )
    if parent == "optimizer" and cfg.hydra.runtime.choices.optimizer == OWN:
        return OWN_INSTEAD
    allowed = f"allowed: {', '.join(keys) or 'none'}{_of_a_search(key)}"
    meant = nearest_key(key, cfg, keys)
    if key in INSTEAD and not f".{meant}".endswith(f".{key}"):  # a flag of Lightning's Trainer
        return f"no such key; {INSTEAD[key]}"
    if meant is not None:
        return f"no such key; did you mean {_with_value(meant, key)}? {allowed}"
    others = [options_with(group, name) for group in ([parent] if parent else GROUPS)]
    elsewhere = "; ".join(filter(None, others))
    said = _of_class(parent, node, key) or allowed
    return "; ".join(filter(None, ["no such key", elsewhere, said]))


def options_with(group: str, name: str) -> str:
    """Which options of a group have a key of this name."""
    files, having = _files(group) if group in GROUPS else {}, []
    for option in sorted(files):
        with suppress(Exception):  # of a user's file, whatever is wrong with it
            having += [option] if name in OmegaConf.load(files[option]) else []
    what = f"{group}={', '.join(having)} {'has' if len(having) == 1 else 'have'} {group}.{name}"
    return what if having else ""


def nearest_key(
    key: str, cfg: DictConfig | None = None, siblings: Iterable[str] = ()
) -> str | None:
    """The key that may have been meant; names are compared without their groups.

    That of a key with a group is one of its `siblings`, or has the same name in another group.
    """
    cfg = cfg if cfg is not None else _composed()
    if cfg is None:
        return None
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    found = {*flatten(plain), *plain, *siblings, *GROUPS}
    keys = sorted(
        (each for each in found if not set(each.split(".")) & set(NOT_KEYS)),
        key=lambda each: (each.count("."), each),
    )
    parent, _, name = key.rpartition(".")
    if parent and _parent_of(key, cfg)[0] != parent:
        return nearest(key, keys)
    everywhere = {each.rpartition(".")[2]: each for each in reversed(keys)}
    near = {each.rpartition(".")[2]: each for each in siblings} if parent else everywhere
    if meant := nearest(name, near):
        return near[meant]
    return everywhere.get(name) if not key.startswith("hydra.") else None


def _parent_of(key: str, cfg: DictConfig) -> tuple[str, Any]:
    """The nearest group above the key that exists, and what is in it."""
    parent, node = key, None
    while node is None:
        parent = parent.rpartition(".")[0]
        node = OmegaConf.select(cfg, parent) if parent else cfg
    return parent, node


def _with_value(key: str, typed: str) -> str:
    value = (word_of(typed) or "").partition("=")[2]
    return f"{key}={value}" if value else key


def _of_class(group: str, node: DictConfig, key: str) -> str:
    """What a group's class says of a key that its file does not have; to import it takes long."""
    target = OmegaConf.select(node, "_target_")
    if group not in GROUPS or not target:
        return ""
    from cbs_lightning.config.checks import allowed_settings

    name = key.rpartition(".")[2]
    try:
        built = get_object(target)
        allowed = allowed_settings(group, built, [name])
    except Exception:  # whatever a user's file raises
        return ""
    if name in allowed:
        return f"{built.__name__} takes it with a plus: +{_with_value(key, key)}"
    return "" if allowed else f"{built.__name__} has no settings"


def _of_a_search(key: str) -> str:
    """A hint if the key is a setting of a search, typed without its prefix or the search."""
    name = key.removeprefix("hydra.sweeper.")
    if name not in search_settings.KEYS:
        return ""
    return f"; a search has hydra.sweeper.{name}, with hydra/sweeper=critical_batch"


def _composed() -> DictConfig | None:
    """The configuration with the options that were chosen on the command line."""
    GlobalHydra.instance().clear()
    chosen = "|".join((*GROUPS, *OF_HYDRA, "trainer"))
    words = [word for word in sys.argv[1:] if re.fullmatch(rf"({chosen})=\w+", word)]
    try:
        return compose_whole([*words, f"{SEARCHPATH}={list_of(_searched())}"])
    except (HydraException, OmegaConfBaseException, UserError):
        return None


def _files(group: str) -> dict[str, Path]:
    """The YAML files of a group by the names of the options; this project's come first."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for path in (folder / group).glob("*.yaml"):
            found.setdefault(path.stem, path)
    return found


def _folders() -> list[Path]:
    """Where configuration is looked for, this project's first."""
    return [CONF_DIR, *(Path(each.removeprefix("file://")) for each in _searched())]


def _searched() -> list[str]:
    """What the command line adds to the search path."""
    arguments, _ = get_args_parser().parse_known_args(sys.argv[1:])
    given, added = arguments.config_dir, value_of(SEARCHPATH)
    own = [f"file://{Path(given).absolute()}"] if given else []
    return [*own, *map(str, added if isinstance(added, list) else [])]
