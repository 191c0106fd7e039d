"""Families of curves K(b) with a prior: what the posterior averages over.

- `scaling`: K = A·(1 + (B/b)^p)^(1/p), which has no interior minimum of K·b. p = 1 is McCandlish
  et al.'s form.
- `pole`: that times (1 - B0/b)^-r. The paper's form has B → 0 and r = 1; `nested` is close to
  p = r = 1; A/(1 - √(B0/b))², of sign descent, has B = B0, p = 1/2 and r = 2.
- `smooth`: no formula. K falls with b, and may do so faster or more slowly than `scaling` here or
  there.

Each turns independent standard normal numbers, one column per parameter, into curves. Curves are
relative: their level is left to the data.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from cbs_lightning.fit.likelihood import Floats, softplus

# p and r: 1, as in the named forms, times or divided by this (standard deviation of the log)
SHARPNESS = 0.7
BEYOND = 16.0  # factor by which B may lie outside the batch sizes
LEAST_POLE = 1 / 32  # of the smallest batch size: below, a pole is not seen

KNOTS = (4, 12)  # fewest and most of a smooth curve; one per octave between
FINE = 4  # places per knot at which the rate is summed
LENGTH = 2.0  # octaves over which the rate wanders off and back
WANDER = (0.2, 0.7)  # of the log of the rate: median, and standard deviation of the log
LEAST_WAVE = 0.01  # of the variance of the longest
MOST_LOG_RATE = 4.0


class Family(Protocol):
    @property
    def parameters(self) -> int: ...
    @property
    def log_share(self) -> float:
        """Log of the prior probability of those curves that are drawn from."""

    def log_steps(self, draws: Floats, sizes: Floats) -> Floats:
        """log K of each curve at each batch size, up to a constant; infinite where it has none."""


def _between(draws: Floats, low: float, high: float) -> Floats:
    """Uniform between two bounds."""
    found: Floats = low + (high - low) * ndtr(draws)
    return found[:, None]


def _bend(first: float, last: float, draws: Floats) -> tuple[Floats, Floats]:
    """log B, where perfect scaling ends, and p, how sharply."""
    log_B = _between(draws[:, 0], math.log(first / BEYOND), math.log(last * BEYOND))
    return log_B, np.exp(SHARPNESS * draws[:, 1:2])


@dataclass(frozen=True)
class Scaling:
    first: float  # smallest batch size
    last: float
    parameters: int = 2
    log_share: float = 0.0

    def log_steps(self, draws: Floats, sizes: Floats) -> Floats:
        log_B, p = _bend(self.first, self.last, draws)
        found: Floats = softplus(p * (log_B - np.log(sizes))) / p
        return found


@dataclass(frozen=True)
class Pole:
    first: float
    last: float
    reached: float  # the smallest batch size that reached: the pole is below
    parameters: int = 4

    @cached_property
    def _span(self) -> tuple[float, float]:
        return math.log(self.first * LEAST_POLE), math.log(self.reached) - 1e-9

    @property
    def log_share(self) -> float:
        low, high = self._span
        return math.log((high - low) / (math.log(self.last) - low))

    def log_steps(self, draws: Floats, sizes: Floats) -> Floats:
        scaling = Scaling(self.first, self.last).log_steps(draws, sizes)
        log_pole = _between(draws[:, 2], *self._span)
        r = np.exp(SHARPNESS * draws[:, 3:4])
        with np.errstate(over="ignore"):  # infinitely far below the pole
            ratio = np.exp(log_pole - np.log(sizes))
        defined = ratio < 1
        rise = -r * np.log1p(-np.where(defined, ratio, 0.0))
        return np.where(defined, scaling + rise, np.inf)


@dataclass(frozen=True)
class Smooth:
    """The rate at which log K falls with log b is that of `scaling` times a smooth, positive
    function of log b: the exponential of a Gaussian process."""

    first: float
    last: float
    log_share: float = 0.0

    @cached_property
    def _knots(self) -> Floats:
        """log b, from the smallest batch size to the largest."""
        octaves = max(math.log2(self.last / self.first), 1.0)
        count = min(max(round(octaves) + 1, KNOTS[0]), KNOTS[1])
        return math.log(self.first) + math.log(2) * np.linspace(0.0, octaves, count)

    @property
    def parameters(self) -> int:
        return 3 + len(self._waves)

    @cached_property
    def _waves(self) -> Floats:
        """Turns independent numbers, one per wave, into correlated ones at the knots.

        Waves that are too short to matter are left out.
        """
        apart = (self._knots[:, None] - self._knots) / (LENGTH * math.log(2))
        variance, waves = np.linalg.eigh(np.exp(-0.5 * apart**2))
        kept = variance > LEAST_WAVE * variance.max()
        return np.asarray((waves * np.sqrt(np.maximum(variance, 0.0)))[:, kept].T, np.float64)

    @cached_property
    def _places(self) -> Floats:
        """log b at which the rate is summed."""
        return np.linspace(self._knots[0], self._knots[-1], FINE * (len(self._knots) - 1) + 1)

    @cached_property
    def _between_knots(self) -> Floats:
        """Turns values at the knots into values at the places."""
        return np.array(
            [np.interp(self._places, self._knots, row) for row in np.eye(len(self._knots))]
        )

    def log_steps(self, draws: Floats, sizes: Floats) -> Floats:
        log_B, p = _bend(self.first, self.last, draws)
        wander = WANDER[0] * np.exp(WANDER[1] * draws[:, 2:3])
        log_rate = wander * (draws[:, 3:] @ self._waves) @ self._between_knots
        log_rate -= softplus(p * (self._places - log_B))
        rate = np.exp(np.minimum(log_rate, MOST_LOG_RATE))
        fallen: Floats = rate @ _sums(self._places, np.log(sizes))
        return -fallen


def _sums(places: Floats, upto: Floats) -> Floats:
    """Weights by which values at the places give the integral from the first place to others.

    Trapezoids between the places; constant beyond them.
    """
    gap = places[1] - places[0]
    inside = np.clip(upto, places[0], places[-1])
    share = np.clip((inside[None] - places[:-1, None]) / gap, 0.0, 1.0)  # of each trapezoid
    weights = np.zeros((len(places), len(upto)))
    weights[:-1] += gap * (share - share**2 / 2)
    weights[1:] += gap * share**2 / 2
    weights[0] += np.minimum(upto - places[0], 0.0)
    weights[-1] += np.maximum(upto - places[-1], 0.0)
    return weights
