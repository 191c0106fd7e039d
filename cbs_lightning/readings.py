"""Readings of a measured curve that need no form: where K·b is least, and how far it stays so."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cbs_lightning.likelihood import Floats
from cbs_lightning.measurements import Measurements, Unreached, measurements

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
    missed = data.batch_sizes[data.observations.censored]
    sizes = np.setdiff1d(data.reached, missed)
    if not len(sizes):
        return None
    runs = [data.reached == size for size in sizes]

    def log_sfo(log_steps: Floats) -> Floats:
        medians = [np.median(log_steps[:, of_size], axis=1) for of_size in runs]
        return np.column_stack(medians) + np.log(sizes)

    measured = log_sfo(data.log_steps[None])[0]
    best = int(np.argmin(measured))
    rng = np.random.default_rng(0)
    if data.replicated:
        drawn = data.resampled(rng, RESAMPLES).log_steps[:, ~data.observations.censored]
    elif noise is not None and math.isfinite(noise):
        drawn = rng.normal(data.log_steps, noise, (RESAMPLES, len(data.log_steps)))
    else:
        return Minimum(float(sizes[best]), math.exp(measured[best]), None)
    places = sizes[np.argmin(log_sfo(drawn), axis=1)]
    low, high = np.quantile(places, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    interval = min(float(low), float(sizes[best])), max(float(high), float(sizes[best]))
    return Minimum(float(sizes[best]), math.exp(measured[best]), interval)


def end_of_perfect_scaling(
    batch_sizes: ArrayLike,
    steps: ArrayLike,
    unreached: Unreached = None,
    overhead: float = 0.2,
) -> float | None:
    """The largest batch size whose median K·b is within the overhead of the least."""
    data = measurements(batch_sizes, steps, unreached)
    missed = data.batch_sizes[data.observations.censored]
    sfo = {
        float(size): float(np.median(np.exp(data.log_steps[data.reached == size])) * size)
        for size in np.setdiff1d(data.reached, missed)
    }
    least = min(sfo.values(), default=0.0)
    return max((size for size, cost in sfo.items() if cost <= (1 + overhead) * least), default=None)
