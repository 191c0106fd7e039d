"""A run's way to a threshold, as its probes saw it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.console import count_of
from cbs_lightning.noise.record import NoiseRecord, Probe

Floats = NDArray[np.float64]

FEWEST_PROBES = 3  # a rate of decay and a check of it
NEAR = 0.5  # of log loss: the width over which probes tell of the threshold
BEYOND = math.e  # times the threshold: from there the last probe still tells of it


class NoPredictionError(ValueError):
    """The probes do not say what an estimator needs; the message says why."""


@dataclass(frozen=True)
class Course:
    """The probes of a run, and the threshold that they are asked about.

    Sums are over the probes above the threshold, each as often as the steps it stands for. What
    holds at the threshold is a mean over all probes, those with a loss near it first.
    """

    probes: tuple[Probe, ...]
    threshold: float
    batch_size: int  # samples per step of the run

    @classmethod
    def of(cls, record: NoiseRecord, threshold: float | None = None) -> "Course":
        """Raise `NoPredictionError` where the probes end before the threshold or are too few."""
        asked = record.threshold if threshold is None else threshold
        probes = tuple(each for each in record.probes if each.loss > 0 and each.step > 0)
        if len(probes) < FEWEST_PROBES:
            raise NoPredictionError(
                f"{count_of(len(probes), 'probe')}, at least {FEWEST_PROBES} are needed"
            )
        least = min(each.loss for each in probes)
        if least > asked * BEYOND:
            raise NoPredictionError(f"the probes end at a loss of {least:.3g}, above {asked:g}")
        return cls(probes, asked, record.batch_size)

    def unclipped(self) -> "Course":
        """The run after its last clipped probe; raises if that is too short."""
        clipped = [at for at, each in enumerate(self.probes) if each.is_clipped]
        left = self.probes[clipped[-1] + 1 :] if clipped else self.probes
        if len(left) < FEWEST_PROBES:
            raise NoPredictionError(
                f"gradients are clipped at {len(clipped)} of {len(self.probes)} probes, "
                "of which this knows nothing"
            )
        return replace(self, probes=left)

    @cached_property
    def loss(self) -> Floats:
        return np.array([each.loss for each in self.probes])

    @cached_property
    def near(self) -> Floats:
        """How much each probe tells of the threshold; the sum is 1."""
        away = np.log(self.loss / self.threshold) / NEAR
        weights = np.exp(-0.5 * (away**2 - (away**2).min()))
        found: Floats = weights / weights.sum()
        return found

    @cached_property
    def stood_for(self) -> Floats:
        """Steps of the run before the threshold that each probe stands for.

        Of a run so short that its first probe is below the threshold, those of that probe.
        """
        steps = np.array([each.steps for each in self.probes], float)
        above = self.loss >= 0.999 * self.threshold
        above[0] |= not above.any()
        return np.where(above, steps, 0.0)

    def values(self, name: str, what: str) -> Floats:
        """One of the probes' numbers; raises where one of them lacks it."""
        found = [getattr(each, name) for each in self.probes]
        if any(value is None for value in found):
            raise NoPredictionError(f"{what} was not measured")
        return np.array(found, float)

    def total(self, name: str, what: str) -> float:
        """The sum over the run's steps to the threshold."""
        return float((self.values(name, what) * self.stood_for).sum())

    def at_threshold(self, values: Floats, what: str) -> float:
        """The mean of the logarithms there; raises where none of the values near it is above 0."""
        positive = (values > 0) & (self.near > 0)
        if not positive.any():
            raise NoPredictionError(f"{what} <= 0")
        weights = self.near[positive]
        return float(np.exp((weights * np.log(values[positive])).sum() / weights.sum()))

    def slope(self, values: Floats, against: Floats) -> float:
        """d log values / d log against, at the threshold; nan where nothing tells."""
        known = (values > 0) & (against > 0) & (self.near > 0)
        weights = self.near[known]
        if len(weights) < 2:
            return float("nan")
        weights = weights / weights.sum()
        x, y = np.log(against[known]), np.log(values[known])
        x, y = x - (weights * x).sum(), y - (weights * y).sum()
        spread = float((weights * x * x).sum())
        return float((weights * x * y).sum() / spread) if spread > 0 else float("nan")

    def redrawn(self, draws: int, rng: np.random.Generator) -> Iterator["Course"]:
        """The same run with other errors of measurement, as their standard errors say."""
        for _ in range(draws):
            yield replace(self, probes=tuple(_with_errors(each, rng) for each in self.probes))


def _with_errors(probe: Probe, rng: np.random.Generator) -> Probe:
    """Every number that has a standard error, drawn about its value."""
    drawn = {}
    for name in ("gradient_norm2", "noise_trace", "a_trial", "c_trial", "a_hvp", "c_hvp",
                 "a_own", "c_own"):  # fmt: skip
        value, error = getattr(probe, name), getattr(probe, f"{name}_se")
        if value is not None and error is not None:
            drawn[name] = value + error * float(rng.standard_normal())
    if "noise_trace" in drawn and probe.noise_trace:
        # These have no error of their own; that of tr Σ, relative, is near.
        share = max(drawn["noise_trace"] / probe.noise_trace, 0.0)
        for name in ("preconditioned_noise_trace", "own_noise"):
            value = getattr(probe, name)
            drawn[name] = value * share if value is not None else None
    return replace(probe, **drawn)
