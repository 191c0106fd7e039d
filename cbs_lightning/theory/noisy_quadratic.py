"""The noisy quadratic model (Zhang et al. 2019): a problem whose K is known exactly.

SGD with a constant learning rate on the loss ½ Σ λᵢxᵢ², whose gradient in coordinate i has noise
of variance cᵢ/b. Each E[xᵢ²] then follows a linear recursion, so the expected loss after k steps
is a sum of exponentials, and the steps to a threshold, the pole in b and the critical batch size
follow without any training.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NoisyQuadratic:
    """The problem: its spectrum, the noise of its gradients, and SGD's learning rate.

    >>> problem = NoisyQuadratic(np.array([1.0, 0.1]), lr=0.1)
    >>> print(f"no K up to b = {problem.pole(0.01):.1f}; b* = {problem.critical_batch(0.01):.1f}")
    no K up to b = 2.9; b* = 3.8
    """

    spectrum: Floats  # the eigenvalues λ
    lr: float
    noise: Floats | None = None  # c, variances of a single sample's gradient; default: λ
    start: float = 1.0  # E[xᵢ²] at the beginning

    def __post_init__(self) -> None:
        if not (self.spectrum > 0).all():
            raise ValueError("all eigenvalues must be positive")
        if not 0 < self.lr * self.spectrum.max() < 2:
            raise ValueError(f"lr must be in (0, {2 / self.spectrum.max():g}), not {self.lr}")

    @cached_property
    def _decay(self) -> Floats:
        """log of the factor by which a step shrinks E[x²]."""
        with np.errstate(divide="ignore"):
            return np.log((1 - self.lr * self.spectrum) ** 2)

    @cached_property
    def _floor(self) -> Floats:
        """Every coordinate's part of the loss in the end, for b = 1."""
        noise = self.spectrum if self.noise is None else self.noise
        return 0.5 * self.lr * noise / (2 - self.lr * self.spectrum)

    def loss(self, steps: float, batch_size: float) -> float:
        """The expected loss after that many steps, which need not be whole."""
        return float(self._parts(steps, batch_size).sum())

    def _parts(self, steps: float, batch_size: float) -> Floats:
        """Every coordinate's."""
        floor = self._floor / batch_size
        excess = 0.5 * self.spectrum * self.start - floor
        with np.errstate(invalid="ignore"):
            shrunk = np.exp(np.nan_to_num(steps * self._decay, nan=0.0))
        found: Floats = excess * shrunk + floor
        return found

    def decrease(self, steps: float, batch_size: float) -> tuple[float, float]:
        """a and c after that many steps: one more with b samples lowers the loss by a - c/b.

        The state is that of a run with `batch_size`; c does not depend on it.
        """
        lost = -np.expm1(self._decay)  # of a coordinate's part of the loss, without noise
        a = float((lost * self._parts(steps, batch_size)).sum())
        return a, float((lost * self._floor).sum())

    @property
    def noise_trace(self) -> float:
        """tr Σ."""
        return float((self.spectrum if self.noise is None else self.noise).sum())

    def pole(self, threshold: float) -> float:
        """The batch size at and below which the loss stays above the threshold for ever."""
        return float(self._floor.sum()) / threshold

    def steps(self, batch_size: float, threshold: float) -> float | None:
        """When the expected loss falls to the threshold, between two steps; None: never."""
        if (0.5 * self.spectrum * self.start < self._floor / batch_size).any():
            raise ValueError(f"the loss need not fall: too noisy for b = {batch_size:g}")
        if self.loss(0, batch_size) <= threshold:
            return 0.0
        if batch_size <= self.pole(threshold):
            return None
        high = 1.0
        while self.loss(high, batch_size) > threshold:
            high *= 2
            if math.isinf(high):
                return None
        found = brentq(lambda k: self.loss(k, batch_size) - threshold, 0.0, high, xtol=1e-9)
        return float(found)

    def whole_steps(self, batch_size: float, threshold: float) -> int | None:
        """K: the first step at which the expected loss is at most the threshold."""
        steps = self.steps(batch_size, threshold)
        if steps is None:
            return None
        nearest = round(steps)
        exact = abs(steps - nearest) < 1e-6 and self.loss(nearest, batch_size) <= threshold
        return nearest if exact else math.ceil(steps)

    def critical_batch(self, threshold: float) -> float:
        """The batch size that minimises K·b, K taken between steps."""

        def log_sfo(log_excess: float) -> float:
            batch_size = self.pole(threshold) * (1 + math.exp(log_excess))
            steps = self.steps(batch_size, threshold)
            return math.log(steps * batch_size) if steps else math.inf

        found = minimize_scalar(
            log_sfo, bounds=(-10, 10), method="bounded", options={"xatol": 1e-8}
        )
        return self.pole(threshold) * (1 + math.exp(float(found.x)))
