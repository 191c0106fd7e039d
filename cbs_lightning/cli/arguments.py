"""Checks the words of a command line and brings them into the form that Hydra reads."""

import re
import sys
from argparse import Action, ArgumentParser
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException

from cbs_lightning import __version__
from cbs_lightning.cli.help import help_text
from cbs_lightning.cli.known import (
    GROUPS,
    OF_HYDRA,
    PARAMS,
    PATHS,
    SWEEP_KEYS,
    nearest_key,
    options,
)
from cbs_lightning.commands import train_command
from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.config.grammar import in_quotes, powers_as_numbers
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import LONGEST_SHOWN, UserError, shown

WITHOUT_EFFECT = {  # keys, or groups of them, with what to do instead
    "sweep": "a sweep is started by -m",
    "hydra.run": "a run makes its own directory; set output_dir and study",
    "hydra.sweep": "runs make their own directories; set output_dir and study",
    "hydra.output_subdir": "the configuration is in the run's own directory, as config.yaml",
    "hydra.job.chdir": "paths are those of the current directory; set output_dir",
    "hydra.job.env_set": "",
    "hydra.job.env_copy": "",  # but these have
    "hydra.job": "a run is named after its settings; set study",
    "hydra.verbose": "for more progress lines set progress.every_seconds=1, for tracebacks "
    "HYDRA_FULL_ERROR=1 in the environment",
}
KEYS = {*GROUPS, *OF_HYDRA, *(field.name for field in fields(RunConfig))}
INSTEAD = {  # of options of Hydra
    "--config-path": "add a directory by --config-dir",
    "--experimental-rerun": "type repeat=<run directory>",
}
OPTION = re.compile(r"-(?!\d)")  # what begins with it
OVERRIDE = re.compile(r"[~+]|[^\s=]+\s*=")
ALIKE = 0.75  # how similar an option must be to what was typed


def readable(words: list[str]) -> list[str]:
    """The same words, in the order and with the quotes that Hydra needs.

    Prints the help or the version and exits if that is asked for. Raises `UserError` for what
    Hydra would ignore, or answer with its usage message.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parser._option_string_actions["--version"].version = (  # type: ignore[attr-defined]
        f"cbs_lightning {__version__}"
    )
    phrases = _phrases(words, parser)
    given = [phrase for phrase in phrases if OPTION.match(phrase[0])]
    for word, *_ in given:
        if _action(parser, word) is None:
            raise UserError(f"{word}: {_unknown_option(word, words, parser)}")
    arguments = parser.parse_args([word for phrase in given for word in phrase[:2]])
    for option, instead in INSTEAD.items():
        if getattr(arguments, option[2:].replace("-", "_")) is not None:
            raise UserError(f"{option}: has no effect here: {instead}")
    if arguments.help:
        print(help_text())
        raise SystemExit(0)
    for option, *values in given:
        if len(values) > 1:
            cure = f"a space needs quotes: {option} {quote(' '.join(values))}"
            raise UserError(f"{option} {' '.join(values)}: {cure}")
    overrides = [phrase for phrase in phrases if phrase not in given]
    for phrase in overrides:
        _check_override(" ".join(phrase), alone=len(phrase) == 1)
    if arguments.config_dir is not None:
        _check_config_dir(Path(arguments.config_dir))
    # Overrides that stand on both sides of an option would not be found.
    return [
        *(word for phrase in given for word in phrase),
        *(_quoted(word) for (word,) in overrides),
    ]


def unreadable(text: str) -> str:
    """What to type in the place of words that cannot be read as one key=value."""
    key, equals, value = text.partition("=")
    key, value = key.rstrip(" :+"), value.strip(" =")  # as of key := value, key == value
    if not equals or not key:
        return _without_value(text.replace("=", " ").split())
    if not re.fullmatch(r"[\w~+./@:-]+", key, re.ASCII):
        return f"no such key; keys are words with dots between them, see {train_command()} --help"
    if re.match("~(/|$)", value):
        return f'~ is not replaced here; type {key}="$HOME{value[1:]}"'
    if value[:1] in ("'", '"') and value.count(value[0]) % 2:
        return f"a quote is missing; type {_typed(key, value[1:])}"
    if key == "study" and " " in value:
        return f"a study's name has no spaces; type {key}={'_'.join(value.split())}"
    if re.fullmatch(r"\(.*\)", value):
        return f"a list has brackets: {quote(f'{key}=[{_joined(value[1:-1])}]')}"
    joined = _joined(powers_as_numbers(value))
    if key not in PATHS and joined and (read := _reads(f"{key}={joined}")) is not None:
        reason = "values take commas without spaces"
        if "^" in value:
            reason = "powers are typed as numbers"
        elif re.search(r"^,|,\s*,|,\s*$", value):
            reason = "a value is missing beside a comma"
        elif joined == value:
            reason = "nothing but = between key and value"
        lacks = isinstance(read, Sweep) and not {"-m", "--multirun"} & set(sys.argv)
        return f"{reason}; type {'-m ' if lacks else ''}{quote(f'{key}={joined}')}"
    cure = f": {_typed(key, value)}" if len(value) <= LONGEST_SHOWN else ""
    what = "a space" if _reads(f"{key}={value}") == value else "has a character that"
    return f"{what} needs quotes{cure}"


def _phrases(words: list[str], parser: ArgumentParser) -> list[list[str]]:
    """The words, each option with its value, and each override with the words that belong to it:
    the shell may have split it at a space."""
    phrases: list[list[str]] = []
    for word in words:
        if phrases and _belongs(word, phrases[-1], parser):
            phrases[-1].append(word)
        else:
            phrases.append([word])
    return phrases


def _belongs(word: str, phrase: list[str], parser: ArgumentParser) -> bool:
    """Whether a word belongs to the words before it, and begins nothing of its own."""
    first, begins = phrase[0], OVERRIDE.match(word) is not None
    if OPTION.match(word):
        return False
    if OPTION.match(first):
        action = _action(parser, first)
        takes_value = action is not None and action.nargs != 0 and "=" not in first
        return takes_value and (len(phrase) == 1 or not begins)
    is_key = re.split(r"[\s.]", word)[0] in KEYS
    return not begins and not (is_key and first.partition("=")[0] not in (*PATHS, "study"))


def _action(parser: ArgumentParser, word: str) -> Action | None:
    return parser._option_string_actions.get(word.partition("=")[0])


def _unknown_option(word: str, words: list[str], parser: ArgumentParser) -> str:
    name, _, value = word.partition("=")
    known = [each for each in parser._option_string_actions if each[2:] and each not in INSTEAD]
    if meant := get_close_matches(f"--{name.lstrip('-')}", known, 1, ALIKE):
        return f"no such option; did you mean {meant[0]}?"
    after = words[words.index(word) + 1 :][:1]
    if not value and after and not OPTION.match(after[0]) and "=" not in after[0]:
        value = after[0]
    key = nearest_key(name.lstrip("-").replace("-", "_"))
    how = f"keys are typed without dashes: {key}={value or '<value>'}" if key else "see --help"
    return f"no such option; {how}"


def _check_override(text: str, *, alone: bool) -> None:
    key = text.lstrip("+~").partition("=")[0]
    if not alone or not key or ("=" not in text and not text.startswith("~")):
        raise UserError(f"{shown(text)}: {unreadable(text)}")
    instead = [value for name, value in WITHOUT_EFFECT.items() if f"{key}.".startswith(f"{name}.")]
    if any(instead[:1]):
        raise UserError(f"{shown(text)}: has no effect here: {instead[0]}")
    if text.startswith("+") and f"{key}.".startswith(PARAMS):
        raise UserError(f"{shown(text)}: {SWEEP_KEYS}")
    value = text.partition("=")[2]
    if (slashed := key.replace(".", "/")) in OF_HYDRA and slashed != key:
        raise UserError(f"{shown(text)}: did you mean {slashed}={value}?")
    if key in GROUPS and re.fullmatch(r"[\w./-]+\.yaml", value):
        raise UserError(f"{shown(text)}: did you mean {key}={Path(value).stem}?")


def _without_value(words: list[str]) -> str:
    """What to type in the place of words without an equals sign."""
    first, *rest = words or [""]
    if get_args_parser()._option_string_actions.get(f"--{first}") is not None:
        return f"did you mean --{first}?"
    if groups := [group for group in GROUPS if first in options(group)]:
        return f"must be key=value; did you mean {' or '.join(f'{g}={first}' for g in groups)}?"
    key, _, value = re.sub("[/:]([^/:]*)$", r" \1", first).partition(" ")
    if value and key in KEYS:
        first, rest = key, [value, *rest]
    if rest:
        return f"must be key=value; did you mean {first}={_joined(' '.join(rest))}?"
    if first.partition(".")[0] in KEYS:
        return f"must be key=value, such as {first}=<value>"
    return f"must be key=value; see {train_command()} --help"


def _joined(value: str) -> str:
    """The value as a list of several, or the same list, without spaces."""
    return re.sub(r"[\s;,]+", ",", re.sub(r"\s*([,;:])\s*", r"\1", value)).strip(",")


def _typed(key: str, value: str) -> str:
    """The override as typed in a shell, with no more quotes than it needs."""
    word = f"{key}={value}"
    return quote(word) if _reads(word) == value else in_quotes(key, value)


def _reads(word: str) -> object:
    """What Hydra reads as the value; None if it cannot, or reads null."""
    try:
        return OverridesParser.create().parse_override(word).value()
    except HydraException:
        return None


def _quoted(word: str) -> str:
    """The word in quotes if it is a run directory: its name may contain = and commas, which mean
    something to Hydra."""
    if not re.match("repeat=[^'\"]", word):
        return word
    key, _, path = word.partition("=")
    return f"{key}='{path}'"


def _check_config_dir(config_dir: Path) -> None:
    """Refuse a directory that is not there, and a file that would never be read, because Hydra
    finds this project's first."""
    if not config_dir.is_dir():
        reason = "is not a directory" if config_dir.exists() else "no such directory"
        raise UserError(f"--config-dir {config_dir}: {reason}")
    for path in sorted(config_dir.rglob("*.yaml")):
        ours = CONF_DIR / path.relative_to(config_dir)
        if ours.is_file() and path.is_file() and ours.read_bytes() != path.read_bytes():
            reason = "this project has a file of that name, which is used instead"
            raise UserError(f"{path}: {reason}; give yours another name")


def _refuse(message: str) -> NoReturn:
    raise UserError(message)
