"""What a user can mend: shown as one line, never as a traceback."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cbs_lightning.console import visible

LONGEST_SHOWN = 200  # characters of a value
SYNONYMS = {  # what other projects call a key
    "learning_rate": "lr", "bs": "batch_size", "threshold": "loss", "wd": "weight_decay",
    "device": "accelerator", "gpus": "devices", "workers": "jobs", "none": "null",
    "epochs": "max_epochs", "steps": "max_steps", "name": "study",
}  # fmt: skip


class UserError(Exception):
    """A mistake outside this code; the message says in one line what to do about it."""

    def __str__(self) -> str:
        return visible(super().__str__())


class PartlyDoneError(UserError):
    """Some of it could not be done; `lines` tell what was, `problems` why the rest was not."""

    def __init__(self, lines: Sequence[str], problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.lines = lines
        self.problems = problems


_TYPED = {"None": "null", "True": "true", "False": "false"}


class ConfigError(UserError, ValueError):
    """A key whose value is not allowed; `MISSING` is the value of one that has none."""

    def __init__(self, key: str, value: Any, allowed: str) -> None:
        typed = key if value is MISSING else f"{key}={_TYPED.get(str(value), value)}"
        super().__init__(f"{shown(typed)}: {allowed}")
        self.key = key
        self.allowed = allowed


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise a `ConfigError` unless `condition` holds; `allowed` says what the value must be."""
    if not condition:
        raise ConfigError(key, value, allowed)


def did_you_mean(name: str, known: Iterable[str], typed: str = "{}") -> str:
    """The question with the nearest name, to be followed by what is allowed; or nothing.

    Args:
        name: what was typed.
        known: what there is.
        typed: how it is typed, with {} for the name.
    """
    meant = nearest(name, known)
    return f"did you mean {typed.replace('{}', meant, 1)}? " if meant is not None else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that may have been meant, if any."""
    by_case = {each.lower(): each for each in known}
    typed = name.lower().replace("-", "_")
    if SYNONYMS.get(typed) in by_case:
        typed = SYNONYMS[typed]
    found = get_close_matches(typed, by_case, n=1)
    longer = [each for each in by_case if each.startswith(f"{typed}_")]
    found = found or (longer if len(longer) == 1 else [])
    return by_case[found[0]] if found else None


class DataError(UserError):
    """A data set that is missing, incomplete or not what it should be."""


def shown(text: str) -> str:
    """The text, cut where it is longer than anybody reads."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


@contextmanager
def output_errors(output_dir: Path) -> Iterator[None]:
    """A disk that is full, read-only or gone is the user's to mend, and takes one line."""
    try:
        yield
    except OSError as error:
        if error.filename and not Path(error.filename).is_relative_to(output_dir):
            raise
        reason = error.strerror or str(error) or type(error).__name__
        where = f" ({error.filename})" if error.filename else ""
        advice = "what was written before is intact; run the same command to resume"
        if not any(output_dir.glob("*/*/config.yaml")):  # of a run
            advice = "nothing was written; choose another output_dir"
        raise UserError(f"output_dir={output_dir}: {reason}{where}; {advice}") from error


def check_writable(output_dir: Path) -> None:
    """Raise `UserError` where nothing can be written there, or where it cannot be made."""
    try:
        there = next(each for each in (output_dir, *output_dir.absolute().parents) if each.exists())
    except OSError as error:
        raise UserError(f"output_dir={shown(str(output_dir))}: {error.strerror}") from None
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "cannot be written to" if there.is_dir() else "is not a directory"
        advice = "nothing was written; choose another output_dir"
        raise UserError(f"output_dir={output_dir}: {there} {reason}; {advice}")
