"""Draws from a posterior and its evidence, by sequential Monte Carlo.

All parameters have independent standard normal priors; a likelihood turns them into what it needs.
Draws from the prior are weighted by the likelihood raised to a power that grows from 0 to 1,
resampled and moved by Metropolis steps at each power. Nothing needs to be known about where the
posterior is, it may have several modes, and the same data give the same draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats

SEED = 2
FIRST = 5  # times as many draws from the prior as are kept
KEPT = 0.5  # effective share of the draws at the next power
LEAST_STEP = 1e-4
MOVES, LAST_MOVES = 6, 15  # Metropolis steps at each power, and at the last
GOAL = 0.2  # share of the moves to accept
MOST_SCALE = 0.99  # of a move: 1 would forget where it started
TAIL = 6  # degrees of freedom of the distribution that moves are taken from

BRIDGE_ROUNDS = 20

LogLikelihood = Callable[[Floats], Floats]  # (draws, parameters) -> (draws,)


def sample(log_likelihood: LogLikelihood, parameters: int, count: int) -> tuple[Floats, float]:
    """Draws of the posterior, (count, parameters), and the log of the evidence."""
    rng = np.random.default_rng(SEED)
    draws = rng.standard_normal((FIRST * count, parameters))
    value = log_likelihood(draws)
    power, log_evidence, scale = 0.0, 0.0, 0.6
    while power < 1:
        step = _next_step(value, 1 - power)
        power = 1.0 if step >= 1 - power else power + step
        log_weight = step * value
        highest = float(log_weight.max())
        weight = np.exp(log_weight - highest)
        log_evidence += highest + math.log(weight.mean())
        chosen = _resample(weight, count, rng)
        draws, value = draws[chosen], value[chosen]
        near = _Student.about(draws)
        score = power * value + _log_prior(draws) - near.log_density(draws)
        for _ in range(LAST_MOVES if power == 1 else MOVES):
            moved = near.move(draws, scale, rng)
            moved_value = log_likelihood(moved)
            moved_score = power * moved_value + _log_prior(moved) - near.log_density(moved)
            accepted = np.log(rng.random(count)) < moved_score - score
            draws[accepted], value[accepted] = moved[accepted], moved_value[accepted]
            score[accepted] = moved_score[accepted]
            scale = min(scale * math.exp(float(accepted.mean()) - GOAL), MOST_SCALE)
    near = _Student.about(draws)
    fresh = near.draw(count, rng)
    log_ratio = value + _log_prior(draws) - near.log_density(draws)
    fresh_log_ratio = log_likelihood(fresh) + _log_prior(fresh) - near.log_density(fresh)
    return draws, _bridge(log_ratio, fresh_log_ratio, log_evidence)


def _log_prior(draws: Floats) -> Floats:
    found: Floats = -0.5 * (np.square(draws) + math.log(2 * math.pi)).sum(axis=1)
    return found


def _bridge(drawn: Floats, fresh: Floats, start: float) -> float:
    """Log of the evidence: Meng and Wong's bridge from the posterior to a distribution near it.

    Given are the logs of the ratio of their densities, the posterior's not normalised, at draws of
    the one and of the other. How weights grew from power to power, `start`, tells the evidence
    too, but scatters several times as much: enough to change a verdict.
    """
    found = start
    for _ in range(BRIDGE_ROUNDS):
        top = np.mean(1 / (1 + np.exp(np.clip(found - fresh, -700, 700))))
        bottom = np.mean(1 / (1 + np.exp(np.clip(drawn - found, -700, 700))))
        found += math.log(top) - math.log(bottom)
    return found


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


@dataclass(frozen=True)
class _Student:
    """Student's distribution with the mean and the covariance of draws.

    Moves leave it as it is, so that those of draws which nearly follow it are nearly all accepted
    (preconditioned Crank-Nicolson). Steps of a random walk have to be short in many dimensions.
    """

    mean: Floats
    root: Floats  # of the scale matrix
    inverse: Floats  # of the root

    @classmethod
    def about(cls, draws: Floats) -> "_Student":
        covariance = np.cov(draws, rowvar=False) + 1e-9 * np.eye(draws.shape[1])
        root = np.asarray(np.linalg.cholesky(covariance * (TAIL - 2) / TAIL), np.float64)
        return cls(draws.mean(axis=0), root, np.asarray(np.linalg.inv(root), np.float64))

    def _distance(self, draws: Floats) -> Floats:
        """Squared, from the mean."""
        found: Floats = np.square((draws - self.mean) @ self.inverse.T).sum(axis=1)
        return found

    def log_density(self, draws: Floats) -> Floats:
        free, power = draws.shape[1], 0.5 * (TAIL + draws.shape[1])
        volume = 0.5 * free * math.log(TAIL * math.pi) + float(np.log(np.diag(self.root)).sum())
        highest = math.lgamma(power) - math.lgamma(0.5 * TAIL) - volume
        found: Floats = highest - power * np.log1p(self._distance(draws) / TAIL)
        return found

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        normal = rng.standard_normal((count, len(self.mean)))
        spread = 0.5 * TAIL / rng.standard_gamma(0.5 * TAIL, count)
        drawn: Floats = self.mean + np.sqrt(spread)[:, None] * (normal @ self.root.T)
        return drawn

    def move(self, draws: Floats, scale: float, rng: np.random.Generator) -> Floats:
        """Towards the mean, and away from it at random; `scale` is between 0 and 1."""
        shape = 0.5 * (TAIL + draws.shape[1])
        spread = 0.5 * (TAIL + self._distance(draws)) / rng.standard_gamma(shape, len(draws))
        away = np.sqrt(spread)[:, None] * (rng.standard_normal(draws.shape) @ self.root.T)
        moved: Floats = self.mean + math.sqrt(1 - scale**2) * (draws - self.mean) + scale * away
        return moved
