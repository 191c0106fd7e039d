"""Hydra's errors as one line: the key, the value and what is allowed."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.commands import install_command, train_command
from cbs_lightning.config.composition import compose_whole
from cbs_lightning.config.grammar import in_quotes, list_of
from cbs_lightning.config.identity import flatten
from cbs_lightning.config.trainer_flags import refusal
from cbs_lightning.console import one_line
from cbs_lightning.errors import UserError, did_you_mean
from cbs_lightning.search import settings as search_settings

GROUPS = (
    "data|model|optimizer|scheduler|callbacks|logger|trainer|experiment|hydra/sweeper"
    "|hydra/launcher"
)
NO_OPTION = rf"({GROUPS})=(null|true|false|[\d.]+)"
GROUP_CHOICE = rf"({GROUPS})=\w+|hydra\.searchpath=.*"
SUBMITIT = "hydra/launcher/submitit_slurm"  # of a package that is an extra
LONGEST_QUOTED = 150  # characters of a value that is shown once more, in quotes
HIDDEN = ("hydra", "sweep", "_target_", "_partial_")
PATHS = ("output_dir", "data_dir", "repeat")
PARAMS = "hydra.sweeper.params."


def describe_hydra_error(error: Exception) -> str:
    """One line with the key, the value and what is allowed, as far as Hydra says."""
    said = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if error.missing_cfg_file == SUBMITIT:
            return f"{group}=slurm: needs the package submitit: {install_command('slurm')}"
        if group and error.options:
            meant = did_you_mean(name, error.options, f"{group}={{}}")
            return f"{group}={name}: {meant}allowed: {', '.join(sorted(error.options))}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {_unreadable(error.override, said)}"
    if ambiguous := re.match(r"Ambiguous value for argument '(.+)'", said):
        key, _, value = ambiguous[1].partition("=")
        if key.startswith(PARAMS):
            return _not_swept(ambiguous[1])
        if key in PATHS:
            one = in_quotes(key, value)
            return f"{ambiguous[1]}: a comma separates several values; to pass one, quote it: {one}"
        return f"{ambiguous[1]}: several values make a sweep, which needs -m"
    if swept := re.match(r"Sweeping over Hydra's configuration is not supported : '(.+)'", said):
        return _not_swept(swept[1])
    if unknown := re.match(r"Could not override '([^']+)'", said):
        return _unknown_key(unknown[1])
    if there := re.match(r"Could not append to config. An item is already at '([^']+)'", said):
        return f"+{_typed(there[1], '+')}: this key exists; type {_typed(there[1], '+')}"
    if absent := re.match(r"Could not delete from config. '([^']+)' does not exist", said):
        return f"~{absent[1]}: {_no_such(absent[1])}"
    if (merged := re.match("Error merging override (.+)", said)) and error.__cause__:
        return f"{merged[1]}: {str(error.__cause__).partition(chr(10))[0]}"
    return one_line(said)


def _not_swept(typed: str) -> str:
    """What to type instead of several values of one of Hydra's own keys."""
    key, _, value = typed.lstrip("+").partition("=")
    own = f"; type -m {key.removeprefix(PARAMS)}={value}" if key.startswith(PARAMS) else ""
    return f"{typed}: Hydra's own keys cannot be swept{own}"


def _unreadable(override: str, said: str) -> str:
    """Why an override cannot be read, and how to type it."""
    key, equals, value = override.partition("=")
    if not equals and not key.startswith("~"):
        key, _, value = key.partition(" ")
        return f"must be key=value, such as {key}={value or '<value>'}"
    if value.startswith("~/"):
        return f'~ is not replaced here; type {key}="$HOME/{value[2:]}"'
    if re.search(r"^,|,\s*,|,\s*$", value):
        given = [part.strip() for part in value.split(",") if part.strip()]
        return f"a value is missing beside a comma; type {key}={','.join(given) or '<value>'}"
    reason = one_line(said.partition("\n")[0])
    short = value and len(value) <= LONGEST_QUOTED
    quotes = f"; to pass it as text: {in_quotes(key, value)}" if short else ""
    return f"cannot be read as key=value ({reason}){quotes}"


def _unknown_key(key: str) -> str:
    if f"{key}.".startswith(PARAMS):
        own = "sweep the keys themselves, such as -m batch_size=4,8"
        return f"{_typed(key)}: on the command line {own}"
    if key.startswith("trainer."):
        typed = _typed(key)
        return f"{typed}: {refusal(key.removeprefix('trainer.')) or f'type +{typed}'}"
    return f"{_typed(key)}: {_no_such(key)}"


def _typed(key: str, prefix: str = "") -> str:
    """The key with its value, as on the command line."""
    words = (word.removeprefix(prefix) for word in sys.argv[1:])
    return next((word for word in words if word.startswith(f"{key}=")), key)


def _no_such(key: str) -> str:
    """What to type instead of a key that does not exist."""
    GlobalHydra.instance().clear()
    try:
        cfg = compose_whole(_choices())
    except (HydraException, OmegaConfBaseException, UserError):
        return f"no such key; allowed: see {train_command()} --help"
    parent, _, _ = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    while parent and node is None:
        parent, _, _ = parent.rpartition(".")
        node = OmegaConf.select(cfg, parent) if parent else cfg
    if not isinstance(node, DictConfig):
        return f"no such key; allowed: none, {parent} is {node}"
    if _is_argument(node, key.removeprefix(f"{parent}.")):
        reason = f"an argument of {OmegaConf.select(node, '_target_')} that its file does not set"
        return f"{reason}; type +{_typed(key)}"
    names = sorted(f"{parent}.{name!s}".lstrip(".") for name in node if name not in HIDDEN)
    if key in names:  # as composed without what is swept
        return f"not every option of {parent} in this sweep has this key"
    value = _typed(key).partition("=")[2]
    meant = did_you_mean(*_candidates(key, cfg, names), f"{{}}={value}" if value else "{}")
    return f"no such key; {meant}allowed: {', '.join(names) or 'none'}{_of_a_search(key)}"


def _is_argument(node: DictConfig, name: str) -> bool:
    """Whether the class that the node configures has this argument beside those in the node."""
    target = OmegaConf.select(node, "_target_")
    if target is None or name in node:
        return False
    try:
        return name in inspect.signature(get_object(str(target))).parameters
    except Exception:  # whatever a class that cannot be imported raises
        return False


def _candidates(key: str, cfg: DictConfig, siblings: list[str]) -> tuple[str, list[str]]:
    """What may have been meant: a key typed without its group, or any other key."""
    if key.startswith("hydra."):
        return key, siblings
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    keys = [each for each in flatten(plain) if not set(each.split(".")) & set(HIDDEN)]
    inner = [each for each in keys if each.rpartition(".")[2] == key]
    return (inner[0], inner) if inner else (key, [*siblings, *keys])


def _choices() -> list[str]:
    """The options chosen on the command line, and where to look for options."""
    words = [word for word in sys.argv[1:] if re.fullmatch(GROUP_CHOICE, word)]
    arguments, _ = get_args_parser().parse_known_args(sys.argv[1:])
    if arguments.config_dir and not any(word.startswith("hydra.searchpath=") for word in words):
        where = f"file://{Path(arguments.config_dir).absolute()}"
        words.append(f"hydra.searchpath={list_of([where])}")
    return words


def _of_a_search(key: str) -> str:
    """A hint if the key is a setting of a search, typed without its prefix or the search."""
    name = key.removeprefix("hydra.sweeper.")
    if name not in search_settings.KEYS:
        return ""
    return f"; a search has hydra.sweeper.{name}, with hydra/sweeper=critical_batch"
