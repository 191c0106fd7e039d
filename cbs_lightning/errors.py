"""What a user can mend: shown as one line, never as a traceback."""

from typing import Any


class UserError(Exception):
    """A mistake outside this code; the message says in one line what to do about it."""


class ConfigError(UserError, ValueError):
    def __init__(self, key: str, value: Any, allowed: str) -> None:
        super().__init__(f"{key}={_shown(value)}: {allowed}")


class DataError(UserError):
    """A data set that is missing, incomplete or not what it should be."""


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
