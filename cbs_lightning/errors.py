"""What a user can mend: shown as one line, never as a traceback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cbs_lightning.console import visible

LONGEST_VALUE = 300  # characters of a value that are shown


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


class ConfigError(UserError, ValueError):
    def __init__(self, key: str, value: Any, allowed: str) -> None:
        super().__init__(f"{key}={_shown(value)}: {allowed}")


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise a `ConfigError` unless `condition` holds; `allowed` says what the value must be."""
    if not condition:
        raise ConfigError(key, value, allowed)


class DataError(UserError):
    """A data set that is missing, incomplete or not what it should be."""


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


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
        advice = "whatever was written before is whole, and the same command goes on from it"
        if not _holds_something(output_dir):
            advice = "nothing was written; choose another output_dir"
        raise UserError(f"output_dir={output_dir}: {reason}{where}; {advice}") from error


def _holds_something(directory: Path) -> bool:
    try:
        return any(path.is_file() for path in directory.rglob("*"))
    except OSError:
        return False
