"""Which curves the runs of a search leave possible, and what one more run would tell and cost.

A fit needs several batch sizes that reached the threshold; a search decides after one. So it holds
many curves of the form that is fitted, K = A(b + B1)/(b - B0), and weighs each by its likelihood,
with the scatter about the fit as the noise.
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

NOISE = 0.05  # of log K, at least: about what seeds scatter
PER_OCTAVE = 4  # places of b*
BEYOND = 2.0  # octaves on either side of the batch sizes in which b* may lie
# (B0 + B1)/B0: 1 is the paper's form; less is more abrupt; with more, K·b is flatter about b*.
RATIOS = 2.0 ** np.arange(-2, 11, 1.5)


@dataclass(frozen=True, eq=False)
class Posterior:
    """About K·b at every batch size, given the runs so far, of which one reached the threshold."""

    log_sfo: Floats  # (curves, batch sizes); infinite where a curve has no K
    weights: Floats  # of the curves
    noise: float  # of log K

    def chance_below(self, sfo: float) -> Floats:
        """At every batch size, that a run takes fewer gradients than that."""
        chances: Floats = self.weights @ ndtr((math.log(sfo) - self.log_sfo) / self.noise)
        return chances

    def cost(self, sfo_limit: float) -> Floats:
        """At every batch size, the gradients expected of a run that is abandoned at `sfo_limit`."""
        costs: Floats = self.weights @ np.exp(np.minimum(self.log_sfo, math.log(sfo_limit)))
        return costs

    def median_sfo(self, place: int) -> float:
        """Of the curves, at one of the batch sizes; infinite where most have no K there."""
        log_sfo = self.log_sfo[:, place]
        order = np.argsort(log_sfo)
        half = int(np.searchsorted(np.cumsum(self.weights[order]), 0.5))
        return math.exp(log_sfo[order][half])


def posterior(data: Measurements, batch_sizes: Sequence[int]) -> Posterior:
    """The runs of `data` are at some of these batch sizes."""
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
    """B0 and B0 + B1 of all curves: any b* is as likely as another on a logarithmic scale."""
    first, last = np.log2(sizes[0]) - BEYOND, np.log2(sizes[-1]) + BEYOND
    places = np.linspace(first, last, round(PER_OCTAVE * (last - first)) + 1)
    critical, ratio = (axis.ravel() for axis in np.meshgrid(2.0**places, RATIOS))
    pole = critical / (1 + np.sqrt(ratio))  # b* = B0 + sqrt(B0(B0 + B1))
    return pole, ratio * pole


def _log_steps(poles: Floats, spans: Floats, sizes: Floats) -> Floats:
    """log K/A of every curve at every batch size; infinite for b ≤ B0."""
    room = sizes - poles[:, None]
    defined: NDArray[np.bool_] = room > 0
    return np.where(defined, np.log1p(spans[:, None] / np.where(defined, room, 1.0)), np.inf)


def _noise(data: Measurements) -> float:
    """The scatter of log K about the fit, where there are runs to tell."""
    spare = len(data.reached) - len(FREE["nested"])
    if data.distinct < len(FREE["nested"]) or spare <= 0:
        return NOISE
    scatter = fit_measurements(data, "nested").rms_log_error
    return max(NOISE, scatter * math.sqrt(len(data.reached) / spare))
