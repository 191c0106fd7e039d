"""The next run of a search in which a run has reached the threshold.

It is the one that is expected to rule out most of where b* may be, for each gradient spent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from scipy.special import ndtr

from cbs_lightning.search.posterior import Posterior, posterior
from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.trials import BatchSizeTrials, Bracket, Cell, Proposal, Trial, seeds_left

DOUBT = 0.1  # another seed is run if a neighbour is better with more than this probability
UNCLEAR = 0.35  # a neighbour that is better with more than this probability closes no side
SURE = 0.12  # further batch sizes are run if one is clearly better with more than this probability
CLEARLY = 0.1  # that is, by this share of the gradients
STRIDE = 2.0  # octaves to the next batch size while those tried differ by less than the noise
LEAST_MASS = 0.05  # of b*'s probability, spread over all batch sizes


@dataclass(frozen=True)
class Narrowing:
    """A search in which at least one run has reached the threshold."""

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    octaves: float
    sfo_limit: float  # beyond which a run is abandoned
    tried: Sequence[BatchSizeTrials]
    failed: frozenset[Cell] = frozenset()
    predicted: Prediction | None = None

    @cached_property
    def bracket(self) -> Bracket:
        return Bracket.of(self.tried)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """All that were run or may be."""
        return tuple(sorted({*self.batch_sizes, *(group.batch_size for group in self.tried)}))

    @cached_property
    def posterior(self) -> Posterior:
        return posterior(self.tried, self._sizes, self.predicted)

    @property
    def _best(self) -> int:
        return self._sizes.index(self.bracket.best.batch_size)

    def next_run(self) -> Proposal | None:
        """None if b* is known."""
        inside = [b for side in self.bracket.untried(self.batch_sizes, self.octaves) for b in side]
        if inside:
            gains, choice = self._mass_per_gradient(), self._far_enough(inside)
        elif outside := self._doubted() or self._beyond_unclear_ends():
            gains, choice = self._chances_per_gradient(), outside
        else:
            return self._replicate()
        best = max(choice, key=lambda b: (gains[b], b))
        return Proposal(best, seeds_left(best, self.seeds, self.failed)[0])

    def _far_enough(self, inside: list[int]) -> list[int]:
        """Those far from all that were tried, where these differ by less than the noise."""
        best = self.bracket.best
        others = [group for group in self.tried if group is not best]
        if not others or any(self._doubt(best, group) <= UNCLEAR for group in others):
            return inside
        tried = [math.log2(group.batch_size) for group in self.tried]
        least = max(STRIDE, self.octaves) - 1e-9
        return [b for b in inside if all(abs(math.log2(b) - x) >= least for x in tried)] or inside

    def _untried(self) -> list[int]:
        """Further than `octaves` from all batch sizes that were tried."""
        tried = [math.log2(group.batch_size) for group in self.tried]
        least = self.octaves - 1e-9
        return [b for b in self.batch_sizes if all(abs(math.log2(b) - x) > least for x in tried)]

    def _doubted(self) -> list[int]:
        """Untried batch sizes, if one of them may well be clearly better than the best."""
        untried = self._untried()
        places = [self._sizes.index(b) for b in untried]
        if not places or self.posterior.chance_of_better(places, self._best, CLEARLY) <= SURE:
            return []
        return untried

    def _beyond_unclear_ends(self) -> list[int]:
        """Untried batch sizes on a side where all that were tried did worse by less than the
        noise, or hardly more: they do not say that K·b rises there."""
        best = self.bracket.best
        clear = [
            group.batch_size
            for group in self.tried
            if group is not best and self._doubt(best, group) <= UNCLEAR
        ]
        low = min((group.batch_size for group in self.tried), default=0)
        high = max(group.batch_size for group in self.tried)
        falls = best.batch_size == low or any(b < best.batch_size for b in clear)
        rises = best.batch_size == high or any(b > best.batch_size for b in clear)
        return [b for b in self._untried() if (b < low and not falls) or (b > high and not rises)]

    def _chances_per_gradient(self) -> dict[int, float]:
        """By batch size, the probability that it is clearly better than the best, divided by the
        gradients that a run there should cost."""
        costs = self.posterior.cost(self.sfo_limit)
        chances = (
            self.posterior.chance_of_better([place], self._best, CLEARLY)
            for place in range(len(self._sizes))
        )
        return {b: p / cost for b, p, cost in zip(self._sizes, chances, costs, strict=True)}

    def _mass_per_gradient(self) -> dict[int, float]:
        """By batch size, the probability of b* that a run there should rule out, divided by the
        gradients that it should cost.

        A batch size that does worse than the best rules out what lies beyond it; if it does better,
        the best rules out what lies on its other side.
        """
        mass = self.posterior.chance_of_least + LEAST_MASS / len(self._sizes)
        below = np.concatenate(([0.0], np.cumsum(mass)))  # of each batch size
        low, best, high = self.bracket.low, self._best, self.bracket.high
        first = self._sizes.index(low.batch_size) + 1 if low else 0
        last = self._sizes.index(high.batch_size) if high else len(self._sizes)
        costs = self.posterior.cost(self.sfo_limit)
        found = {}
        for place, b in enumerate(self._sizes):
            p = self.posterior.chance_of_better([place], best, 0.0)
            if place > best:
                ruled_out = (1 - p) * (below[last] - below[place])
                ruled_out += p * (below[best + 1] - below[first])
            else:
                ruled_out = (1 - p) * (below[place + 1] - below[first])
                ruled_out += p * (below[last] - below[best])
            found[b] = float(ruled_out / costs[place])
        return found

    def _replicate(self) -> Proposal | None:
        """Another seed of the best batch size or a neighbour, whichever reduces the doubt about the
        best most for each gradient. None if there is no doubt, or no seed left."""
        incumbent = self.bracket.best
        doubted = [end for end in self.bracket.ends if self._doubt(incumbent, end) > DOUBT]
        useful = [incumbent, *doubted] if doubted or len(incumbent.trials) == 1 else []
        useful = [group for group in useful if self._seeds_left(group)]
        if not useful:
            return None

        def gain_per_gradient(group: BatchSizeTrials) -> float:
            runs = len(group.trials)
            return 1 / (runs * (runs + 1)) / min(math.exp(self._log_sfo(group)), self.sfo_limit)

        best = max(useful, key=lambda group: (gain_per_gradient(group), group.batch_size))
        return Proposal(best.batch_size, self._seeds_left(best)[0])

    def as_good_as_best(self) -> list[int]:
        """Batch sizes in a row about the best that the noise does not tell from it."""
        best = self.bracket.best
        at = self.tried.index(best)
        low = high = at
        while low > 0 and self._doubt(best, self.tried[low - 1]) > UNCLEAR:
            low -= 1
        while high + 1 < len(self.tried) and self._doubt(best, self.tried[high + 1]) > UNCLEAR:
            high += 1
        return [group.batch_size for group in self.tried[low : high + 1]]

    def _doubt(self, best: BatchSizeTrials, other: BatchSizeTrials) -> float:
        """Probability, given the noise, that `other` is better than `best`."""
        error = self.posterior.noise * math.sqrt(1 / len(best.trials) + 1 / len(other.trials))
        return float(ndtr((self._log_sfo(best) - self._log_sfo(other)) / error))

    def _log_sfo(self, group: BatchSizeTrials) -> float:
        """Mean over the trials; one that missed the threshold counts with at least the SFO limit,
        however early it diverged."""
        return fmean(math.log(t.sfo or max(t.spent, self.sfo_limit)) for t in group.trials)

    def _seeds_left(self, group: BatchSizeTrials) -> list[int]:
        run = {trial.seed for trial in group.trials}
        return seeds_left(group.batch_size, self.seeds, self.failed, run)

    def predict(self, proposal: Proposal) -> Trial:
        """The most likely outcome of that run, for choosing others to make at the same time."""
        b, seed = proposal.batch_size, proposal.seed
        sfo = self.posterior.median_sfo(self._sizes.index(b))
        if sfo > self.sfo_limit:
            return Trial(b, seed, None, math.ceil(self.sfo_limit / b), None)
        steps = max(1, round(sfo / b))
        return Trial(b, seed, steps, steps, None)
