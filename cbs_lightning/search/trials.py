"""The runs of a search, and the bracket of batch sizes that holds the least K·b."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from statistics import fmean, median

Cell = tuple[int, int]  # effective batch size, seed


@dataclass(frozen=True)
class Proposal:
    """A run to make next.

    Attributes:
        batch_size: one of the search's batch sizes.
        seed: one of the search's seeds.
    """

    batch_size: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """The outcome of one run.

    Attributes:
        batch_size: effective batch size, min(b, n).
        seed: seed of the run.
        steps: K, the steps until the threshold was reached; None if it was not.
        steps_run: K, or the steps that it is known to exceed.
        loss: loss by the stopping rule at the last of these steps; None if the run diverged. Only
            runs that missed the threshold are compared by it.
        abandoned: whether a search gave up on it; it counts as long as it cost more than the limit.

    Raises:
        ValueError: a number of samples or steps is none.

    >>> reached = Trial(batch_size=16, seed=0, steps=100, steps_run=100, loss=0.2)
    >>> reached.sfo
    1600
    >>> abandoned = Trial(batch_size=8, seed=0, steps=None, steps_run=301, loss=0.5)
    >>> abandoned.sfo is None, abandoned.spent
    (True, 2408)
    """

    batch_size: int
    seed: int
    steps: int | None
    steps_run: int
    loss: float | None
    abandoned: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("steps", 1), ("steps_run", 0)):
            value = getattr(self, name)
            if name == "steps" and value is None:
                continue
            if not is_whole(value) or value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, not {value!r}")

    @property
    def sfo(self) -> int | None:
        """K·b; None if the threshold was not reached."""
        return None if self.steps is None else self.steps * self.batch_size

    @property
    def spent(self) -> int:
        """Gradients of these steps, whether or not the threshold was reached."""
        return self.steps_run * self.batch_size


@dataclass(frozen=True)
class BatchSizeTrials:
    """All trials of one batch size; there is at least one."""

    batch_size: int
    trials: tuple[Trial, ...]

    @property
    def reached(self) -> list[int]:
        """SFO of the trials that reached the threshold."""
        return [trial.sfo for trial in self.trials if trial.sfo is not None]

    @property
    def complete(self) -> bool:
        """Whether all trials reached the threshold."""
        return len(self.reached) == len(self.trials)

    @property
    def median_sfo(self) -> float:
        """Over the trials that reached the threshold; there must be one."""
        return median(self.reached)

    @property
    def tells(self) -> bool:
        """Whether it can be compared: a trial reached the threshold, or none diverged."""
        return bool(self.reached) or math.isfinite(self.loss)

    @property
    def loss(self) -> float:
        """Mean final loss of the trials that missed the threshold; infinite if one diverged."""
        missed = [trial.loss for trial in self.trials if trial.steps is None]
        return fmean(math.inf if loss is None else loss for loss in missed)

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key; the smallest is the best.

        First the share of seeds that missed the threshold, then the median SFO (the final loss if
        no seed reached it), then the larger batch size.
        """
        missed = 1 - len(self.reached) / len(self.trials)
        return missed, self.median_sfo if self.reached else self.loss, -self.batch_size


@dataclass(frozen=True)
class Bracket:
    """The best batch size tried and its nearest tried neighbours, which did worse.

    K·b has one minimum, so it lies between the neighbours.
    """

    best: BatchSizeTrials
    low: BatchSizeTrials | None
    high: BatchSizeTrials | None

    @classmethod
    def of(cls, groups: Sequence[BatchSizeTrials]) -> "Bracket":
        """`groups` has at least one element, in ascending order of batch size."""
        return cls.about(groups, min(groups, key=lambda group: group.rank))

    @classmethod
    def about(cls, groups: Sequence[BatchSizeTrials], best: BatchSizeTrials) -> "Bracket":
        """About one of the groups, as if it were the best."""
        at = groups.index(best)
        return cls(
            best,
            groups[at - 1] if at > 0 else None,
            groups[at + 1] if at + 1 < len(groups) else None,
        )

    @property
    def ends(self) -> list[BatchSizeTrials]:
        return [group for group in (self.low, self.high) if group is not None]

    def untried(self, batch_sizes: Sequence[int], octaves: float) -> list[list[int]]:
        """Untried batch sizes below and above the best.

        A side whose neighbour is already within `octaves` of the best has none.
        """
        best = self.best.batch_size
        low = self.low.batch_size if self.low else 0
        high = self.high.batch_size if self.high else math.inf
        nearest, furthest = best * 2**-octaves, best * 2**octaves
        return [
            [b for b in batch_sizes if low < b < best and low < nearest],
            [b for b in batch_sizes if best < b < high and furthest < high],
        ]


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def seeds_left(
    batch_size: int, seeds: Iterable[int], failed: frozenset[Cell], run: Iterable[int] = ()
) -> list[int]:
    """Seeds with which a batch size neither was `run` nor failed."""
    return [seed for seed in seeds if seed not in run and (batch_size, seed) not in failed]


def least_sfo(trials: Iterable[Trial]) -> float | None:
    """The least median SFO of a batch size, whose seeds count with their best run each."""
    best: dict[int, dict[int, int]] = {}
    for trial in trials:
        if trial.sfo is not None:
            seeds = best.setdefault(trial.batch_size, {})
            seeds[trial.seed] = min(trial.sfo, seeds.get(trial.seed, trial.sfo))
    return min((median(seeds.values()) for seeds in best.values()), default=None)


def group_by_batch_size(trials: Iterable[Trial]) -> list[BatchSizeTrials]:
    """In ascending order of batch size, whatever the order of the trials."""
    ordered = sorted(trials, key=lambda trial: (trial.batch_size, trial.seed, trial.steps_run))
    groups = groupby(ordered, lambda trial: trial.batch_size)
    return [BatchSizeTrials(batch_size, tuple(same)) for batch_size, same in groups]
