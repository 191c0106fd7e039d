"""A race: which of several learning rates takes the fewest gradients at one batch size."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cbs_lightning.search.trials import Trial


@dataclass(frozen=True)
class Race:
    """Climb from one rate to its neighbours, until both neighbours of the best did worse.

    A race has no state: it follows from the trials so far. Rates are known by their places, from
    the smallest up. A rate that reached the threshold beats one that did not; of two that reached
    it the one with fewer gradients wins, of two that did not the one with the lower loss, and of
    equal ones the smaller.

    Args:
        rates: how many there are.
        start: the place to begin at, such as the best at a neighbouring batch size.
        trials: those so far, by place.
        failed: places whose runs crashed; they are done without.

    >>> reached = Trial(batch_size=8, seed=0, steps=400, steps_run=400, loss=0.2)
    >>> Race(rates=3, start=1, trials={1: reached}).propose()
    [2, 0]
    """

    rates: int
    start: int
    trials: Mapping[int, Trial] = field(default_factory=dict)
    failed: frozenset[int] = frozenset()

    @property
    def leader(self) -> int | None:
        """The best place so far; None before the first trial."""
        return min(self.trials, key=self._rank, default=None)

    @property
    def best(self) -> int | None:
        """The best place once the race is over."""
        return self.leader if not self.propose() else None

    def propose(self) -> list[int]:
        """Places to run next, which may be at the same time; none once the race is over."""
        runnable = [place for place in range(self.rates) if place not in self.failed]
        if self.leader is None:
            return sorted(runnable, key=lambda place: (abs(place - self.start), place))[:1]
        above = [place for place in runnable if place > self.leader][:1]
        below = [place for place in runnable if place < self.leader][-1:]
        return [place for place in (*above, *below) if place not in self.trials]

    def _rank(self, place: int) -> tuple[bool, float, int]:
        trial = self.trials[place]
        if trial.sfo is not None:
            return False, trial.sfo, place
        return True, math.inf if trial.loss is None else trial.loss, place
