"""What values a key may have, and the line that a user reads otherwise."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cbs_lightning.config.grammar import powers_as_numbers
from cbs_lightning.errors import did_you_mean, require

LARGEST = 2**63 - 1
LONGEST_NAME = 255  # bytes, of a file


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`, or one of the `others`."""

    least: int
    most: int = LARGEST
    others: tuple[str | None, ...] = ()

    def check(self, key: str, value: Any) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        valid = value in self.others if not whole else self.least <= value <= self.most
        beyond = whole and value > self.most
        limit = f" and <= {self.most}" if self.most < LARGEST or beyond else ""
        allowed = f"must be a whole number >= {self.least}{limit}{self._or()}"
        if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
            allowed += f", such as {int(value)}"
        if isinstance(value, str) and (number := powers_as_numbers(value)) != value:
            allowed += f", such as {number}"
        if isinstance(value, list) and value:
            allowed += f"; to sweep, without brackets: {key}={','.join(map(str, value))}"
        if isinstance(value, str) and re.fullmatch(r"\d+([\s;]+\d+)+", value):
            allowed += (
                f"; several have commas between them: {key}={','.join(re.split('[ ;]+', value))}"
            )
        require(valid, key, value, allowed)

    def _or(self) -> str:
        names = ["null" if other is None else other for other in self.others]
        separator = " or " if len(names) == 1 else ", "
        return separator + " or ".join(names) if names else ""


class Positive:
    """A number above 0."""

    def check(self, key: str, value: Any) -> None:
        require(is_number(value) and value > 0, key, value, "must be a number > 0")


class Flag:
    """true or false."""

    def check(self, key: str, value: Any) -> None:
        require(isinstance(value, bool), key, value, "must be true or false")


@dataclass(frozen=True)
class OneOf:
    values: Iterable[str | None]

    def check(self, key: str, value: Any) -> None:
        names = ["null" if each is None else each for each in self.values]
        meant = did_you_mean(str(value), names, f"{key}={{}}")
        require(value in list(self.values), key, value, f"{meant}{one_of(names)}")


class Members:
    """Groups of keys by name; the names may be those of folders."""

    def check(self, key: str, value: Any) -> None:
        for name, settings in value.items():
            valid = re.fullmatch(r"\w[\w-]*", str(name)) is not None
            require(valid, f"{key}.{name}", settings, "a name has only letters, digits, _ and -")
            allowed = f"must be a group of keys, such as {key}.{name}._target_=<class>"
            require(isinstance(settings, dict), f"{key}.{name}", settings, allowed)


class PathName:
    def check(self, key: str, value: Any) -> None:
        require(isinstance(value, str) and value != "", key, value, "must be a path")


class FolderName:
    def check(self, key: str, value: Any) -> None:
        valid = isinstance(value, str) and re.fullmatch(r"[\w.+=-]*\w[\w.+=-]*", value) is not None
        allowed = "must be a folder's name: letters, digits and . _ + = -"
        require(valid, key, value, allowed)
        fits = len(value.encode()) <= LONGEST_NAME
        require(fits, key, value, f"{allowed}, {LONGEST_NAME} bytes at most")


@dataclass(frozen=True)
class OptionName:
    """The name of an option of a group, such as `adam`."""

    others: tuple[None, ...] = ()

    def check(self, key: str, value: Any) -> None:
        if value in self.others:
            return
        valid = isinstance(value, str) and re.fullmatch(r"\w[\w.-]*", value) is not None
        valid = valid and ".." not in value and len(value.encode()) <= LONGEST_NAME
        require(valid, key, value, "must be an option's name: letters, digits and . _ -")


class TextLine:
    """A line of text, such as the label of a variant."""

    def check(self, key: str, value: Any) -> None:
        valid = (
            isinstance(value, str) and value.isprintable() and len(value.encode()) <= LONGEST_NAME
        )
        require(valid, key, value, f"must be a line of text, {LONGEST_NAME} bytes at most")


class PackageNames:
    def check(self, key: str, value: Any) -> None:
        valid = isinstance(value, list) and all(isinstance(name, str) for name in value)
        require(valid, key, value, "must be a list of packages' names")


@dataclass(frozen=True)
class Factors:
    """At least two values to try, as multiples of another."""

    most: float = math.inf

    def check(self, key: str, value: Any) -> None:
        valid = isinstance(value, list) and all(is_number(each) and each > 0 for each in value)
        limit = f" and <= {self.most:g}" if self.most < math.inf else ""
        allowed = f"must be a list of at least two different numbers > 0{limit}, such as [0.3,1,3]"
        within = valid and len(set(value)) > 1 and max(value) <= self.most
        require(within, key, value, allowed)


Constraint = (
    Whole | Positive | Flag | OneOf | PathName | FolderName | OptionName | TextLine
    | PackageNames | Factors | Members
)  # fmt: skip


def one_of(values: Iterable[Any]) -> str:
    return f"allowed: {', '.join(sorted(str(value) for value in values)) or 'none'}"


def is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


def is_fraction(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1
