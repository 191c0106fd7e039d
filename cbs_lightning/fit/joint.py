"""The theorem's constants from several thresholds of the same runs.

One threshold tells A = C₁/(ε-C₃) and B₀ = C₂/(ε-C₃) only. Over several, Theorem 3.1 says that 1/A
is linear in ε and B₀/A constant, so that C₁, C₂ and ε-C₃ can be told apart, and b* = 2C₂/(ε-C₃).

A loss threshold is not ε. What is fitted here is an assumption, to be judged by how well it fits:
that ε and the threshold differ by a constant only, which C₃ then contains.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.curve_fit import fit_measurements
from cbs_lightning.fit.likelihood import LEAST_SIGMA, Floats, LogCurve, Observations, aicc, maximise
from cbs_lightning.fit.measurements import FEWEST_SIZES, Measurements
from cbs_lightning.theory.theorem import Constants

CONTRADICTION = 10.0  # in AICc: beyond that hardly any support is left
STEP = 1e-5  # of a parameter, for derivatives


@dataclass(frozen=True)
class JointFit:
    """C₁, C₂ and C₃ from several thresholds, if ε were the loss threshold.

    `separate_rms` and `separate_aicc` are of the paper's form fitted to every threshold by itself,
    whose A and B₀ then need not follow the theorem; `nested_rms` and `nested_aicc` of the nested
    form. `reason` says why there is no fit.
    """

    thresholds: tuple[float, ...]
    c1: float = math.nan
    c2: float = math.nan
    c3: float = math.nan
    rms_log_error: float = math.nan
    aicc: float = math.inf
    separate_rms: float = math.nan
    separate_aicc: float = math.inf
    nested_rms: float = math.nan
    nested_aicc: float = math.inf
    reason: str = ""

    @property
    def testable(self) -> bool:
        """Two thresholds always lie on a line, and few runs fit any form."""
        return len(self.thresholds) > 2 and math.isfinite(self.nested_aicc)

    @property
    def form_contradicted(self) -> bool:
        """Whether the data speak against K = A·b/(b - B₀), whatever A and B₀ do."""
        return not self.reason and self.separate_aicc > self.nested_aicc + CONTRADICTION

    @property
    def contradicted(self) -> bool:
        """Whether the data speak against that form, or against its dependence on ε."""
        wrong = self.form_contradicted or self.aicc > self.separate_aicc + CONTRADICTION
        return not self.reason and wrong

    def critical_batch(self, threshold: float) -> float | None:
        """b* = 2C₂/(ε-C₃) with the threshold for ε."""
        return Constants(self.c1, self.c2, self.c3).critical_batch(threshold)

    def describe(self) -> str:
        """A sentence on whether the thresholds agree with the theorem."""
        if self.reason:
            return f"C1, C2 and C3 cannot be told: {self.reason}."
        thresholds = ", ".join(f"{threshold:g}" for threshold in self.thresholds)
        if not self.contradicted and not self.testable:
            return (
                f"Thresholds {thresholds}: too little to test the theorem's dependence on ε; log K "
                f"is off by {self.rms_log_error:.2f} (RMS)."
            )
        if self.form_contradicted:
            return (
                f"The theorem's form does not describe thresholds {thresholds} even one by one "
                f"(RMS of log K {self.separate_rms:.2f}, with the nested form "
                f"{self.nested_rms:.2f}). C1, C2 and C3 are not to be relied on."
            )
        errors = f"RMS of log K {self.rms_log_error:.2f} against {self.separate_rms:.2f}"
        if self.contradicted:
            return (
                f"The theorem's form does not describe thresholds {thresholds} jointly ({errors} "
                "for each threshold by itself). C1, C2 and C3 are not to be relied on."
            )
        constants = f"C1 = {self.c1:.3g}, C2 = {self.c2:.3g}, C3 = {self.c3:.3g}"
        return (
            f"The theorem's form describes thresholds {thresholds} jointly almost as well as one "
            f"by one ({errors}). {constants}, if ε is the loss threshold up to a constant."
        )


def joint_fit(by_threshold: Mapping[float, Measurements]) -> JointFit:
    """Fit K = C₁b/((ε-C₃)b - C₂) to all thresholds together, and to each by itself."""
    usable = {
        threshold: data
        for threshold, data in sorted(by_threshold.items(), reverse=True)
        if data.distinct >= FEWEST_SIZES
    }
    if len(usable) < 2:
        why = f"fewer than two thresholds were reached by {FEWEST_SIZES} batch sizes"
        return JointFit(tuple(usable), reason=why)
    pooled = _Pooled.of(usable)
    c1, c2, c3, rms = pooled.fit()
    runs = sum(len(data.reached) for data in usable.values())

    def criterion(rms: float, parameters: int) -> float:
        log_likelihood = -runs * math.log(max(rms, LEAST_SIGMA))
        return aicc(log_likelihood, parameters + 1, runs)

    separate, nested = (_pooled_rms(usable.values(), model) for model in ("iiduka", "nested"))
    return JointFit(
        thresholds=tuple(usable),
        c1=c1,
        c2=c2,
        c3=c3,
        rms_log_error=rms,
        aicc=criterion(rms, 3),
        separate_rms=separate,
        separate_aicc=criterion(separate, 2 * len(usable)),
        nested_rms=nested,
        nested_aicc=criterion(nested, 3 * len(usable)),
    )


def _pooled_rms(usable: Iterable[Measurements], model: str) -> float:
    """The RMS error over all thresholds, each fitted by itself."""
    fits = [fit_measurements(data, model) for data in usable]
    squares = [fitted.rms_log_error**2 for fitted in fits]
    return math.sqrt(np.average(squares, weights=[len(fitted.data.reached) for fitted in fits]))


@dataclass(frozen=True)
class _Pooled:
    """The runs of all thresholds, one after the other."""

    thresholds: Floats  # of each entry
    sizes: Floats
    observations: Observations

    @classmethod
    def of(cls, usable: Mapping[float, Measurements]) -> "_Pooled":
        data = list(usable.values())
        return cls(
            np.repeat(list(usable), [len(one.batch_sizes) for one in data]),
            np.concatenate([one.batch_sizes for one in data]),
            Observations(
                np.concatenate([one.observations.log_steps for one in data]),
                np.concatenate([one.observations.censored for one in data]),
            ),
        )

    def fit(self) -> tuple[float, float, float, float]:
        """C₁, C₂, C₃ and the RMS of log K about the curves."""
        known = ~self.observations.censored
        span = max(self.thresholds.min(), np.ptp(self.thresholds))
        gap, v = (
            axis.ravel()
            for axis in np.meshgrid(
                np.log(np.array([0.01, 0.1, 0.3, 1.0, 3.0]) * span), [0.02, 0.1, 0.5, 1.5, 4.0]
            )
        )
        start = np.column_stack((np.zeros(len(gap)), gap, v))
        miss = self.observations.log_steps - self._log_steps(start)
        start[:, 0] = miss[:, known].mean(axis=1)
        found = maximise(
            _with_slopes(self._log_steps),
            self.observations,
            start,
            np.tile([-1e3, -25.0, 0.0], (len(gap), 1)),
            np.tile([1e3, 25.0, 25.0], (len(gap), 1)),
        )
        theta = found.parameters[[int(np.argmax(found.log_likelihood))]]
        c1, c2, c3 = (float(value[0]) for value in self._constants(theta))
        miss = (self.observations.log_steps - self._log_steps(theta)[0])[known]
        return c1, c2, c3, float(np.sqrt(np.mean(miss**2)))

    def _constants(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """From log C₁, log(lowest ε - C₃) and C₂'s place below what every reached run allows."""
        c3 = self.thresholds.min() - np.exp(theta[:, 1])
        room = (self.thresholds - c3[:, None]) * self.sizes
        most = room[:, ~self.observations.censored].min(axis=1)
        return np.exp(theta[:, 0]), -np.expm1(-theta[:, 2]) * most, c3

    def _log_steps(self, theta: Floats) -> Floats:
        c1, c2, c3 = self._constants(theta)
        room = (self.thresholds - c3[:, None]) * self.sizes - c2[:, None]
        defined = room > 0
        top, bottom = c1[:, None] * self.sizes, np.where(defined, room, 1.0)
        return np.where(defined, np.log(top / bottom), np.inf)


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
