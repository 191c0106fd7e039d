"""Readings of a measured curve that need no form: where K·b is least, and how far it stays so."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.fit.measurements import Measurements

RESAMPLES = 1000


@dataclass(frozen=True)
class Minimum:
    """The batch size with the least K·b, and the range that holds it in a share of resamples."""

    batch_size: float
    sfo: float
    interval: tuple[float, float] | None  # None: nothing tells how far K scatters


def measured_minimum(
    data: Measurements, noise: float | None = None, level: float = 0.9
) -> Minimum | None:
    """The argmin of the median K·b over the batch sizes whose runs all reached the threshold.

    Its interval is a bootstrap over seeds; where there is one seed, over log K redrawn with the
    given standard deviation, such as the scatter about a fitted curve.
    """
    sizes = data.complete
    if not len(sizes):
        return None

    def argmin(log_steps: Floats) -> NDArray[np.intp]:
        """Of equal ones the largest batch size, which takes the fewest steps."""
        backwards = data.median_sfo(log_steps, sizes)[:, ::-1]
        return np.asarray(len(sizes) - 1 - np.argmin(backwards, axis=1))

    best = int(argmin(data.log_steps[None])[0])
    size = float(sizes[best])
    sfo = float(data.median_sfo(data.log_steps[None], sizes)[0, best])
    rng = np.random.default_rng(0)
    if data.replicated:
        drawn = data.resample(rng, RESAMPLES).log_steps[:, ~data.observations.censored]
    elif noise is not None and math.isfinite(noise):
        drawn = rng.normal(data.log_steps, noise, (RESAMPLES, len(data.log_steps)))
    else:
        return Minimum(size, sfo, None)
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(sizes[argmin(drawn)], tails, method="nearest")
    return Minimum(size, sfo, (min(float(low), size), max(float(high), size)))


def largest_within(data: Measurements, overhead: float) -> float | None:
    """The largest batch size whose median K·b is within the overhead of the least."""
    sizes = data.complete
    if not len(sizes):
        return None
    costs = data.median_sfo(data.log_steps[None], sizes)[0]
    return float(sizes[costs <= (1 + overhead) * costs.min()].max())
