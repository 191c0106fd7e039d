"""Posterior over the curves K(b) given the runs so far: what one more run would find and cost.

A fit needs several batch sizes that reached the threshold; a search must decide after one. So it
keeps a grid of curves K = A(b + B1)/(b - B0), the form that is fitted, and weights each by its
likelihood. The noise is the scatter about the fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cbs_lightning.fit.curve_fit import fit_measurements
from cbs_lightning.fit.forms import FREE
from cbs_lightning.fit.likelihood import Floats, negative_log_likelihood
from cbs_lightning.fit.measurements import Measurements

NOISE = 0.05  # smallest standard deviation of log K assumed: about that between seeds
PER_OCTAVE = 4  # grid points of b*
BEYOND = 2.0  # octaves by which b* may lie outside the range of batch sizes
# (B0 + B1)/B0: 1 is the paper's form; the larger it is, the flatter K·b is around b*.
RATIOS = 2.0 ** np.arange(-2, 11, 1.5)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Distribution of K·b at each batch size, given runs of which at least one reached the
    threshold."""

    log_sfo: Floats  # (curves, batch sizes); infinite where b <= B0
    weights: Floats  # of the curves; they sum to 1
    noise: float  # standard deviation of log K

    def chance_below(self, sfo: float) -> Floats:
        """At each batch size, the probability that a run takes fewer gradients than `sfo`."""
        chances: Floats = self.weights @ ndtr((math.log(sfo) - self.log_sfo) / self.noise)
        return chances

    def cost(self, sfo_limit: float) -> Floats:
        """At each batch size, the expected gradients of a run abandoned at `sfo_limit`."""
        costs: Floats = self.weights @ np.exp(np.minimum(self.log_sfo, math.log(sfo_limit)))
        return costs

    def median_sfo(self, place: int) -> float:
        """Median at the batch size with index `place`; infinite if most curves have no K there."""
        log_sfo = self.log_sfo[:, place]
        order = np.argsort(log_sfo)
        half = int(np.searchsorted(np.cumsum(self.weights[order]), 0.5))
        return math.exp(log_sfo[order][half])


def posterior(data: Measurements, batch_sizes: Sequence[int]) -> Posterior:
    """Given the runs of `data`, K·b at `batch_sizes`, which are in ascending order."""
    sizes = np.asarray(batch_sizes, float)
    poles, spans = _forms(sizes)
    possible = poles < data.reached.min()
    poles, spans = poles[possible], spans[possible]
    at_runs = _log_steps(poles, spans, data.batch_sizes)
    reached = ~data.observations.censored
    scale = (data.log_steps - at_runs[:, reached]).mean(axis=1, keepdims=True)
    noise = _noise(data)
    log_noise = np.full(len(poles), math.log(noise))
    unlikely = negative_log_likelihood(data.observations, at_runs + scale, log_noise)
    weights = np.exp(unlikely.min() - unlikely)
    log_sfo = _log_steps(poles, spans, sizes) + scale + np.log(sizes)
    return Posterior(log_sfo, weights / weights.sum(), noise)


def _forms(sizes: Floats) -> tuple[Floats, Floats]:
    """B0 and B0 + B1 of each curve; the prior is uniform in log b*."""
    first, last = np.log2(sizes[0]) - BEYOND, np.log2(sizes[-1]) + BEYOND
    places = np.linspace(first, last, round(PER_OCTAVE * (last - first)) + 1)
    critical, ratio = (axis.ravel() for axis in np.meshgrid(2.0**places, RATIOS))
    pole = critical / (1 + np.sqrt(ratio))  # b* = B0 + sqrt(B0(B0 + B1))
    return pole, ratio * pole


def _log_steps(poles: Floats, spans: Floats, sizes: Floats) -> Floats:
    """log K/A of each curve at each batch size; infinite for b ≤ B0."""
    room = sizes - poles[:, None]
    defined: NDArray[np.bool_] = room > 0
    return np.where(defined, np.log1p(spans[:, None] / np.where(defined, room, 1.0)), np.inf)


def _noise(data: Measurements) -> float:
    """Scatter of log K about the fit, or `NOISE` with too few runs to estimate it."""
    spare = len(data.reached) - len(FREE["nested"])
    if data.distinct < len(FREE["nested"]) or spare <= 0:
        return NOISE
    scatter = fit_measurements(data, "nested").rms_log_error
    return max(NOISE, scatter * math.sqrt(len(data.reached) / spare))
