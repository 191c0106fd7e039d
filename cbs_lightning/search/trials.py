"""The runs of a search, and between which of them the least K·b lies."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

Cell = tuple[int, int]  # effective batch size, seed


@dataclass(frozen=True)
class Proposal:
    """A run to be made."""

    batch_size: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """What a run of a search found: K, or how far it got in vain."""

    batch_size: int  # effective
    seed: int
    steps: int | None  # K; None: not reached
    steps_run: int  # that were looked at
    loss: float | None  # by the rule, at K or at the end

    @property
    def sfo(self) -> int | None:
        return None if self.steps is None else self.steps * self.batch_size

    @property
    def spent(self) -> int:
        """The gradients that it cost."""
        return self.steps_run * self.batch_size


@dataclass(frozen=True)
class BatchSizeTrials:
    """The trials of one batch size, at least one."""

    batch_size: int
    trials: tuple[Trial, ...]

    @property
    def reached(self) -> list[int]:
        """The SFO of those that did."""
        return [trial.sfo for trial in self.trials if trial.sfo is not None]

    @property
    def complete(self) -> bool:
        return len(self.reached) == len(self.trials)

    @property
    def loss(self) -> float:
        """Of the runs in vain, at their end; infinite where one has none, having diverged."""
        missed = [trial.loss for trial in self.trials if trial.steps is None]
        return fmean(math.inf if loss is None else loss for loss in missed)

    @property
    def rank(self) -> tuple[float, float, int]:
        """The least is the best: all seeds reached, the fewest gradients, and the larger of two
        alike; where no run reached the threshold, the lowest loss at the end of the budget."""
        missed = 1 - len(self.reached) / len(self.trials)
        return missed, median(self.reached) if self.reached else self.loss, -self.batch_size


@dataclass(frozen=True)
class Bracket:
    """The best of the batch sizes that were run, and the next ones run on either side of it, which
    did worse: K·b has one minimum, and it lies between them."""

    best: BatchSizeTrials
    low: BatchSizeTrials | None
    high: BatchSizeTrials | None

    @classmethod
    def of(cls, groups: Sequence[BatchSizeTrials]) -> "Bracket":
        """At least one, in rising order."""
        at = min(range(len(groups)), key=lambda i: groups[i].rank)
        return cls(
            groups[at],
            groups[at - 1] if at > 0 else None,
            groups[at + 1] if at + 1 < len(groups) else None,
        )

    @property
    def ends(self) -> list[BatchSizeTrials]:
        return [group for group in (self.low, self.high) if group is not None]

    def untried(self, batch_sizes: Sequence[int], octaves: float) -> list[list[int]]:
        """On either side, the batch sizes between the best and an end that is further away."""
        best = self.best.batch_size
        low = self.low.batch_size if self.low else 0
        high = self.high.batch_size if self.high else math.inf
        nearest, furthest = best * 2**-octaves, best * 2**octaves
        return [
            [b for b in batch_sizes if low < b < best and low < nearest],
            [b for b in batch_sizes if best < b < high and furthest < high],
        ]


def seeds_left(
    batch_size: int, seeds: Iterable[int], failed: frozenset[Cell], run: Iterable[int] = ()
) -> list[int]:
    """Seeds that a batch size was not `run` with, and that it did not fail with."""
    return [seed for seed in seeds if seed not in run and (batch_size, seed) not in failed]


def group_by_batch_size(trials: Iterable[Trial]) -> list[BatchSizeTrials]:
    """By batch size, in rising order, whatever that of the trials."""
    ordered = sorted(trials, key=lambda trial: (trial.batch_size, trial.seed, trial.steps_run))
    groups = groupby(ordered, lambda trial: trial.batch_size)
    return [BatchSizeTrials(batch_size, tuple(same)) for batch_size, same in groups]
