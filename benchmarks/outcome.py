"""What a part of the benchmark found: numbers, tables of them, and how they meet targets."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Several measurements of one number: their median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        values = list(values)
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.median:.3g}"
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


class Verdict(StrEnum):
    AIM = "aim met"
    MET = "met"
    UNCLEAR = "unclear"  # the target lies between the quartiles
    MISSED = "missed"


@dataclass(frozen=True)
class Target:
    """A number must be at most `must`, or at least, and is better at most, or at least, `aim`."""

    what: str
    must: float
    aim: float
    at_least: bool = False

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        aim = f", aim {sign} {self.aim:g}" if self.aim != self.must else ""
        return f"{sign} {self.must:g}{aim}"

    def verdict(self, found: Spread) -> Verdict:
        if self._holds(found.median, self.aim):
            return Verdict.AIM
        if self._holds(found.median, self.must):
            return Verdict.MET
        best = found.high if self.at_least else found.low
        return Verdict.UNCLEAR if self._holds(best, self.must) else Verdict.MISSED

    def worst(self, found: dict[str, Spread]) -> str:
        """Of several, by its name."""
        choose = min if self.at_least else max
        return choose(found, key=lambda name: found[name].median)

    def _holds(self, value: float, limit: float) -> bool:
        return value >= limit if self.at_least else value <= limit


@dataclass(frozen=True)
class Finding:
    """What is held against a target: the worst of several, and where that was."""

    target: Target
    worst: Spread
    where: str
    median: float  # of all

    @classmethod
    def of(cls, target: Target, found: dict[str, Spread]) -> "Finding":
        where = target.worst(found)
        median = statistics.median(spread.median for spread in found.values())
        return cls(target, found[where], where, median)

    @property
    def verdict(self) -> Verdict:
        return self.target.verdict(self.worst)


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Outcome:
    numbers: Any  # for JSON
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
