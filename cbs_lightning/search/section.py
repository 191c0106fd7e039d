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
IMPROBABLE = 0.2  # probability of b* beyond one that is hardly worse, to look for it there


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
        if above := self._above_alike():
            return self._divide(above)
        octaves = self.octaves if self.bracket.best.reached else 0.0
        below, above = self.bracket.untried(self.batch_sizes, octaves)
        if (predicted := self._predicted_among(below + above)) is not None:
            return predicted
        if below or above:
            side = below[::-1] if self._prefers_below(below, above) else above
            return self._divide(side)
        return None

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

    def _above_alike(self) -> list[int]:
        """Untried batch sizes above the largest one that is hardly worse than the best.

        It may be the better one by chance, and towards small batch sizes K·b is often flat.
        """
        best = self.bracket.best
        if not best.complete:
            return []
        most = (1 + CLEARLY) * best.median_sfo
        alike = [group for group in self.tried if group.complete and group.median_sfo <= most]
        if alike[-1].batch_size <= best.batch_size:
            return []
        above = Bracket.about(self.tried, alike[-1]).untried(self.batch_sizes, self.octaves)[1]
        probable = sum(self._weights[b] for b in above) > IMPROBABLE * len(self.batch_sizes)
        return above if probable else []
