"""The theorem's constants from several thresholds of the same runs.

One threshold tells A = C₁/(ε-C₃) and B₀ = C₂/(ε-C₃) only. Over several, Theorem 3.1 says that 1/A
is linear in ε and B₀/A constant, so that C₁, C₂ and ε-C₃ can be told apart, and b* = 2C₂/(ε-C₃).

A loss threshold is not ε. What is fitted here is an assumption, to be judged by how well it fits:
that ε and the threshold differ by a constant only, which C₃ then contains.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit import fit_measurements
from cbs_lightning.likelihood import Floats, LogCurve, Observations, aicc, maximise
from cbs_lightning.measurements import Measurements

CONTRADICTION = 10.0  # in AICc: beyond that hardly any support is left
STEP = 1e-5  # of a parameter, for derivatives
FEWEST_SIZES = 3  # that reached a threshold, for it to count


@dataclass(frozen=True)
class JointFit:
    """C₁, C₂ and C₃ from several thresholds, if ε were the loss threshold.

    `separate_rms` and `separate_aicc` are of the paper's form fitted to every threshold by itself,
    whose A and B₀ then need not follow the theorem. `reason` says why there is no fit.
    """

    thresholds: tuple[float, ...]
    c1: float = math.nan
    c2: float = math.nan
    c3: float = math.nan
    rms_log_error: float = math.nan
    aicc: float = math.inf
    separate_rms: float = math.nan
    separate_aicc: float = math.inf
    reason: str = ""

    @property
    def contradicted(self) -> bool:
        """Whether the data speak against the theorem's dependence on ε."""
        return not self.reason and self.aicc > self.separate_aicc + CONTRADICTION

    def critical_batch(self, threshold: float) -> float | None:
        gap = threshold - self.c3
        return 2 * self.c2 / gap if gap > 0 and self.c2 > 0 else None

    def describe(self) -> str:
        if self.reason:
            return self.reason
        verdict = "contradict" if self.contradicted else "agree with"
        thresholds = ", ".join(f"{threshold:g}" for threshold in self.thresholds)
        return (
            f"thresholds {thresholds} {verdict} the theorem's 1/A linear in ε and B0/A constant "
            f"(RMS of log K {self.rms_log_error:.2f}, each by itself {self.separate_rms:.2f}; "
            f"ε taken as the threshold)"
        )


def joint_fit(by_threshold: Mapping[float, Measurements]) -> JointFit:
    """Fit K = C₁b/((ε-C₃)b - C₂) to all thresholds together, and to each by itself."""
    told = {
        threshold: data
        for threshold, data in sorted(by_threshold.items(), reverse=True)
        if data.distinct >= FEWEST_SIZES
    }
    if len(told) < 2:
        return JointFit(tuple(told), reason="fewer than two thresholds with three batch sizes")
    return _Pooled.of(told).fit()


@dataclass(frozen=True)
class _Pooled:
    """The runs of all thresholds, one after the other."""

    thresholds: Floats
    which: NDArray[np.intp]  # the threshold of each entry
    sizes: Floats
    observations: Observations
    starts: tuple[tuple[float, float], ...]  # log A and B₀ in units, of each by itself

    @classmethod
    def of(cls, told: Mapping[float, Measurements]) -> "_Pooled":
        data = list(told.values())
        counts = [len(one.batch_sizes) for one in data]
        alone = [fit_measurements(one, "iiduka") for one in data]
        return cls(
            np.array(list(told)),
            np.repeat(np.arange(len(data)), counts),
            np.concatenate([one.batch_sizes for one in data]),
            Observations(
                np.concatenate([one.observations.log_steps for one in data]),
                np.concatenate([one.observations.censored for one in data]),
            ),
            tuple((math.log(one.A), one.B0 / float(one.data.reached.min())) for one in alone),
        )

    @property
    def _reached(self) -> NDArray[np.bool_]:
        return ~self.observations.censored

    def fit(self) -> JointFit:
        lowest = self.thresholds.min()
        offsets = np.array([0.01, 0.1, 0.3, 1.0, 3.0]) * max(lowest, np.ptp(self.thresholds))
        poles = np.array([0.02, 0.1, 0.5, 1.5, 4.0])
        gap, v = (axis.ravel() for axis in np.meshgrid(np.log(offsets), poles))
        log_c1 = np.mean([log_a for log_a, _ in self.starts]) + np.log(
            np.mean(self.thresholds) - lowest + np.exp(gap)
        )
        joint_start = np.column_stack((log_c1, gap, v))
        joint = maximise(
            _with_slopes(self._joint),
            self.observations,
            joint_start,
            np.tile([-1e3, -25.0, 0.0], (len(gap), 1)),
            np.tile([1e3, 25.0, 25.0], (len(gap), 1)),
        )
        best = int(np.argmax(joint.log_likelihood))
        theta = joint.parameters[[best]]
        c1, c2, c3 = (float(value[0]) for value in self._constants(theta))
        start = [value for log_a, b0 in self.starts for value in (log_a, -math.log1p(-b0))]
        count = len(self.thresholds)
        separate = maximise(
            _with_slopes(self._separate),
            self.observations,
            np.array([start]),
            np.tile([-1e3, 0.0], (1, count)),
            np.tile([1e3, 25.0], (1, count)),
        )
        return JointFit(
            tuple(self.thresholds.tolist()),
            c1,
            c2,
            c3,
            self._rms(self._joint(theta)[0]),
            aicc(float(joint.log_likelihood[best]), 4, len(self.sizes)),
            self._rms(self._separate(separate.parameters)[0]),
            aicc(float(separate.log_likelihood[0]), 2 * count + 1, len(self.sizes)),
        )

    def _rms(self, eta: Floats) -> float:
        misses = (self.observations.log_steps - eta)[self._reached]
        return float(np.sqrt(np.mean(misses**2)))

    def _constants(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """From log C₁, log(lowest ε - C₃) and C₂'s place below what every reached run allows."""
        least_gap = np.exp(theta[:, 1])
        c3 = self.thresholds.min() - least_gap
        room = (self.thresholds[self.which] - c3[:, None]) * self.sizes
        most = room[:, self._reached].min(axis=1)
        return np.exp(theta[:, 0]), -np.expm1(-theta[:, 2]) * most, c3

    def _joint(self, theta: Floats) -> Floats:
        c1, c2, c3 = self._constants(theta)
        room = (self.thresholds[self.which] - c3[:, None]) * self.sizes - c2[:, None]
        return _log_ratio(c1[:, None] * self.sizes, room)

    def _separate(self, theta: Floats) -> Floats:
        log_a, v = theta[:, 0::2], theta[:, 1::2]
        least = np.array(
            [self.sizes[self._reached & (self.which == j)].min() for j in range(log_a.shape[1])]
        )
        room = self.sizes - (-np.expm1(-v) * least)[:, self.which]
        return _log_ratio(np.exp(log_a)[:, self.which] * self.sizes, room)


def _log_ratio(top: Floats, room: Floats) -> Floats:
    defined = room > 0
    return np.where(defined, np.log(top) - np.log(np.where(defined, room, 1.0)), np.inf)


def _with_slopes(log_steps: Callable[[Floats], Floats]) -> LogCurve:
    """Add the derivatives, by differences."""

    def curve(theta: Floats, _: NDArray[np.intp]) -> tuple[Floats, Floats]:
        eta = log_steps(theta)
        slopes = np.zeros((*eta.shape, theta.shape[1]))
        for column in range(theta.shape[1]):
            shift = np.zeros(theta.shape[1])
            shift[column] = STEP
            above, below = log_steps(theta + shift), log_steps(theta - shift)
            finite = np.isfinite(above) & np.isfinite(below)
            difference = np.where(finite, above, 0.0) - np.where(finite, below, 0.0)
            slopes[:, :, column] = difference / (2 * STEP)
        return eta, slopes

    return curve
