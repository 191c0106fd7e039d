"""Theorem 3.1 and Sections 3 and 4 of the paper: pure functions.

The theorem bounds VI(K, θ), the mean of E[∇f(θₖ)ᵀ(θₖ - θ)] over k = 1..K, by C₁/K + C₂/b + C₃.
Where that bound is ε, K and K·b are functions of b. ε is not a loss threshold.

For Momentum and Adam the bound says little: C₃ ≥ h(β₁) > 2·Dist·√(σ²+G²), while Dist·G bounds VI
already. The form K = C₁b/((ε-C₃)b - C₂) is the useful part.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Constants:
    """C₁, C₂ and C₃ of Theorem 3.1, and what follows from them.

    >>> found = Constants(c1=500.0, c2=0.05, c3=0.0005)
    >>> print(f"{found.critical_batch(0.01):.2f} {found.steps(64, 0.01):.0f}")
    10.53 57348
    >>> found.steps(4, 0.01) is None  # b ≤ C₂/(ε - C₃)
    True
    """

    c1: float
    c2: float
    c3: float

    @overload
    def vi_bound(self, K: float, b: float) -> float: ...
    @overload
    def vi_bound(self, K: ArrayLike, b: ArrayLike) -> float | Floats: ...
    def vi_bound(self, K: ArrayLike, b: ArrayLike) -> float | Floats:
        """Theorem 3.1 (i): VI(K, θ) is at most this."""
        steps, sizes = _positive_array("K", K), _positive_array("b", b)
        return _scalar_or_array(self.c1 / steps + self.c2 / sizes + self.c3)

    @overload
    def steps(self, b: float, eps: float) -> float | None: ...
    @overload
    def steps(self, b: ArrayLike, eps: float) -> float | Floats | None: ...
    def steps(self, b: ArrayLike, eps: float) -> float | Floats | None:
        """Theorem 3.1 (ii): K(b). None, and nan in an array, unless b > C₂/(ε - C₃) > 0."""
        sizes = _positive_array("b", b)
        gap = _positive("eps", eps) - self.c3
        denominator = gap * sizes - self.c2
        defined = (gap > 0) & (denominator > 0)
        found = np.full(sizes.shape, np.nan)
        np.divide(self.c1 * sizes, denominator, out=found, where=defined)
        return found if found.ndim else (float(found) if defined else None)

    @overload
    def sfo(self, b: float, eps: float) -> float | None: ...
    @overload
    def sfo(self, b: ArrayLike, eps: float) -> float | Floats | None: ...
    def sfo(self, b: ArrayLike, eps: float) -> float | Floats | None:
        """Theorem 3.1 (iii): K(b)·b, where K(b) is defined."""
        steps = self.steps(b, eps)
        return None if steps is None else _scalar_or_array(steps * np.asarray(b, float))

    def critical_batch(self, eps: float) -> float | None:
        """b* = 2C₂/(ε - C₃), which minimises K(b)·b. None where ε ≤ C₃, or C₂ = 0 (no noise)."""
        gap = _positive("eps", eps) - self.c3
        return 2 * self.c2 / gap if gap > 0 and self.c2 > 0 else None

    def min_sfo(self, eps: float) -> float | None:
        """K(b*)·b* = 4C₁C₂/(ε - C₃)², defined where b* is.

        The paper prints half of that, but K(b)·b = C₁b²/((ε - C₃)b - C₂) at its own b* is this.
        """
        if self.critical_batch(eps) is None:
            return None
        gap = eps - self.c3
        return 4 * (self.c1 / gap) * (self.c2 / gap)


@dataclass(frozen=True)
class AdamConstants(Constants):
    """Adam's constants also give the sharper bound, in which β₂ close to one helps."""

    h: float
    beta2: float

    def vi_bound_sum(self, K: int, b: float) -> float:
        """Label `upper_adam_1`: C₂/b + C₃ - h is weighted by the mean of √(1 - β₂^{k+1})."""
        if int(_positive("K", K)) != K:
            raise ValueError(f"K must be a whole number, not {K}")
        rounded = math.log(1e-17) / math.log(self.beta2) if self.beta2 else 1  # 1 from there on
        k = np.arange(1, min(int(K), math.ceil(rounded)) + 1)
        roots = np.sqrt(1 - self.beta2 ** (k + 1.0))
        mean_root = (float(roots.sum()) + int(K) - len(k)) / K
        noise = self.c2 / _positive("b", b) + self.c3 - self.h
        return self.c1 / K + noise * mean_root + self.h


def h(beta1: float, *, sigma2: float, G: float, dist: float) -> float:
    """Equation (h): what momentum adds to C₃. It decreases to 2·Dist·√(σ²+G²) as β₁ → 1."""
    _open_unit("beta1", beta1)
    root = math.hypot(math.sqrt(_non_negative("sigma2", sigma2)), _positive("G", G))
    return _positive("dist", dist) * (
        G * (1 - beta1) / beta1 + 2 * root * (1 / beta1 + 2 * (1 - beta1))
    )


def constants(
    optimizer: str,
    *,
    lr: float,
    sigma2: float,
    G: float,
    dist: float,
    theta1_dist2: float | None = None,
    beta1: float | None = None,
    beta2: float | None = None,
    d: int | None = None,
    D: float | None = None,
    M: float | None = None,
    v_star: float | None = None,
) -> Constants:
    """Find the constants of Theorem 3.1.

    Args:
        optimizer: "sgd", "momentum" (Algorithm 1's) or "adam" (with monotone moments).
        lr: The constant learning rate.
        sigma2: A bound on the variance of a single sample's gradient.
        G: A bound on the norm of the gradient.
        dist: A bound on the distance of all iterates to θ.
        theta1_dist2: E‖θ₁ - θ‖², by default dist². Adam's bound does not use it.
        beta1: For "momentum" and "adam", in (0, 1).
        beta2: This and the following are for "adam"; in [0, 1).
        d: The dimension of θ.
        D: A bound on the square of every coordinate of θₖ - θ.
        M: A bound on the square of every coordinate of the gradient.
        v_star: A bound on the second moments from below.

    Raises:
        ValueError: A parameter is outside its range, missing, or not the optimizer's.

    >>> constants("sgd", lr=1e-3, sigma2=100.0, G=1.0, dist=1.0)
    Constants(c1=500.0, c2=0.05, c3=0.0005)
    """
    _check_own(optimizer, beta1=beta1, beta2=beta2, d=d, D=D, M=M, v_star=v_star)
    _positive("lr", lr)
    _non_negative("sigma2", sigma2)
    _positive("G", G)
    _positive("dist", dist)
    start = dist * dist if theta1_dist2 is None else _non_negative("theta1_dist2", theta1_dist2)
    if beta1 is None:
        return Constants(start / (2 * lr), sigma2 * lr / 2, G * G * lr / 2)
    shift = h(beta1, sigma2=sigma2, G=G, dist=dist)
    if beta2 is None or d is None or D is None or M is None or v_star is None:
        scale = lr / (2 * beta1)
        return Constants(start / (2 * lr * beta1), sigma2 * scale, G * G * scale + shift)
    if not 0 <= _number("beta2", beta2) < 1:
        raise ValueError(f"beta2 must be in [0, 1), not {beta2}")
    scale = lr / (2 * math.sqrt(_positive("v_star", v_star)) * beta1 * (1 - beta1))
    c1 = _positive("d", d) * _positive("D", D) * math.sqrt(_positive("M", M))
    c1 /= 2 * lr * beta1 * math.sqrt(1 - beta2)
    return AdamConstants(c1, sigma2 * scale, G * G * scale + shift, shift, beta2)


def lower_bound(
    optimizer: str,
    *,
    lr: float,
    sigma2: float,
    eps: float,
    beta1: float | None = None,
    v_star: float | None = None,
) -> float:
    """Section 3: a bound on b* from below, 2C₂/ε, for "sgd", "momentum" or "adam".

    For the same σ² they increase in this order wherever √v_*·(1 - β₁) < 1.
    """
    bound = _non_negative("sigma2", sigma2) * _positive("lr", lr) / _positive("eps", eps)
    _check_own(optimizer, beta1=beta1, v_star=v_star)
    if beta1 is not None:
        bound /= _open_unit("beta1", beta1)
    if beta1 is not None and v_star is not None:
        bound /= math.sqrt(_positive("v_star", v_star)) * (1 - beta1)
    return bound


def adam_lower_bound(
    *, n: int, d: int, sigma2: float, eps: float, lr: float, beta1: float
) -> float:
    """Section 4: the estimate of Adam's b* before any training, from v_* ≤ dε²/n².

    Here `d` is the dimension of an input, not the number of parameters. The paper prints 1010 for
    CIFAR-10 and 2380 for MNIST; this formula gives 1002 and 2381.

    Args:
        n: The number of training samples.
        d: The dimension of an input.
        sigma2: A bound on the variance of a single sample's gradient.
        eps: The precision ε of the theorem, which is not a loss threshold.
        lr: The constant learning rate.
        beta1: Adam's, in (0, 1).

    >>> round(adam_lower_bound(n=50_000, d=3072, sigma2=1e-2, eps=1e-2, lr=1e-3, beta1=0.9))
    1002
    """
    v_star = _positive("d", d) * _positive("eps", eps) ** 2 / _positive("n", n) ** 2
    return lower_bound("adam", lr=lr, sigma2=sigma2, eps=eps, beta1=beta1, v_star=v_star)


def _check_own(optimizer: str, **given: float | None) -> None:
    """Every parameter that the optimizer has is given, and no other."""
    own = {"sgd": (), "momentum": ("beta1",), "adam": tuple(given)}.get(optimizer)
    if own is None:
        raise ValueError(f"optimizer must be sgd, momentum or adam, not {optimizer!r}")
    missing = [name for name in own if given[name] is None]
    others = [name for name in given if name not in own and given[name] is not None]
    if missing:
        raise ValueError(f"{optimizer} needs {', '.join(missing)}")
    if others:
        raise ValueError(f"{optimizer} has no {', '.join(others)}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)


def _positive(name: str, value: float) -> float:
    if not (_number(name, value) > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive, not {value}")
    return value


def _non_negative(name: str, value: float) -> float:
    if not (_number(name, value) >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must not be negative, but is {value}")
    return value


def _open_unit(name: str, value: float) -> float:
    if not 0 < _number(name, value) < 1:
        raise ValueError(f"{name} must be in (0, 1), not {value}")
    return value


def _positive_array(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name} must be positive, not {values!r}")
    return array


def _scalar_or_array(values: NDArray[np.float64] | np.float64) -> float | Floats:
    return values if np.ndim(values) else float(values)
