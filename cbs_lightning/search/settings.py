"""The settings of a search (conf/hydra/sweeper/critical_batch.yaml). Imports no framework."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from cbs_lightning.errors import UserError, did_you_mean, require

GROUP = "hydra.sweeper"
SMALLEST = 4  # batch size, unless another is given
OCTAVES = (0.1, 16)  # that can be asked for


@dataclass(frozen=True)
class Budget:
    """When a search stops before b* is known; None means no limit."""

    runs: int | None = None
    gradients: float | None = None  # gradient evaluations (SFO) over all runs
    hours: float | None = None  # of wall-clock time

    def used_up(self, runs: int, gradients: float, hours: float) -> str | None:
        """The limit that was reached, as key=value; None while there is budget left."""
        spent = {"runs": runs, "gradients": gradients, "hours": hours}
        for key, value in spent.items():
            limit = getattr(self, key)
            if limit is not None and value >= limit:
                return f"budget.{key}={limit:g}" if key == "hours" else f"budget.{key}={limit}"
        return None


@dataclass(frozen=True)
class SearchSettings:
    """Where a search looks for b*, how closely, and when it gives up."""

    smallest: int | None = None  # batch size; None: 4
    largest: int | None = None  # batch size; None: the size of the data set
    octaves: float = 1.0  # how close the worse batch sizes on either side of b* must be
    give_up: float = 1.25  # a run is abandoned beyond this multiple of the least median SFO so far
    probes: int = 0  # of the first run, whose prediction of b* the search goes on from; 0: none
    budget: Budget = field(default_factory=Budget)

    def check(self) -> None:
        """Raise `ConfigError` for the first invalid value."""
        valid = _is_above(self.give_up, 1)
        require(valid, f"{GROUP}.give_up", self.give_up, "must be a number > 1")
        narrow, wide = OCTAVES
        valid = _is_above(self.octaves, 0) and narrow <= self.octaves <= wide
        allowed = f"must be a number from {narrow} to {wide}"
        require(valid, f"{GROUP}.octaves", self.octaves, allowed)
        valid = self.probes == 0 or _is_count(self.probes)
        require(valid, f"{GROUP}.probes", self.probes, "must be a whole number >= 0")
        for key in ("smallest", "largest", "budget.runs"):
            value = attrgetter(key)(self)
            valid = value is None or _is_count(value)
            require(valid, f"{GROUP}.{key}", value, "must be a whole number >= 1, or null")
        for key in ("budget.gradients", "budget.hours"):
            value = attrgetter(key)(self)
            valid = value is None or _is_above(value, 0)
            require(valid, f"{GROUP}.{key}", value, "must be a number > 0, or null")
        if self.largest is not None and self.smallest is not None:
            allowed = f"must be above {GROUP}.smallest={self.smallest}"
            require(self.largest > self.smallest, f"{GROUP}.largest", self.largest, allowed)

    def batch_sizes(self, named: Iterable[int] | None, data_size: int) -> list[int]:
        """The batch sizes to search, ascending; only one that is the whole data set or more.

        `named` are those from the command line or the grid; None: from `smallest` to `largest`.
        Raise `UserError` unless there are at least two.
        """
        smallest, largest = self.smallest or SMALLEST, self.largest or data_size
        allowed = f"the data set has {data_size:,} samples"
        require(smallest <= data_size, f"{GROUP}.smallest", smallest, allowed)
        if named is None:
            asked = f"{GROUP}.smallest={smallest} {GROUP}.largest={largest}"
            above = f"must be above {GROUP}.smallest={smallest}"
            require(largest >= smallest, f"{GROUP}.largest", largest, above)
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
        """From `smallest` to `largest`, an octave apart, or less if `octaves` is smaller."""
        spacing = min(1.0, self.octaves)
        count = int(math.log2(largest / smallest) / spacing + 1e-9) + 1
        return list(dict.fromkeys(round(smallest * 2 ** (i * spacing)) for i in range(count)))


KEYS = [
    *(field.name for field in fields(SearchSettings)),
    *(f"budget.{field.name}" for field in fields(Budget)),
]


def parse_settings(budget: Any, **settings: Any) -> SearchSettings:
    """The settings from a sweeper's configuration.

    Raise `ConfigError` for the first unknown key or invalid value.
    """
    group = f"must be a group of keys, such as {GROUP}.budget.runs=10"
    require(isinstance(budget, Mapping), f"{GROUP}.budget", budget, group)
    for prefix, values, kind in (("", settings, SearchSettings), ("budget.", budget, Budget)):
        names = [field.name for field in fields(kind)]
        for key in values:
            allowed = ", ".join(f"{GROUP}.{prefix}{name}" for name in names)
            meant = did_you_mean(str(key), names, f"{GROUP}.{prefix}{{}}")
            reason = f"no such key; {meant}allowed: {allowed}"
            require(key in names, f"{GROUP}.{prefix}{key}", values[key], reason)
    found = SearchSettings(**settings, budget=Budget(**budget))
    found.check()
    return found


def _is_above(value: Any, least: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least < value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
