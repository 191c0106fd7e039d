"""What a search is told: conf/hydra/sweeper/critical_batch.yaml. Needs no framework."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from cbs_lightning.errors import ConfigError, UserError

GROUP = "hydra.sweeper"
SMALLEST = 4  # batch size, unless another is given
OCTAVES = (0.1, 16)  # that can be asked for


@dataclass(frozen=True)
class Budget:
    """None: no limit."""

    runs: int | None = None
    gradients: float | None = None
    hours: float | None = None

    def used_up(self, runs: int, gradients: float, hours: float) -> str | None:
        """Which part of it is, as key=value."""
        spent = {"runs": runs, "gradients": gradients, "hours": hours}
        for key, value in spent.items():
            limit = getattr(self, key)
            if limit is not None and value >= limit:
                return f"budget.{key}={limit:g}" if key == "hours" else f"budget.{key}={limit}"
        return None


@dataclass(frozen=True)
class SearchSettings:
    """Of one search."""

    smallest: int | None = None
    largest: int | None = None
    octaves: float = 1.0
    give_up: float = 1.5
    budget: Budget = field(default_factory=Budget)

    def check(self) -> None:
        """As `parse_settings` does."""
        _require(_is_above(self.give_up, 1), "give_up", self.give_up, "must be a number > 1")
        narrow, wide = OCTAVES
        valid = _is_above(self.octaves, 0) and narrow <= self.octaves <= wide
        allowed = f"must be a number from {narrow} to {wide}"
        _require(valid, "octaves", self.octaves, allowed)
        for key in ("smallest", "largest", "budget.runs"):
            value = attrgetter(key)(self)
            valid = value is None or _is_count(value)
            _require(valid, key, value, "must be a whole number >= 1, or null")
        for key in ("budget.gradients", "budget.hours"):
            value = attrgetter(key)(self)
            valid = value is None or _is_above(value, 0)
            _require(valid, key, value, "must be a number > 0, or null")
        if self.largest is not None and self.smallest is not None:
            allowed = f"must be above {GROUP}.smallest={self.smallest}"
            _require(self.largest > self.smallest, "largest", self.largest, allowed)

    def batch_sizes(self, named: Iterable[int] | None, data_size: int) -> list[int]:
        """The range, ascending, as asked for; of those that are the whole data set, one.

        Raise `UserError` where there is nothing to search in it.
        """
        smallest, largest = self.smallest or SMALLEST, self.largest or data_size
        allowed = f"the data set has {data_size:,} samples"
        _require(smallest <= data_size, "smallest", smallest, allowed)
        if named is None:
            asked = f"{GROUP}.smallest={smallest} {GROUP}.largest={largest}"
            above = f"must be above {GROUP}.smallest={smallest}"
            _require(largest >= smallest, "largest", largest, above)
            wanted = self._spaced(smallest, largest)
        else:
            asked = f"batch_size={','.join(map(str, named))}"
            limits = self.smallest or 0, self.largest or math.inf
            wanted = [size for size in sorted(set(named)) if limits[0] <= size <= limits[1]]
        found = sorted({min(size, data_size): size for size in reversed(wanted)}.values())
        if len(found) < 2:
            few = f"b = {found[0]} alone is" if found else "no batch size is"
            raise UserError(f"{asked}: {few} within the range; a search needs several ({allowed})")
        return found

    def _spaced(self, smallest: int, largest: int) -> list[int]:
        """An octave apart, or less where the answer must be narrower."""
        spacing = min(1.0, self.octaves)
        count = int(math.log2(largest / smallest) / spacing + 1e-9) + 1
        return list(dict.fromkeys(round(smallest * 2 ** (i * spacing)) for i in range(count)))


KEYS = [
    *(field.name for field in fields(SearchSettings)),
    *(f"budget.{field.name}" for field in fields(Budget)),
]


def parse_settings(budget: Any, **settings: Any) -> SearchSettings:
    """Raise `ConfigError` for the first value that cannot be."""
    group = f"must be a group of keys, such as {GROUP}.budget.runs=10"
    _require(isinstance(budget, Mapping), "budget", budget, group)
    for prefix, values, kind in (("", settings, SearchSettings), ("budget.", budget, Budget)):
        names = [field.name for field in fields(kind)]
        for key in values:
            allowed = ", ".join(f"{GROUP}.{prefix}{name}" for name in names)
            reason = f"no such key; allowed: {allowed}"
            _require(key in names, f"{prefix}{key}", values[key], reason)
    found = SearchSettings(**settings, budget=Budget(**budget))
    found.check()
    return found


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{GROUP}.{key}", value, allowed)


def _is_above(value: Any, least: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least < value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
