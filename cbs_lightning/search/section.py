"""Which batch size a search runs next: a golden section over those that are left.

K·b mostly has one minimum. So of two batch sizes, the worse one rules out all beyond it, and each
run divides what is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.trials import BatchSizeTrials, Bracket

START = 0.3  # where to begin: this far into the range, nearer the smaller batch sizes
GOLDEN = (3 - math.sqrt(5)) / 2  # where to divide what is left, from the best on
CLEARLY = 0.05  # a batch size that is worse by a smaller share may be so by chance
IMPROBABLE = 0.1  # probability of b* beyond a side below which it is not looked for there
FAR = 2.0  # octaves from the best at which any that is worse closes a side


@dataclass(frozen=True)
class Section:
    """The batch sizes of a search that can be run, and those that were."""

    batch_sizes: tuple[int, ...]
    tried: Sequence[BatchSizeTrials]
    octaves: float
    predicted: Prediction | None = None

    @cached_property
    def bracket(self) -> Bracket:
        return Bracket.of(self.tried)

    def next_batch_size(self) -> int | None:
        """None if the best has worse ones on either side, or nothing is left to try."""
        if not self.tried or not self.bracket.best.tells:
            return self._within_widest_gap()
        octaves = self.octaves if self.bracket.best.reached else 0.0
        below, above = self.bracket.untried(self.batch_sizes, octaves)
        if (predicted := self._predicted_among(below + above)) is not None:
            return predicted
        if below or above:
            side = below[::-1] if self._prefers_below(below, above) else above
            return self._divide(side)
        return self._beyond_unclear()

    @cached_property
    def _weights(self) -> dict[int, float]:
        """How probable b* is at each batch size, divided by the average."""
        if self.predicted is None:
            return dict.fromkeys(self.batch_sizes, 1.0)
        found = self.predicted.probabilities(self.batch_sizes)
        return {b: len(found) * probability for b, probability in found.items()}

    def _predicted_among(self, untried: list[int]) -> int | None:
        if self.predicted is None:
            return None
        nearest = self.predicted.nearest(self.batch_sizes)
        return nearest if nearest in untried else None

    def _within_widest_gap(self) -> int | None:
        """Where no loss tells the direction."""
        tried = {group.batch_size for group in self.tried}
        runs = groupby(self.batch_sizes, lambda b: b in tried)
        gaps = [list(same) for was_tried, same in runs if not was_tried]
        widest = max(gaps, key=len, default=[])
        predicted = self._predicted_among([b for gap in gaps for b in gap])
        if predicted is not None or not widest:
            return predicted
        return widest[int(START * len(widest))]

    def _prefers_below(self, below: list[int], above: list[int]) -> bool:
        """The side that holds b* more probably; of two that hardly differ, that on which K·b rises
        less."""
        mass_below, mass_above = (sum(self._weights[b] for b in side) for side in (below, above))
        low, high = self.bracket.low, self.bracket.high
        if below and above and low and high and abs(mass_below - mass_above) <= 1:
            rise_below, rise_above = self._rise(low), self._rise(high)
            if rise_below != rise_above:
                return rise_below < rise_above
        return mass_below >= mass_above

    def _rise(self, end: BatchSizeTrials) -> float:
        """Of log K·b from the best to an end of the bracket, for each octave."""
        best = self.bracket.best
        if not end.complete or not best.complete:
            return math.inf
        octaves = abs(math.log2(end.batch_size / best.batch_size))
        return math.log(end.median_sfo / best.median_sfo) / octaves

    def _divide(self, outward: list[int]) -> int:
        """By the golden section; each batch size is as long as b* is probable there."""
        places = list(accumulate(self._weights[b] for b in outward))
        wanted = GOLDEN * (places[-1] + self._weights[outward[-1]])
        distances = [abs(place - wanted) for place in places]
        return outward[distances.index(min(distances))]

    def _beyond_unclear(self) -> int | None:
        """Further out on a side where those that were tried are near the best and hardly worse:
        they do not say that K·b rises there."""
        best = self.bracket.best
        if not best.complete:
            return None
        for sign in (1, -1):
            side = [g for g in self.tried if sign * (g.batch_size - best.batch_size) > 0]
            if not side or any(self._closes(group) for group in side):
                continue
            last = max(sign * group.batch_size for group in side)
            outward = [b for b in self.batch_sizes[::sign] if sign * b > last]
            if sum(self._weights[b] for b in outward) > IMPROBABLE * len(self.batch_sizes):
                return self._divide(outward)
        return None

    def _closes(self, group: BatchSizeTrials) -> bool:
        best = self.bracket.best
        if not group.complete or abs(math.log2(group.batch_size / best.batch_size)) >= FAR - 1e-9:
            return True
        return group.median_sfo > (1 + CLEARLY) * best.median_sfo
