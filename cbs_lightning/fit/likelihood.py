"""Curves fitted to log K by maximum likelihood, many at once, where some K are only known to exceed
a budget (right-censored).

log K is normal around the curve, with one standard deviation for all. A batch of fits shares the
batch sizes and differs in log K, starts or bounds: the resamples of a bootstrap, the points of a
likelihood profile, and the starts of a single fit are all solved in one call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Floats = NDArray[np.float64]

LEAST_SIGMA = 1e-3  # of log K; below that a perfect fit would have an infinite likelihood
MOST_ROUNDS = 200
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)

# Parameters (batch, P) and row indices into the batch -> log K (batch, N) and its derivatives
# (batch, N, P). Where the curve has no K, log K is infinite and the derivatives are 0.
LogCurve = Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Observations:
    """log K of every run; where it is censored, the log of the steps run without reaching.

    `log_steps` may have a row for every fit of a batch, or one for all.
    """

    log_steps: Floats
    censored: NDArray[np.bool_]

    def of(self, rows: NDArray[np.intp]) -> "Observations":
        if self.log_steps.ndim == 1:
            return self
        return Observations(self.log_steps[rows], self.censored)


@dataclass(frozen=True)
class Solutions:
    """The best parameters of every fit of a batch."""

    parameters: Floats  # (batch, P)
    sigma: Floats
    log_likelihood: Floats


def maximise(
    curve: LogCurve,
    data: Observations,
    start: Floats,
    lower: Floats,
    upper: Floats,
) -> Solutions:
    """Damped Newton steps within the box [lower, upper], for all fits of the batch together."""
    parameters = np.clip(start, lower, upper)
    everyone = np.arange(len(parameters))
    eta, _ = curve(parameters, everyone)
    log_sigma = _first_log_sigma(data, eta)
    cost = negative_log_likelihood(data, eta, log_sigma)
    damping = np.full(len(parameters), 1e-3)
    active = everyone
    for _ in range(MOST_ROUNDS):
        if not len(active):
            break
        now, scale = parameters[active], log_sigma[active]
        seen = data.of(active)
        eta, jacobian = curve(now, active)
        gradient, hessian, sigma_step = _newton_terms(seen, eta, scale, jacobian)
        blocked = ((now <= lower[active]) & (gradient > 0)) | (
            (now >= upper[active]) & (gradient < 0)
        )
        step = _damped_step(gradient, hessian, blocked, damping[active])
        tried = np.clip(now + step, lower[active], upper[active])
        tried_scale = np.maximum(scale + sigma_step, np.log(LEAST_SIGMA))
        tried_eta, _ = curve(tried, active)
        tried_cost = negative_log_likelihood(seen, tried_eta, tried_scale)
        better = tried_cost <= cost[active]
        gain = cost[active] - tried_cost
        moved = np.abs(tried - now).max(axis=1) + np.abs(tried_scale - scale)
        winners = active[better]
        parameters[winners], log_sigma[winners] = tried[better], tried_scale[better]
        cost[winners] = tried_cost[better]
        damping[active] *= np.where(better, 0.2, 8.0)
        damping[active] = np.maximum(damping[active], 1e-9)
        settled = better & (gain < 1e-9 * (1 + np.abs(tried_cost))) & (moved < 1e-3)
        stuck = damping[active] > 1e6
        active = active[~(settled | stuck)]
    return Solutions(parameters, np.exp(log_sigma), -cost)


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)); several times as fast as numpy's logaddexp."""
    found: Floats = np.maximum(x, 0.0) + np.log(1 + np.exp(-np.abs(x)))
    return found


def aicc(log_likelihood: float, parameters: int, runs: int) -> float:
    """Akaike's criterion for few runs; infinite where they are too few for so many parameters."""
    spare = runs - parameters - 1
    if spare <= 0:
        return math.inf
    return 2 * parameters - 2 * log_likelihood + 2 * parameters * (parameters + 1) / spare


def _first_log_sigma(data: Observations, eta: Floats) -> Floats:
    known = ~data.censored
    residual = data.log_steps[..., known] - eta[:, known]
    spread = np.sqrt(np.mean(residual**2, axis=1))
    first: Floats = np.log(np.maximum(spread, LEAST_SIGMA))
    return first


def _standardise(data: Observations, eta: Floats, log_sigma: Floats) -> Floats:
    """(log K - curve) / sigma; its negative, for the censored, is how surely they are beyond."""
    z: Floats = (data.log_steps - eta) * np.exp(-log_sigma)[:, None]
    return z


def negative_log_likelihood(data: Observations, eta: Floats, log_sigma: Floats) -> Floats:
    """One value for each row of `eta`, which holds log K of a curve at each of the runs."""
    z = _standardise(data, eta, log_sigma)
    known = ~data.censored
    each = np.empty_like(z)
    each[:, known] = 0.5 * z[:, known] ** 2 + log_sigma[:, None] + HALF_LOG_2PI
    each[:, data.censored] = -log_ndtr(-z[:, data.censored])
    cost: Floats = each.sum(axis=1)
    return cost


def _newton_terms(
    data: Observations, eta: Floats, log_sigma: Floats, jacobian: Floats
) -> tuple[Floats, Floats, Floats]:
    """Gradient and Gauss-Newton Hessian in the curve's parameters, and the step of log sigma."""
    z = _standardise(data, eta, log_sigma)
    inverse = np.exp(-log_sigma)[:, None]
    slope, curvature = -z.copy(), np.ones_like(z)  # of the cost in eta / sigma
    sigma_slope, sigma_curvature = 1 - z**2, 2 * z**2
    beyond = data.censored
    if beyond.any():
        t = -z[:, beyond]
        finite = np.isfinite(t)
        t = np.where(finite, t, 0.0)
        hazard = np.exp(-0.5 * t**2 - HALF_LOG_2PI - log_ndtr(t)) * finite
        slope[:, beyond] = -hazard
        curvature[:, beyond] = hazard * (t + hazard)
        sigma_slope[:, beyond] = hazard * t
        sigma_curvature[:, beyond] = np.maximum(hazard * (t + hazard) * t**2 - hazard * t, 0.0)
    gradient = np.einsum("bn,bnp->bp", slope * inverse, jacobian)
    hessian = np.einsum("bn,bnp,bnq->bpq", curvature * inverse**2, jacobian, jacobian)
    total = sigma_slope.sum(axis=1)
    bend = np.maximum(sigma_curvature.sum(axis=1), 0.5 * z.shape[1])
    return gradient, hessian, np.clip(-total / bend, -1.0, 1.0)


def _damped_step(
    gradient: Floats, hessian: Floats, blocked: NDArray[np.bool_], damping: Floats
) -> Floats:
    """Levenberg and Marquardt's step; parameters that press against their bound stay there."""
    gradient = np.where(blocked, 0.0, gradient)
    free = ~blocked
    hessian = hessian * free[:, :, None] * free[:, None, :]
    index = np.arange(gradient.shape[1])
    diagonal = hessian[:, index, index]
    least = 1e-9 * diagonal.max(axis=1, keepdims=True, initial=1e-12)
    hessian[:, index, index] += damping[:, None] * diagonal + least + blocked
    return np.asarray(-np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0], np.float64)
