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


def least_measured(data: Measurements) -> Minimum | None:
    """The argmin of the median K·b over the batch sizes whose runs all reached the threshold."""
    sizes = data.complete
    if not len(sizes):
        return None
    best = int(_argmin(data, data.log_steps[None])[0])
    sfo = float(data.median_sfo(data.log_steps[None], sizes)[0, best])
    return Minimum(float(sizes[best]), sfo, None)


def _argmin(data: Measurements, log_steps: Floats) -> NDArray[np.intp]:
    """Of equal ones the largest batch size, which takes the fewest steps."""
    sizes = data.complete
    backwards = data.median_sfo(log_steps, sizes)[:, ::-1]
    return np.asarray(len(sizes) - 1 - np.argmin(backwards, axis=1))


def measured_minimum(
    data: Measurements, noise: float | None = None, level: float = 0.9
) -> Minimum | None:
    """That of `least_measured` with an interval: a bootstrap over seeds; where there is one seed,
    over log K redrawn with the given standard deviation, such as the scatter about a fitted curve.
    """
    least = least_measured(data)
    if least is None:
        return None
    rng, size = np.random.default_rng(0), least.batch_size
    if data.replicated:
        drawn = data.resample(rng, RESAMPLES).log_steps[:, ~data.observations.censored]
    elif noise is not None and math.isfinite(noise):
        drawn = rng.normal(data.log_steps, noise, (RESAMPLES, len(data.log_steps)))
    else:
        return least
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(data.complete[_argmin(data, drawn)], tails, method="nearest")
    return Minimum(size, least.sfo, (min(float(low), size), max(float(high), size)))


def largest_within(data: Measurements, overhead: float) -> float | None:
    """The largest batch size whose median K·b is within the overhead of the least."""
    sizes = data.complete
    if not len(sizes):
        return None
    costs = data.median_sfo(data.log_steps[None], sizes)[0]
    return float(sizes[costs <= (1 + overhead) * costs.min()].max())
