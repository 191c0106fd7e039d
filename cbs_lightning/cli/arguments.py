"""Checks the words of a command line and brings them into the form that Hydra reads."""

import re
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.errors import UserError

OF_HYDRA = {  # keys that have no effect here, with what to do instead
    "hydra.run.dir": "a run makes its own directory; set output_dir and study",
    "hydra.sweep.dir": "runs make their own directories; set output_dir and study",
    "hydra.sweep.subdir": "runs make their own directories; set output_dir and study",
    "hydra.output_subdir": "the configuration is in the run's own directory, as config.yaml",
    "hydra.job.chdir": "paths are those of the current directory; set output_dir",
    "hydra.verbose": "for more progress lines set progress.every_seconds=1, for tracebacks "
    "HYDRA_FULL_ERROR=1 in the environment",
}
WITH_VALUE = re.compile(r"-(p|cp|cn|cd|-package|-config-(path|name|dir)|-experimental-rerun)")


def readable(words: list[str]) -> list[str]:
    """The same words, in the order and with the quotes that Hydra's parser needs."""
    before = ["", *words[:-1]]
    overrides = [_is_override(word, previous) for previous, word in zip(before, words, strict=True)]
    options = [word for word, moves in zip(words, overrides, strict=True) if not moves]
    # Those that stand on both sides of an option would not be found.
    return options + [_quoted(word) for word, moves in zip(words, overrides, strict=True) if moves]


def _is_override(word: str, previous: str) -> bool:
    if WITH_VALUE.fullmatch(previous):
        return False
    return not word.startswith("-") and (word[:1] in ("~", "+") or "=" in word)


def _quoted(word: str) -> str:
    """The word in quotes if it is a run directory: its name may contain = and commas, which mean
    something to Hydra."""
    if not re.match("repeat=[^'\"]", word):
        return word
    key, _, path = word.partition("=")
    return f"{key}='{path}'"


def check(words: list[str]) -> None:
    """Raise `UserError` for what Hydra would ignore, or answer with its usage message."""
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    arguments, unknown = parser.parse_known_args(words)
    for word in unknown:
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        raise UserError(f"{word}: no such option; keys are typed as {name}=<value>, see --help")
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key in OF_HYDRA and "=" in word:
            raise UserError(f"{word}: has no effect here: {OF_HYDRA[key]}")
    if arguments.config_dir:
        _check_hidden(Path(arguments.config_dir))


def _check_hidden(config_dir: Path) -> None:
    """Refuse a file that would never be read, because Hydra finds this project's first."""
    for path in sorted(config_dir.rglob("*.yaml")):
        ours = CONF_DIR / path.relative_to(config_dir)
        if ours.is_file() and path.is_file() and ours.read_bytes() != path.read_bytes():
            reason = "this project has a file of that name, which is used instead"
            raise UserError(f"{path}: {reason}; give yours another name")


def _refuse(message: str) -> NoReturn:
    raise UserError(message)
