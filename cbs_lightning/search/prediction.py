"""What is known about b* before any run of a search: a prediction, and how far to trust it."""

import math
from dataclasses import dataclass

import numpy as np

from cbs_lightning.fit.likelihood import Floats

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

    def log_prior(self, critical: Floats) -> Floats:
        """Log of the prior probability of each b*, of which there are as many in each octave."""
        width = max(math.log(self.factor), _gap(critical))  # the grid shows nothing narrower
        distance = (np.log(critical) - math.log(self.critical_batch)) / width
        near = np.exp(-0.5 * np.minimum(distance**2, 1000.0))
        share = near / near.sum() if near.sum() > 0 else np.full(len(critical), 1 / len(critical))
        return np.asarray(np.log(TRUST * share + (1 - TRUST) / len(critical)), np.float64)


def _gap(critical: Floats) -> float:
    """Between neighbours, in log b*."""
    places = np.unique(np.log(critical))
    return float(np.diff(places).max()) if len(places) > 1 else 1.0
