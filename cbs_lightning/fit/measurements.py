"""What runs of one optimizer say about K: what a curve is fitted to."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from cbs_lightning.fit.likelihood import Floats, Observations
from cbs_lightning.theory.checks import number, positive_array, shorten

FEWEST_SIZES = 4  # that reached the threshold, for a minimum to be spoken of

LIMITS = (1e-9, 1e18)  # of batch sizes and steps: beyond, products of them leave what floats hold

Unreached = Mapping[int, float | Sequence[float]] | Iterable[int | tuple[int, float]] | None


@dataclass(frozen=True)
class Measurements:
    """Runs of one optimizer: batch sizes, and log K or, censored, the log of the steps run."""

    batch_sizes: Floats
    observations: Observations
    rounded_to: Floats  # steps that K of each run is a multiple of: by rule `epoch`, an epoch's

    @property
    def reached(self) -> Floats:
        return self.batch_sizes[~self.observations.censored]

    @property
    def log_steps(self) -> Floats:
        """log K of the runs that reached the threshold."""
        return self.observations.log_steps[~self.observations.censored]

    @property
    def rounding(self) -> Floats:
        """Of log K of the runs that reached the threshold: the most it may be off either way."""
        halves: Floats = self.rounded_to[~self.observations.censored] * np.exp(-self.log_steps) / 2
        return halves

    @property
    def distinct(self) -> int:
        """How many batch sizes reached the threshold."""
        return len(np.unique(self.reached))

    @property
    def complete(self) -> Floats:
        """The batch sizes whose runs all reached the threshold."""
        return np.setdiff1d(self.reached, self.batch_sizes[self.observations.censored])

    def median_sfo(self, log_steps: Floats, sizes: Floats) -> Floats:
        """The median K·b at each of the sizes, for every row of log K of the runs that reached."""
        steps = np.exp(log_steps)
        medians = [np.median(steps[:, self.reached == size], axis=1) for size in sizes]
        costs: Floats = np.round(np.column_stack(medians) * sizes, 6)
        return costs

    @cached_property
    def at_edge(self) -> str:
        """Which edge of the batch sizes that tell has the least median K·b, "" if none has.

        One that was run in vain tells if more was spent there than the least K·b.
        """
        sizes = np.unique(self.reached)
        if not len(sizes):
            return ""
        costs = self.median_sfo(self.log_steps[None], sizes)[0]
        least = sizes[costs == costs.min()].max()  # of equal ones the largest, as everywhere
        spent = np.exp(self.observations.log_steps) * self.batch_sizes
        telling = self.batch_sizes[~self.observations.censored | (spent > costs.min())]
        if least == telling.min():
            return "smallest"
        return "largest" if least == telling.max() else ""

    @cached_property
    def replicated(self) -> bool:
        """Whether every batch size that reached the threshold did so with several seeds."""
        _, seeds = np.unique(self.reached, return_counts=True)
        return len(seeds) > 0 and bool(seeds.min() > 1)

    def collapse(self) -> "Measurements":
        """A run a batch size: the mean log K of its seeds, and the least steps run in vain."""
        missed = self.observations.censored
        reached_sizes, missed_sizes = np.unique(self.reached), np.unique(self.batch_sizes[missed])
        means = [self.log_steps[self.reached == size].mean() for size in reached_sizes]
        vain_sizes, vain = self.batch_sizes[missed], self.observations.log_steps[missed]
        least = [vain[vain_sizes == size].min() for size in missed_sizes]
        sizes = np.concatenate((reached_sizes, missed_sizes))
        return Measurements(
            sizes,
            Observations(
                np.array([*means, *least]),
                np.repeat([False, True], [len(reached_sizes), len(missed_sizes)]),
            ),
            np.array([self.rounded_to[self.batch_sizes == size].max() for size in sizes]),
        )

    def resample(self, rng: np.random.Generator, count: int) -> Observations:
        """Bootstrap over seeds: what they scatter about the mean of their batch size, drawn anew.

        The scatter is pooled over the batch sizes, since that of two or three seeds says little,
        and widened by what the means took from it. What rounding hid is drawn too.
        """
        _, index, seeds = np.unique(self.reached, return_inverse=True, return_counts=True)
        means = (np.bincount(index, self.log_steps) / seeds)[index]
        pool = (self.log_steps - means) * np.sqrt(seeds / (seeds - 1))[index]
        known = ~self.observations.censored
        drawn = np.tile(self.observations.log_steps, (count, 1))
        drawn[:, known] = means + rng.choice(pool, size=(count, len(means)))
        drawn[:, known] += self.rounding * rng.uniform(-1, 1, (count, len(means)))
        return Observations(drawn, self.observations.censored)


def measurements(
    batch_sizes: ArrayLike,
    steps: ArrayLike,
    unreached: Unreached = None,
    rounded_to: ArrayLike = 1,
) -> Measurements:
    """Check the numbers of `fit`.

    Where `unreached` names only batch sizes, the steps run are taken to be at
    least those of the longest run that reached the threshold, in steps or in samples, whichever
    says less: true of runs with a common budget in either.
    """
    sizes, counts = _run_numbers("batch_sizes", batch_sizes), _run_numbers("steps", steps)
    if sizes.shape != counts.shape:
        raise ValueError(f"{sizes.size} batch sizes, but {counts.size} steps")
    most_steps, most_samples = counts.max(initial=1.0), (counts * sizes).max(initial=1.0)
    missed = [
        (size, min(most_steps, most_samples / size) if run is None else run)
        for size, run in _pairs(unreached)
    ]
    missed = [(size, run) for size, run in missed if run > 0]
    missed_sizes, missed_steps = (np.array([pair[i] for pair in missed]) for i in (0, 1))
    censored = np.repeat([False, True], [len(counts), len(missed)])
    log_steps = np.log(np.concatenate((counts, missed_steps)))
    multiples = _run_numbers("rounded_to", rounded_to)
    if multiples.size not in (1, counts.size):
        raise ValueError(f"{counts.size} steps, but {multiples.size} numbers in rounded_to")
    return Measurements(
        np.concatenate((sizes, missed_sizes)),
        Observations(log_steps, censored),
        np.concatenate((np.broadcast_to(multiples, counts.shape), np.ones(len(missed)))),
    )


def _run_numbers(name: str, values: ArrayLike) -> Floats:
    numbers = np.atleast_1d(positive_array(name, values))
    if numbers.ndim != 1:
        raise ValueError(f"{name} must be a sequence of numbers, not {numbers.tolist()}")
    least, most = LIMITS
    if ((numbers < least) | (numbers > most)).any():
        raise ValueError(
            f"{name} must be from {least:g} to {most:g}, not {shorten(numbers.tolist())}"
        )
    return numbers


def _pairs(unreached: Unreached) -> Iterator[tuple[float, float | None]]:
    if unreached is None:
        return
    items = unreached.items() if isinstance(unreached, Mapping) else unreached
    if not _is_sequence(items):
        raise ValueError(
            f"unreached must be batch sizes, with or without steps, not {shorten(unreached)}"
        )
    for item in items:
        pair = item if _is_run_list(item) else (item, None)
        if len(pair) != 2:
            raise ValueError(f"unreached must be batch sizes and steps run, not {shorten(item)}")
        size, runs = pair
        for run in runs if _is_run_list(runs) else (runs,):
            yield _count(size, least=1), None if run is None else _count(run, least=0)


def _is_run_list(items: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(items, tuple | list | np.ndarray) and _is_sequence(items)


def _is_sequence(items: Any) -> bool:
    """Text and a zero-dimensional array are iterable in name only."""
    whole = isinstance(items, str | bytes) or np.ma.isMaskedArray(items)
    return isinstance(items, Iterable) and not whole and getattr(items, "ndim", 1) > 0


def _count(value: Any, least: int) -> float:
    try:
        found = number("unreached", value)
    except ValueError:
        found = math.nan
    if not least <= found <= LIMITS[1]:
        raise ValueError(f"unreached must be batch sizes and steps run, not {shorten(value)}")
    return found
