"""The next run of a search in which a run has reached the threshold.

It is the one that is expected to shrink the interval around b* most for each gradient spent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from scipy.special import ndtr

from cbs_lightning.search.posterior import Posterior, posterior
from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.trials import BatchSizeTrials, Bracket, Cell, Proposal, Trial, seeds_left

DOUBT = 0.1  # a further run is made if what it may show is more probable than this
CLEARLY = 0.1  # further batch sizes are run if one may be better by this share of the gradients


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
    def posterior(self) -> Posterior:
        return posterior(self.tried, self.batch_sizes, self.predicted)

    def next_run(self) -> Proposal | None:
        """None if b* is known."""
        inside = [b for side in self.bracket.untried(self.batch_sizes, self.octaves) for b in side]
        if inside:
            gains, choice = self._octaves_per_gradient(), inside
        elif outside := self._doubted():
            gains, choice = self._chances_per_gradient(), outside
        else:
            return self._replicate()
        gain_at = dict(zip(self.batch_sizes, gains, strict=True))
        best = max(choice, key=lambda b: (gain_at[b], b))
        return Proposal(best, seeds_left(best, self.seeds, self.failed)[0])

    def _doubted(self) -> list[int]:
        """Untried batch sizes further than `octaves` from all tried ones, if one of them may well
        be clearly better than the best: with one seed, too, a neighbour that was worse by less than
        the noise says little about what lies beyond it."""
        tried = [group.batch_size for group in self.tried]
        places = [
            place
            for place, b in enumerate(self.batch_sizes)
            if all(abs(math.log2(b / other)) > self.octaves - 1e-9 for other in tried)
        ]
        best = self.batch_sizes.index(self.bracket.best.batch_size)
        if not places or self.posterior.chance_of_better(places, best, CLEARLY) <= DOUBT:
            return []
        return [self.batch_sizes[place] for place in places]

    def _chances_per_gradient(self) -> list[float]:
        """At each batch size, the probability that it is clearly better than the best, divided by
        the gradients that a run there should cost."""
        best = self.batch_sizes.index(self.bracket.best.batch_size)
        costs = self.posterior.cost(self.sfo_limit)
        return [
            self.posterior.chance_of_better([place], best, CLEARLY) / cost
            for place, cost in enumerate(costs)
        ]

    def _octaves_per_gradient(self) -> list[float]:
        """At each batch size, the octaves by which a run there should shrink the interval around
        b*, divided by the gradients it should cost.

        A batch size that does worse than the best becomes an end of the interval; if it does
        better, the best becomes an end.
        """
        places = [math.log2(b) for b in self.batch_sizes]
        low, best, high = self.bracket.low, self.bracket.best, self.bracket.high
        middle = math.log2(best.batch_size)
        first = math.log2(low.batch_size) if low else places[0] - 1
        last = math.log2(high.batch_size) if high else places[-1] + 1
        better = self.posterior.chance_below(median(best.reached))
        costs = self.posterior.cost(self.sfo_limit)
        return [
            ((1 - p) * (last - x) + p * (middle - first)) / cost
            if x > middle
            else ((1 - p) * (x - first) + p * (last - middle)) / cost
            for x, p, cost in zip(places, better, costs, strict=True)
        ]

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
        sfo = self.posterior.median_sfo(self.batch_sizes.index(b))
        if sfo > self.sfo_limit:
            return Trial(b, seed, None, math.ceil(self.sfo_limit / b), None)
        steps = max(1, round(sfo / b))
        return Trial(b, seed, steps, steps, None)
