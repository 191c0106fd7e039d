"""Distributions near given draws: what a sampler's moves are taken from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats

TAIL = 6  # degrees of freedom
GROUPS = 8  # of draws, by scatter; fewer if there are too few draws


@dataclass(frozen=True)
class Student:
    """Student's distribution with the mean and the covariance of draws.

    A move leaves this distribution unchanged (preconditioned Crank-Nicolson), so where draws nearly
    follow it, long moves are accepted. Those of a random walk have to be short in many dimensions.
    """

    mean: Floats
    root: Floats  # of the scale matrix
    inverse: Floats  # of the root

    @classmethod
    def about(cls, draws: Floats) -> "Student":
        covariance = np.cov(draws, rowvar=False) + 1e-9 * np.eye(draws.shape[1])
        root = np.asarray(np.linalg.cholesky(covariance * (TAIL - 2) / TAIL), np.float64)
        return cls(draws.mean(axis=0), root, np.asarray(np.linalg.inv(root), np.float64))

    @property
    def log_volume(self) -> float:
        return float(np.log(np.diag(self.root)).sum())

    def _distance(self, draws: Floats) -> Floats:
        """Squared, from the mean."""
        return squared_length((draws - self.mean) @ self.inverse.T)

    def log_density(self, draws: Floats) -> Floats:
        return self._log_density_at(self._distance(draws))

    def _log_density_at(self, distance: Floats) -> Floats:
        free = len(self.mean)
        power = 0.5 * (TAIL + free)
        volume = 0.5 * free * math.log(TAIL * math.pi) + self.log_volume
        highest = math.lgamma(power) - math.lgamma(0.5 * TAIL) - volume
        found: Floats = highest - power * np.log1p(distance / TAIL)
        return found

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        normal = rng.standard_normal((count, len(self.mean)))
        spread = 0.5 * TAIL / rng.standard_gamma(0.5 * TAIL, count)
        drawn: Floats = self.mean + np.sqrt(spread)[:, None] * (normal @ self.root.T)
        return drawn

    def move(self, draws: Floats, scale: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Towards the mean, and away from it at random; `scale` is between 0 and 1.

        Also the log of how much more likely the move back is.
        """
        shape, distance = 0.5 * (TAIL + draws.shape[1]), self._distance(draws)
        spread = 0.5 * (TAIL + distance) / rng.standard_gamma(shape, len(draws))
        away = np.sqrt(spread)[:, None] * (rng.standard_normal(draws.shape) @ self.root.T)
        moved = self.mean + math.sqrt(1 - scale**2) * (draws - self.mean) + scale * away
        return moved, self._log_density_at(distance) - self.log_density(moved)


@dataclass(frozen=True)
class Groups:
    """Draws in groups of equal size, from little scatter to much, and a distribution about each."""

    ends: Floats  # log widths between one group and the next
    near: tuple[Student, ...]

    @classmethod
    def of(cls, draws: Floats, log_width: Floats) -> "Groups":
        count = max(1, min(GROUPS, len(draws) // (2 * draws.shape[1])))
        groups = np.array_split(np.argsort(log_width, kind="stable"), count)
        ends = np.array([log_width[later[0]] for later in groups[1:]])
        return cls(ends, tuple(Student.about(draws[rows]) for rows in groups))

    def split(self, log_width: Floats) -> Iterator[tuple[NDArray[np.intp], Student]]:
        """The draws that are in each group by these widths."""
        group = np.searchsorted(self.ends, log_width, side="right")
        for number, near in enumerate(self.near):
            yield np.flatnonzero(group == number), near

    def carry(self, draws: Floats, before: Floats, after: Floats) -> tuple[Floats, Floats]:
        """Each draw at the same place within another group, and the log of how volumes grow."""
        place, carried = np.empty_like(draws), np.empty_like(draws)
        log_volume = np.zeros(len(draws))
        for rows, near in self.split(before):
            place[rows] = (draws[rows] - near.mean) @ near.inverse.T
            log_volume[rows] -= near.log_volume
        for rows, near in self.split(after):
            carried[rows] = near.mean + place[rows] @ near.root.T
            log_volume[rows] += near.log_volume
        return carried, log_volume

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """As many of each group."""
        shares = np.array_split(np.arange(count), len(self.near))
        pairs = zip(self.near, shares, strict=True)
        return np.vstack([near.draw(len(share), rng) for near, share in pairs])

    def log_density(self, draws: Floats) -> Floats:
        each = [near.log_density(draws) for near in self.near]
        found: Floats = np.logaddexp.reduce(each, axis=0) - math.log(len(self.near))
        return found


def squared_length(rows: Floats) -> Floats:
    found: Floats = np.einsum("ij,ij->i", rows, rows)  # faster than a sum over so few columns
    return found
