"""Theorem 3.1 and Sections 3 and 4 of the paper: pure functions.

The theorem bounds VI(K, θ), the mean of E[∇f(θₖ)ᵀ(θₖ - θ)] over k = 1..K, by C₁/K + C₂/b + C₃.
Where that bound is ε, K and K·b are functions of b. ε is not a loss threshold.

For Momentum and Adam the bound says little: C₃ ≥ h(β₁) > 2·Dist·√(σ²+G²), while Dist·G bounds VI
already. The form K = C₁b/((ε-C₃)b - C₂) is the useful part.
"""

import math
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbs_lightning.theory.checks import (
    Floats,
    at_most,
    computing,
    finite,
    non_negative,
    number,
    open_unit,
    positive,
    positive_array,
    whole,
)


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
        steps, sizes = positive_array("K", K), positive_array("b", b)
        with np.errstate(over="ignore"):  # infinite where no float holds it
            return _scalar_or_array(self.c1 / steps + self.c2 / sizes + self.c3)

    @overload
    def steps(self, b: float, eps: float) -> float | None: ...
    @overload
    def steps(self, b: ArrayLike, eps: float) -> float | Floats | None: ...
    def steps(self, b: ArrayLike, eps: float) -> float | Floats | None:
        """Theorem 3.1 (ii): K(b). None, and nan in an array, unless b > C₂/(ε - C₃) > 0.

        It is C₁/((ε - C₃) - C₂/b), in which no product with b can overflow; infinite where no float
        holds it.
        """
        sizes = positive_array("b", b)
        gap = positive("eps", eps) - self.c3
        found = np.full(sizes.shape, np.nan)
        with np.errstate(over="ignore"):
            room = gap - self.c2 / sizes
            defined = (gap > 0) & (room > 0)
            np.divide(self.c1, room, out=found, where=defined)
        return found if found.ndim else (float(found) if defined else None)

    @overload
    def sfo(self, b: float, eps: float) -> float | None: ...
    @overload
    def sfo(self, b: ArrayLike, eps: float) -> float | Floats | None: ...
    def sfo(self, b: ArrayLike, eps: float) -> float | Floats | None:
        """Theorem 3.1 (iii): K(b)·b, where K(b) is defined."""
        steps = self.steps(b, eps)
        with np.errstate(over="ignore"):
            return None if steps is None else _scalar_or_array(steps * np.asarray(b, float))

    def critical_batch(self, eps: float) -> float | None:
        """b* = 2C₂/(ε - C₃), which minimises K(b)·b. None where ε ≤ C₃, or C₂ = 0 (no noise)."""
        gap = positive("eps", eps) - self.c3
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
        whole("K", K)
        rounded = math.log(1e-17) / math.log(self.beta2) if self.beta2 else 1  # 1 from there on
        k = np.arange(1, min(int(K), math.ceil(rounded)) + 1)
        roots = np.sqrt(1 - self.beta2 ** (k + 1.0))
        mean_root = (float(roots.sum()) + int(K) - len(k)) / K
        noise = self.c2 / positive("b", b) + self.c3 - self.h
        return self.c1 / K + noise * mean_root + self.h


def h(beta1: float, *, sigma2: float, G: float, dist: float) -> float:
    """Equation (h): what momentum adds to C₃. It decreases to 2·Dist·√(σ²+G²) as β₁ → 1."""
    open_unit("beta1", beta1)
    root = math.hypot(math.sqrt(non_negative("sigma2", sigma2)), positive("G", G))
    return positive("dist", dist) * (
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
        theta1_dist2: E‖θ₁ - θ‖², by default dist² and at most that; not for "adam".
        beta1: For "momentum" and "adam", in (0, 1).
        beta2: This and the following are for "adam"; in [0, 1).
        d: The dimension of θ, a whole number.
        D: A bound on the square of every coordinate of θₖ - θ; at most dist².
        M: A bound on the square of every coordinate of the gradient.
        v_star: A bound on the second moments from below; at most M.

    Raises:
        ValueError: A parameter is outside its range, missing, not the optimizer's, or contradicts
            another.

    >>> constants("sgd", lr=1e-3, sigma2=100.0, G=1.0, dist=1.0)
    Constants(c1=500.0, c2=0.05, c3=0.0005)
    """
    _check_own(optimizer, beta1=beta1, beta2=beta2, d=d, D=D, M=M, v_star=v_star)
    lr, sigma2 = positive("lr", lr), non_negative("sigma2", sigma2)
    G, dist = positive("G", G), positive("dist", dist)
    start = dist * dist if theta1_dist2 is None else non_negative("theta1_dist2", theta1_dist2)
    at_most("theta1_dist2", start, "dist²", dist * dist)
    if v_star is not None and M is not None and D is not None:
        if theta1_dist2 is not None:
            raise ValueError("adam has no theta1_dist2")
        at_most("v_star", positive("v_star", v_star), "M", positive("M", M))
        at_most("D", positive("D", D), "dist²", dist * dist)
    with computing("the constants"):
        if beta1 is None:
            return _constants(start / (2 * lr), lr / 2, sigma2, G, 0.0)
        shift = h(beta1, sigma2=sigma2, G=G, dist=dist)
        if beta2 is None or d is None or D is None or M is None or v_star is None:
            return _constants(start / (2 * lr * beta1), lr / (2 * beta1), sigma2, G, shift)
        if not 0 <= number("beta2", beta2) < 1:
            raise ValueError(f"beta2 must be in [0, 1), not {beta2}")
        c1 = whole("d", d) * D * math.sqrt(M) / (2 * lr * beta1 * math.sqrt(1 - beta2))
        scale = lr / (2 * math.sqrt(v_star) * beta1 * (1 - beta1))
        return _of_adam(_constants(c1, scale, sigma2, G, shift), shift, beta2)


def _of_adam(found: Constants, shift: float, beta2: float) -> "AdamConstants":
    return AdamConstants(found.c1, found.c2, found.c3, shift, beta2)


def _constants(c1: float, scale: float, sigma2: float, G: float, shift: float) -> Constants:
    return Constants(finite(c1), finite(sigma2 * scale), finite(G * G * scale + shift))


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
    _check_own(optimizer, beta1=beta1, v_star=v_star)
    bound = non_negative("sigma2", sigma2) * positive("lr", lr)
    with computing("the bound"):
        bound /= positive("eps", eps)
        if beta1 is not None:
            bound /= open_unit("beta1", beta1)
        if beta1 is not None and v_star is not None:
            bound /= math.sqrt(positive("v_star", v_star)) * (1 - beta1)
        return finite(bound)


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
    with computing("the bound"):
        root = positive("eps", eps) / whole("n", n)
        v_star = finite(whole("d", d) * root * root)
        finite(1 / v_star)
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


def _scalar_or_array(values: NDArray[np.float64] | np.float64) -> float | Floats:
    return values if np.ndim(values) else float(values)
