"""The curves K = A(b + B1)/(b - B0) over one set of measurements, fitted many at a time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats, LogCurve, Observations, Solutions, maximise
from cbs_lightning.fit.measurements import Measurements

FREE = {"iiduka": (0, 2), "mccandlish": (0, 1), "nested": (0, 1, 2)}  # of log_scale, q and v
MOST = 25.0  # bound on the shape parameters: B1/b of e^25 is a curve without a floor
TINY = math.exp(-MOST)
NOTHING = 1e-6  # of the smallest batch size: a b* below is none
STARTS = np.array(
    [(q, v) for q in (0, 0.3, 1, 2, 4, 6, 9, 12) for v in (0, 0.05, 0.2, 0.5, 1, 2, 4)]
)


@dataclass(frozen=True)
class Shape:
    """The curves over one set of measurements, in units of the smallest b that reached.

    With x = b/unit: log K = log_scale + log(1 + D/(x - B0)), up to a constant, with D = B0 + B1 and
    the parameters q = log(1 + D) and v = -log(1 - B0). B0 stays below 1: the smallest batch size
    that reached the threshold has a K. D stays positive, so that K falls with b.
    """

    unit: float
    x: Floats
    observations: Observations

    @classmethod
    def of(cls, data: Measurements) -> "Shape":
        unit = float(data.reached.min())
        return cls(unit, data.batch_sizes / unit, data.observations)

    def curve(self, theta: Floats, _: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """`nested`, and `mccandlish` where v is held at 0."""
        gap = np.exp(-theta[:, 2])
        eta, by_q, by_gap = self._log_steps(theta[:, 0], theta[:, 1], gap)
        return eta, np.stack((np.ones_like(eta), by_q, -gap[:, None] * by_gap), axis=2)

    def paper_curve(self, theta: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """`iiduka`: D = B0, whatever q is."""
        pole = -np.expm1(-theta[:, 2])
        tied = np.column_stack((theta[:, 0], np.log1p(pole), theta[:, 2]))
        eta, slopes = self.curve(tied, rows)
        slopes[:, :, 2] += slopes[:, :, 1] * ((1 - pole) / (1 + pole))[:, None]
        slopes[:, :, 1] = 0.0
        return eta, slopes

    def curve_at(self, critical: Floats) -> LogCurve:
        """The nested curves whose b*, in units, is given: q is left free, and B0 follows."""

        def curve(theta: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
            D = np.maximum(np.expm1(theta[:, 1]), TINY)
            pole = _pole(critical[rows], D)
            gap = np.maximum(1 - pole, TINY)
            eta, by_q, by_gap = self._log_steps(theta[:, 0], theta[:, 1], gap)
            gap_by_q = pole / (2 * np.sqrt(pole * D) + D) * np.exp(theta[:, 1])
            return eta, np.stack((np.ones_like(eta), by_q + by_gap * gap_by_q[:, None]), axis=2)

        return curve

    def _log_steps(self, log_scale: Floats, q: Floats, gap: Floats) -> tuple[Floats, ...]:
        """log K and its derivatives in q and in gap = 1 - B0."""
        room = self.x - 1 + gap[:, None]
        defined = room > 0
        room = np.where(defined, room, 1.0)
        top = room + np.expm1(q)[:, None]
        top = np.where(top > 0, top, 1.0)
        eta = log_scale[:, None] + np.log(top) - q[:, None] - np.log(room)
        return (
            np.where(defined, eta, np.inf),
            defined * (1 - room) / top,
            defined * (1 / top - 1 / room),
        )

    def solve(self, model: str, shapes: Floats) -> Solutions:
        """A fit from every row of shape parameters (q, v)."""
        curve = self.paper_curve if model == "iiduka" else self.curve
        free = np.isin(np.arange(3), FREE[model])
        upper = np.tile(np.where(free, [1e3, MOST, MOST], 0.0), (len(shapes), 1))
        lower = np.tile(np.where(free, [-1e3, 0.0, 0.0], 0.0), (len(shapes), 1))
        start = np.clip(np.column_stack((np.zeros(len(shapes)), shapes)), lower, upper)
        start[:, 0] = self._scale(curve, start)
        found = maximise(curve, self.observations, start, lower, upper)
        if model == "iiduka":
            found.parameters[:, 1] = np.log1p(-np.expm1(-found.parameters[:, 2]))
        return found

    def profile(self, model: str, critical: Floats) -> Floats:
        """The greatest log-likelihood that the model has with b* at each given place, in units."""
        if model == "iiduka":
            least, lifts = np.log1p(critical / 2), np.zeros(1)
        else:
            least = np.log1p(np.maximum(critical - 1, 0.0) ** 2)  # else B0 > 1
            lifts = np.array([0.0, 0.1, 0.5, 1, 2, 5])
        rows, lift = (axis.ravel() for axis in np.meshgrid(np.arange(len(critical)), lifts))
        lower = np.column_stack((np.full(len(rows), -1e3), least[rows]))
        upper = np.column_stack((np.full(len(rows), 1e3), np.full(len(rows), MOST)))
        if model == "iiduka":
            upper[:, 1] = lower[:, 1]
        start = np.column_stack((np.zeros(len(rows)), np.minimum(least[rows] + lift, MOST)))
        curve = self.curve_at(critical[rows])
        start[:, 0] = self._scale(curve, start)
        found = maximise(curve, self.observations, start, lower, upper)
        likelihood: Floats = found.log_likelihood.reshape(len(lifts), -1).max(axis=0)
        return likelihood

    def _scale(self, curve: LogCurve, theta: Floats) -> Floats:
        """The best log_scale for every row, the censored left aside."""
        eta, _ = curve(theta, np.arange(len(theta)))
        known = ~self.observations.censored
        miss = self.observations.log_steps[..., known] - eta[:, known]
        scale: Floats = miss.mean(axis=1)
        return scale

    def steps(self, theta: Floats, b: Floats) -> Floats:
        """K at every b, for every row of parameters; infinite for b ≤ B0."""
        gap = np.exp(-theta[:, 2:3])
        room = b / self.unit - 1 + gap
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = np.exp(theta[:, :1] - theta[:, 1:2]) * (1 + np.expm1(theta[:, 1:2]) / room)
        return np.where(room > 0, found, np.inf)

    def critical(self, theta: Floats) -> Floats:
        """b*: 0 where K·b grows from the start, infinite where it falls without end."""
        pole, D = -np.expm1(-theta[:, 2]), np.expm1(theta[:, 1])
        found = self.unit * (pole + np.sqrt(pole * D))
        found = np.where(found < NOTHING * self.unit, 0.0, found)
        return np.where((theta[:, 1] >= MOST) & (pole > 0), np.inf, found)


def _pole(critical: Floats, D: Floats) -> Floats:
    """The B0 for which B0 + sqrt(B0·D) is the given b*."""
    root = 2 * critical / (np.sqrt(D) + np.sqrt(D + 4 * critical))
    pole: Floats = root**2
    return pole
