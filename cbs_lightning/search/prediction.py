"""What is known about b* before any run of a search: a prediction, and how far to trust it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

TRUST = 0.8  # probability that a prediction is as good as it claims to be


@dataclass(frozen=True)
class Prediction:
    """b* before a search, such as probes in one run predict it.

    log b* is normal about log `critical_batch`, with a standard deviation of log `factor`. With
    a probability of 0.2 the prediction is worthless, and b* may be anything, so that a wrong one
    costs a search some runs and not its answer.

    Attributes:
        critical_batch: the predicted b*.
        factor: above 1; b* is within this factor of it in two of three cases.

    Raises:
        ValueError: an argument is out of range.

    >>> Prediction(critical_batch=34, factor=2)
    Prediction(critical_batch=34, factor=2)
    """

    critical_batch: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.critical_batch < math.inf:
            raise ValueError(
                f"critical_batch must be positive and finite, not {self.critical_batch}"
            )
        if not 1 < self.factor < math.inf:
            raise ValueError(f"factor must be above 1 and finite, not {self.factor}")

    def nearest(self, batch_sizes: Sequence[int]) -> int:
        """The batch size with the least ratio to the predicted b*."""
        return min(batch_sizes, key=lambda b: abs(self._octaves_off(b)))

    def probabilities(self, batch_sizes: Sequence[int]) -> dict[int, float]:
        """Of b* being at each batch size; they sum to 1."""
        width = max(math.log2(self.factor), _widest_gap(batch_sizes) / 2)  # in octaves
        nearest = self._octaves_off(self.nearest(batch_sizes))
        near = {  # relative to the nearest, so that they do not all vanish
            b: math.exp((nearest**2 - self._octaves_off(b) ** 2) / (2 * width**2))
            for b in batch_sizes
        }
        total = sum(near.values())
        return {b: TRUST * near[b] / total + (1 - TRUST) / len(near) for b in batch_sizes}

    def _octaves_off(self, batch_size: int) -> float:
        return math.log2(batch_size) - math.log2(self.critical_batch)


def _widest_gap(batch_sizes: Sequence[int]) -> float:
    """Between neighbours, in octaves."""
    gaps = [math.log2(larger / smaller) for smaller, larger in pairwise(batch_sizes)]
    return max(gaps, default=1.0)
