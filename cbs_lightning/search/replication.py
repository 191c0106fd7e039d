"""Further seeds in a search: where one leaves a doubt about the best batch size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from scipy.special import ndtr

from cbs_lightning.search.trials import BatchSizeTrials, Bracket, Cell, Proposal, seeds_left

DOUBT = 0.1  # if a batch size is better with more than this probability, the best is in doubt
NOISE = 0.08  # standard deviation of log K between seeds, before two seeds tell
NOISE_RUNS = 2  # for as many runs as this it counts


@dataclass(frozen=True)
class Replication:
    """The runs of a search that has found a best batch size with one seed."""

    tried: Sequence[BatchSizeTrials]
    seeds: tuple[int, ...]
    failed: frozenset[Cell] = frozenset()

    @cached_property
    def _best(self) -> BatchSizeTrials:
        return Bracket.of(self.tried).best

    @cached_property
    def noise(self) -> float:
        """Standard deviation of log K between seeds."""
        logs = [[math.log(sfo) for sfo in group.reached] for group in self.tried if group.reached]
        squares = sum((value - fmean(same)) ** 2 for same in logs for value in same)
        repeated = sum(len(same) - 1 for same in logs)
        return math.sqrt((NOISE_RUNS * NOISE**2 + squares) / (NOISE_RUNS + repeated))

    def next_run(self) -> Proposal | None:
        """Another seed of the best or of one that may be better, whichever reduces the doubt most
        for each gradient. None if there is no doubt, or no seed left."""
        doubted = [g for g in self.tried if g is not self._best and self._doubt(g) > DOUBT]
        useful = [self._best, *doubted] if doubted or len(self._best.trials) == 1 else []
        useful = [group for group in useful if self._seeds_left(group)]
        if not useful:
            return None

        def gain_per_gradient(group: BatchSizeTrials) -> float:
            runs = len(group.trials)
            return 1 / (runs * (runs + 1)) / max(trial.spent for trial in group.trials)

        group = max(useful, key=lambda group: (gain_per_gradient(group), group.batch_size))
        return Proposal(group.batch_size, self._seeds_left(group)[0])

    def as_good_as_best(self) -> list[int]:
        """Batch sizes in a row about the best, any of which may be the best."""
        alike = [group is self._best or self._doubt(group) > DOUBT for group in self.tried]
        low = high = self.tried.index(self._best)
        while low > 0 and alike[low - 1]:
            low -= 1
        while high + 1 < len(alike) and alike[high + 1]:
            high += 1
        return [group.batch_size for group in self.tried[low : high + 1]]

    def _doubt(self, other: BatchSizeTrials) -> float:
        """Probability, given the noise, that `other` is better than the best."""
        best = self._best
        if not other.complete or not best.complete:
            return 0.0
        means = [fmean(map(math.log, group.reached)) for group in (best, other)]
        error = self.noise * math.sqrt(1 / len(best.trials) + 1 / len(other.trials))
        return float(ndtr((means[0] - means[1]) / error))

    def _seeds_left(self, group: BatchSizeTrials) -> list[int]:
        run = {trial.seed for trial in group.trials}
        return seeds_left(group.batch_size, self.seeds, self.failed, run)
