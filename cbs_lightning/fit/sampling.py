"""Draws from a posterior and its evidence, by sequential Monte Carlo.

All parameters have independent standard normal priors; a model turns them into curves and into
the scatter of runs about them. Draws from the prior are weighted by the likelihood raised to a
power that grows from 0 to 1, resampled and moved by Metropolis steps at each power. Nothing needs
to be known about where the posterior is, it may have several modes, and the same data give the
same draws.

The less runs scatter, the closer together are the curves that are left possible. So draws are
grouped by their scatter, and moved as far as those of their group are apart.
"""

import math
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.fit.proposals import Groups, Student, squared_length

SEED = 0
FIRST = 5  # times as many draws from the prior as are kept
KEPT = 0.5  # effective share of the draws at the next power
LEAST_STEP = 1e-8  # of the power; it grows slowly where there are thousands of runs
ROUNDS, LAST_ROUNDS = 0.35, 1.4  # of moves for each parameter, at each power and at the last
REGROUP = 2  # rounds of moves after which draws are grouped anew
GOAL = 0.2  # share of the moves to accept
FIRST_SCALE, MOST_SCALE = 0.6, 0.99  # of a move: 1 would forget where it started
FAR = 10.0  # standard deviations of the prior: what a move beyond would find does not matter
BRIDGE_ROUNDS = 20


class Model(Protocol):
    """What the numbers mean: a row of `points` is a curve, one of `scatter` how runs scatter."""

    @property
    def parameters(self) -> tuple[int, int]:
        """How many numbers a curve takes, and its scatter."""

    def log_steps(self, points: Floats) -> Floats:
        """What the likelihood needs of each curve."""

    def log_likelihood(self, log_steps: Floats, scatter: Floats) -> Floats: ...

    def log_width(self, scatter: Floats) -> Floats:
        """Log of how far runs scatter."""


@dataclass(frozen=True)
class _Draws:
    """Curves with their scatter, and the log of the likelihood of each."""

    points: Floats
    scatter: Floats
    log_steps: Floats
    value: Floats

    @classmethod
    def at(cls, model: Model, points: Floats, scatter: Floats) -> "_Draws":
        log_steps = model.log_steps(np.clip(points, -FAR, FAR))
        value = model.log_likelihood(log_steps, np.clip(scatter, -FAR, FAR))
        return cls(points, scatter, log_steps, value)

    def take(self, rows: NDArray[np.intp]) -> "_Draws":
        return _Draws(*(getattr(self, each.name)[rows] for each in fields(self)))

    def replace(self, rows: NDArray[np.bool_], other: "_Draws") -> None:
        for each in fields(self):
            getattr(self, each.name)[rows] = getattr(other, each.name)[rows]

    @property
    def whole(self) -> Floats:
        return np.hstack((self.points, self.scatter))

    def log_density(self, power: float = 1.0) -> Floats:
        """Of the posterior, not normalised, with the likelihood raised to a power."""
        return power * self.value + _log_prior(self.points) + _log_prior(self.scatter)


def sample(model: Model, count: int) -> tuple[Floats, Floats, float]:
    """Draws of the posterior, `count` curves and their scatter, and the log of the evidence."""
    rng = np.random.default_rng(SEED)
    curve, scatter = model.parameters
    draws = _Draws.at(
        model,
        rng.standard_normal((FIRST * count, curve)),
        rng.standard_normal((FIRST * count, scatter)),
    )
    power, log_evidence, moves = 0.0, 0.0, _Moves(model, rng)
    while power < 1:
        step = _next_step(draws.value, 1 - power)
        power = 1.0 if step >= 1 - power else power + step
        log_weight = step * draws.value
        highest = float(log_weight.max())
        weight = np.exp(log_weight - highest)
        log_evidence += highest + math.log(weight.mean())
        draws = draws.take(_resample(weight, count, rng))
        rounds = LAST_ROUNDS if power == 1 else ROUNDS
        moves.make(draws, power, math.ceil(rounds * (curve + scatter)))
    return draws.points, draws.scatter, _evidence(model, draws, log_evidence, rng)


class _Moves:
    """Metropolis steps of all draws: of their curves, of their scatter, and of both together."""

    def __init__(self, model: Model, rng: np.random.Generator) -> None:
        self._model, self._rng = model, rng
        self._kinds = (self._other_curves, self._other_scatter, self._both)
        self._scales = [FIRST_SCALE] * len(self._kinds)

    def make(self, draws: _Draws, power: float, rounds: int) -> None:
        for number in range(rounds):
            if number % REGROUP == 0:
                self._groups = Groups.of(draws.points, self._model.log_width(draws.scatter))
                self._near = Student.about(draws.scatter)
            for kind, propose in enumerate(self._kinds):
                proposed, log_ratio = propose(draws, self._scales[kind])
                log_ratio += proposed.log_density(power) - draws.log_density(power)
                accepted = np.log(self._rng.random(len(log_ratio))) < log_ratio
                draws.replace(accepted, proposed)
                faster = math.exp(float(accepted.mean()) - GOAL)
                self._scales[kind] = min(self._scales[kind] * faster, MOST_SCALE)

    # Each returns what is proposed, and the log of how much more likely the move back is.

    def _other_curves(self, draws: _Draws, scale: float) -> tuple[_Draws, Floats]:
        points, log_ratio = draws.points.copy(), np.zeros(len(draws.points))
        for rows, near in self._groups.split(self._model.log_width(draws.scatter)):
            points[rows], log_ratio[rows] = near.move(draws.points[rows], scale, self._rng)
        return _Draws.at(self._model, points, draws.scatter), log_ratio

    def _other_scatter(self, draws: _Draws, scale: float) -> tuple[_Draws, Floats]:
        scatter, log_ratio = self._near.move(draws.scatter, scale, self._rng)
        value = self._model.log_likelihood(draws.log_steps, np.clip(scatter, -FAR, FAR))
        return _Draws(draws.points, scatter, draws.log_steps, value), log_ratio

    def _both(self, draws: _Draws, scale: float) -> tuple[_Draws, Floats]:
        """Other scatter, and each curve at its place within another group."""
        scatter, log_ratio = self._near.move(draws.scatter, scale, self._rng)
        log_widths = (self._model.log_width(each) for each in (draws.scatter, scatter))
        points, log_volume = self._groups.carry(draws.points, *log_widths)
        return _Draws.at(self._model, points, scatter), log_ratio + log_volume


def _log_prior(draws: Floats) -> Floats:
    free = draws.shape[1]
    found: Floats = -0.5 * (squared_length(draws) + free * math.log(2 * math.pi))
    return found


def _evidence(model: Model, draws: _Draws, start: float, rng: np.random.Generator) -> float:
    """Log of the evidence, by a bridge from either half of the draws.

    It leads to a distribution near the other half: one near the same draws would seem nearer to
    the posterior than it is. How weights grew from power to power, `start`, tells the evidence
    too, but scatters several times as much: enough to change a verdict.
    """
    halves = [draws.take(rows) for rows in np.array_split(np.arange(len(draws.value)), 2)]
    found = []
    for half, other in (halves, halves[::-1]):
        near = Groups.of(other.whole, model.log_width(other.scatter))
        found.append(_bridge(model, half, near, start, rng))
    return sum(found) / 2


def _bridge(
    model: Model, draws: _Draws, near: Groups, start: float, rng: np.random.Generator
) -> float:
    """Log of the evidence by Meng and Wong's bridge from draws of the posterior to `near`.

    It needs the ratio of their densities, the posterior's not normalised, at draws of either.
    """
    fresh = near.draw(len(draws.value), rng)
    points, scatter = np.split(fresh, [draws.points.shape[1]], axis=1)
    log_ratio = draws.log_density() - near.log_density(draws.whole)
    fresh_log_ratio = _Draws.at(model, points, scatter).log_density() - near.log_density(fresh)
    found = start
    for _ in range(BRIDGE_ROUNDS):
        top = np.mean(1 / (1 + np.exp(np.clip(found - fresh_log_ratio, -700, 700))))
        bottom = np.mean(1 / (1 + np.exp(np.clip(log_ratio - found, -700, 700))))
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
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= KEPT else (low, middle)
    return min(max(low, LEAST_STEP), most)


def _resample(weight: Floats, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    places = (np.arange(count) + rng.random()) / count
    cumulative = np.cumsum(weight / weight.sum())
    return np.minimum(np.searchsorted(cumulative, places), len(weight) - 1)
