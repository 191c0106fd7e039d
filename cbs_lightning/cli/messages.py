"""Errors as one line: what was typed, what is allowed, and what to type instead."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from cbs_lightning.cli.arguments import unreadable
from cbs_lightning.cli.known import (
    GROUPS,
    OF_HYDRA,
    PARAMS,
    PATHS,
    SWEEP_KEYS,
    is_key,
    is_list,
    is_swept,
    no_such_key,
    options,
    options_with,
    word_of,
)
from cbs_lightning.commands import install_command
from cbs_lightning.config.composition import DEFAULT_OPTIMIZER
from cbs_lightning.config.grammar import in_quotes
from cbs_lightning.config.trainer_flags import refusal
from cbs_lightning.console import one_line, visible
from cbs_lightning.errors import ConfigError, UserError, did_you_mean, shown

SUBMITIT = "hydra/launcher/submitit_slurm"  # of a package that is an extra


def error_line(error: Exception) -> str | None:
    """The line for a mistake of the user's; None for any other error."""
    line = _described(error)
    return None if line is None else visible(line)


def _described(error: Exception) -> str | None:
    if isinstance(error, ConfigError):
        return _of_key(error)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, YAMLError):
        return _of_yaml(error)
    said = str(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _of_hydra(error, said)
    if isinstance(error, UserWarning) and (missing := re.search("path=(.+) is not avail", said)):
        return f"hydra.searchpath: {missing[1]}: no such directory"
    if isinstance(error, ValueError) and "Config group override must be" in said:
        return _no_option(sys.argv[1:])
    if isinstance(error, ValueError) and re.search("--(run|resolve)", said):  # of Hydra's options
        return said
    return None


def _of_key(error: ConfigError) -> str:
    if lacking := re.fullmatch(r"Interpolation key '(\w+)\.(\w+)' not found", error.allowed):
        group, name = lacking.groups()
        if elsewhere := options_with(group, name):
            return f"{error.key}: needs {group}.{name}; {elsewhere}"
    word = word_of(error.key)
    if word is None or is_swept(word):
        return str(error)
    added = word.startswith("+") and not word.startswith("+hydra.")
    added = added and error.allowed.startswith("no such key")
    return f"{shown(word)}: {no_such_key(error.key) if added else error.allowed}"


def _of_hydra(error: Exception, said: str) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_such_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException):
        return f"{shown(error.override)}: {unreadable(error.override)}"
    for pattern, explain in EXPLAINED.items():
        if found := re.match(pattern, said):
            return explain(found[1])
    if (merged := re.match("Error merging override (.+)", said)) and error.__cause__:
        return f"{merged[1]}: {str(error.__cause__).partition(chr(10))[0]}"
    return one_line(said)


def _no_such_option(path: str, known: Sequence[str] | None) -> str:
    group = next((each for each in (*GROUPS, *OF_HYDRA) if path.startswith(f"{each}/")), "")
    group = group or path.rpartition("/")[0]
    name = path.removeprefix(f"{group}/")
    if path == SUBMITIT:
        return f"{group}=slurm: needs the package submitit: {install_command('slurm')}"
    if not group:
        experiments = options("experiment")
        meant = did_you_mean(name, experiments, "experiment={}")
        return f"--config-name {name}: no such file; {meant}experiments: {', '.join(experiments)}"
    typed = f"{group}={name}"
    if group == "trainer":
        return f"{typed}: its keys are set one by one, such as trainer.accelerator=gpu"
    allowed = sorted(set(known or options(group)) - {DEFAULT_OPTIMIZER})
    if group == "callbacks" and allowed == ["none"]:
        return f"{typed}: a callback is added by +callbacks.<name>._target_=<class>"
    return f"{typed}: {did_you_mean(name, allowed, f'{group}={{}}')}allowed: {', '.join(allowed)}"


def _no_option(words: list[str]) -> str:
    """Of a group that was given null, a number or a truth value, which Hydra does not name."""
    chosen = [(word, *word.split("=", 1)) for word in words if "=" in word]
    for word, group, value in chosen:
        if group in GROUPS and re.fullmatch(r"null|true|false|[\d.]+", value):
            allowed = ", ".join(options(group)) or "none"
            return f"{word}: choose one of the group's options, or leave it out; allowed: {allowed}"
    return "a group needs the name of one of its options"


def _several_values(typed: str) -> str:
    """Of a comma where there is one run, or one value."""
    key, _, value = typed.partition("=")
    if key.startswith(PARAMS):
        return _not_swept(typed)
    if key in PATHS:
        one = in_quotes(key, value)
        return f"{typed}: a comma separates several values; to pass one, quote it: {one}"
    if not is_key(key):
        return _no_such_key(key)
    brackets = f"; a list has brackets: '{key}=[{value}]'" if is_list(key) else ""
    return f"{typed}: several values make a sweep, which needs -m{brackets or _one_number(typed)}"


def _one_number(typed: str) -> str:
    """What to type if the comma may have been that of a single number."""
    if re.search(r"=0,\d+$", typed):
        return f"; a number has a decimal point: {typed.replace(',', '.')}"
    if re.search(r"=[1-9]\d{0,2}(,\d{3})*,000$", typed):
        return f"; a number has no commas: {typed.replace(',', '')}"
    return ""


def _not_swept(typed: str) -> str:
    """Of several values of one of Hydra's own keys."""
    key, _, value = typed.lstrip("+").partition("=")
    own = f"; type -m {key.removeprefix(PARAMS)}={value}" if key.startswith(PARAMS) else ""
    return f"{typed}: Hydra's own keys cannot be swept{own}"


def _no_such_key(key: str) -> str:
    typed = shown(word_of(key) or key)
    if f"{key}.".startswith(PARAMS):
        return f"{typed}: {SWEEP_KEYS}"
    if key.startswith("trainer."):
        return f"{typed}: {refusal(key.removeprefix('trainer.')) or f'type +{typed}'}"
    return f"{typed}: {no_such_key(key)}"


def _key_exists(key: str) -> str:
    typed = shown(word_of(key) or f"+{key}")
    if not typed.startswith("+"):  # but a file names the group once more
        return f"{key}: is chosen twice; write it as override /{key} in the file's defaults"
    return f"{typed}: this key exists; type {typed.lstrip('+')}"


EXPLAINED: dict[str, Callable[[str], str]] = {  # what Hydra says, and what is said instead
    r"Ambiguous value for argument '(.+)'": _several_values,
    r"Sweeping over Hydra's configuration is not supported : '(.+)'": _not_swept,
    r"Could not override '([^']+)'": _no_such_key,
    r"Could not append to config. An item is already at '([^']+)'": _key_exists,
    r"Multiple values for (\S+)\. ": _key_exists,
    r"Could not delete from config. '([^']+)' does not exist": _no_such_key,
}


def _of_yaml(error: YAMLError) -> str:
    """The file first, and the line where what is wrong begins."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f"{one_line(str(error))}; correct that file"
    # Where a bracket is open until the file ends, its own line says more.
    at_end = "stream" in str(error.problem)
    mark = error.context_mark if at_end and error.context_mark else error.problem_mark
    path = Path(mark.name)
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    typed = [word for word in sys.argv[1:] if word == f"{path.parent.name}={path.stem}"]
    choice = f"{typed[0]}: " if typed else ""
    return f"{choice}{path}, line {mark.line + 1}: {one_line(str(error.problem))}"
