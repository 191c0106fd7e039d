"""Draws from a posterior and its evidence, by sequential Monte Carlo.

All parameters have independent standard normal priors; a likelihood turns them into what it needs.
Draws from the prior are weighted by the likelihood raised to a power that grows from 0 to 1,
resampled and moved by Metropolis steps at each power. Nothing needs to be known about where the
posterior is, it may have several modes, and the same data give the same draws.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats

SEED = 0
FIRST = 10  # times as many draws from the prior as are kept
KEPT = 0.5  # effective share of the draws at the next power
LEAST_STEP = 1e-4
GOAL = 0.25  # share of the moves to accept

LogLikelihood = Callable[[Floats], Floats]  # (draws, parameters) -> (draws,)


def sample(
    log_likelihood: LogLikelihood, parameters: int, count: int, moves: int
) -> tuple[Floats, float]:
    """Draws of the posterior, (count, parameters), and the log of the evidence."""
    rng = np.random.default_rng(SEED)
    draws = rng.standard_normal((FIRST * count, parameters))
    value = log_likelihood(draws)
    power, log_evidence, scale = 0.0, 0.0, 1.0
    while power < 1:
        step = _next_step(value, 1 - power)
        power = 1.0 if step >= 1 - power else power + step
        log_weight = step * value
        highest = float(log_weight.max())
        weight = np.exp(log_weight - highest)
        log_evidence += highest + math.log(weight.mean())
        chosen = _resample(weight, count, rng)
        draws, value = draws[chosen], value[chosen]
        root = _root_of_covariance(draws)
        for _ in range(moves):
            moved = draws + scale * rng.standard_normal(draws.shape) @ root.T
            moved_value = log_likelihood(moved)
            gain = power * (moved_value - value) + 0.5 * (draws**2 - moved**2).sum(axis=1)
            accepted = np.log(rng.random(count)) < gain
            draws[accepted], value[accepted] = moved[accepted], moved_value[accepted]
            scale *= math.exp(float(accepted.mean()) - GOAL)
    return draws, log_evidence


def _next_step(value: Floats, most: float) -> float:
    """By how much to raise the power so that `KEPT` of the draws stay effective."""

    def effective(step: float) -> float:
        weight = np.exp(step * (value - value.max()))
        return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))

    if effective(most) >= KEPT:
        return most
    low, high = 0.0, most
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= KEPT else (low, middle)
    return min(max(low, LEAST_STEP), most)


def _resample(weight: Floats, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    places = (np.arange(count) + rng.random()) / count
    cumulative = np.cumsum(weight / weight.sum())
    return np.minimum(np.searchsorted(cumulative, places), len(weight) - 1)


def _root_of_covariance(draws: Floats) -> Floats:
    parameters = draws.shape[1]
    covariance = np.cov(draws, rowvar=False) + 1e-9 * np.eye(parameters)
    return np.asarray(np.linalg.cholesky(covariance) * (2.38 / math.sqrt(parameters)), np.float64)
