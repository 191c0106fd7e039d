"""What runs of one optimizer say about K: what a curve is fitted to."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from cbs_lightning.likelihood import Floats, Observations

Unreached = Mapping[int, float | Sequence[float]] | Iterable[int | tuple[int, float]] | None


@dataclass(frozen=True)
class Measurements:
    """Runs of one optimizer: batch sizes, and log K or, censored, the log of the steps run."""

    batch_sizes: Floats
    observations: Observations

    @property
    def reached(self) -> Floats:
        return self.batch_sizes[~self.observations.censored]

    @property
    def log_steps(self) -> Floats:
        """Of the runs that reached the threshold."""
        return self.observations.log_steps[~self.observations.censored]

    @property
    def distinct(self) -> int:
        """How many batch sizes reached the threshold."""
        return len(np.unique(self.reached))

    @cached_property
    def replicated(self) -> bool:
        """Whether every batch size that reached the threshold did so with several seeds."""
        _, seeds = np.unique(self.reached, return_counts=True)
        return len(seeds) > 0 and bool(seeds.min() > 1)

    def collapsed(self) -> "Measurements":
        """A run a batch size: the mean log K of its seeds, or the least steps run in vain."""
        sizes = np.unique(self.batch_sizes)
        censored = ~np.isin(sizes, self.reached)
        log_steps = np.array(
            [
                self.observations.log_steps[self.batch_sizes == size].min()
                if missed
                else self.log_steps[self.reached == size].mean()
                for size, missed in zip(sizes, censored, strict=True)
            ]
        )
        return Measurements(sizes, Observations(log_steps, censored))

    def resampled(self, rng: np.random.Generator, count: int) -> Observations:
        """Bootstrap over seeds: what they scatter about the mean of their batch size, drawn anew.

        The scatter is pooled over the batch sizes, since that of two or three seeds says little,
        and widened by what the means took from it.
        """
        _, index, seeds = np.unique(self.reached, return_inverse=True, return_counts=True)
        means = (np.bincount(index, self.log_steps) / seeds)[index]
        pool = (self.log_steps - means) * np.sqrt(seeds / (seeds - 1))[index]
        known = ~self.observations.censored
        drawn = np.tile(self.observations.log_steps, (count, 1))
        drawn[:, known] = means + rng.choice(pool, size=(count, len(means)))
        return Observations(drawn, self.observations.censored)


def measurements(
    batch_sizes: ArrayLike, steps: ArrayLike, unreached: Unreached = None
) -> Measurements:
    """Check the numbers. Where `unreached` names only batch sizes, the steps run are taken to be at
    least those of the longest run that reached the threshold, in steps or in samples, whichever
    says less: true of runs with a common budget in either."""
    sizes, counts = (
        np.atleast_1d(np.asarray(batch_sizes, float)),
        np.atleast_1d(np.asarray(steps, float)),
    )
    if sizes.shape != counts.shape or sizes.ndim != 1:
        raise ValueError(f"{sizes.size} batch sizes, but {counts.size} steps")
    for name, values in (("batch_sizes", sizes), ("steps", counts)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} must be positive numbers, not {values.tolist()}")
    most_steps, most_samples = counts.max(initial=1.0), (counts * sizes).max(initial=1.0)
    missed = [
        (size, min(most_steps, most_samples / size) if run is None else run)
        for size, run in _pairs(unreached)
    ]
    for size, run in missed:
        if not (math.isfinite(size) and size > 0 and math.isfinite(run) and run >= 0):
            raise ValueError(f"unreached must be batch sizes and steps run, not {size}: {run}")
    missed = [(size, run) for size, run in missed if run > 0]
    missed_sizes, missed_steps = (np.array([pair[i] for pair in missed]) for i in (0, 1))
    censored = np.repeat([False, True], [len(counts), len(missed)])
    log_steps = np.log(np.concatenate((counts, missed_steps)))
    return Measurements(np.concatenate((sizes, missed_sizes)), Observations(log_steps, censored))


def _pairs(unreached: Unreached) -> Iterator[tuple[float, float | None]]:
    items = unreached.items() if isinstance(unreached, Mapping) else unreached or ()
    for item in items:
        size, runs = item if isinstance(item, tuple | list) else (item, None)
        for run in runs if isinstance(runs, Iterable) else (runs,):
            yield size, run
