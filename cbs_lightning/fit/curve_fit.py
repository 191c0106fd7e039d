"""Measured steps become a critical batch size: three curves, fitted to log K.

All are K = A(b + B1)/(b - B0):

- `iiduka`, the paper's: B1 = 0, so K·b is least at b* = 2·B0;
- `mccandlish` (McCandlish et al. 2018): B0 = 0, K = S + E/b, where K·b grows from the start;
- `nested`: both free, b* = B0 + sqrt(B0² + B0·B1). B1 may be negative, as long as it exceeds -B0:
  that is a K which rises more abruptly towards its pole than the paper's.

Batch sizes that never reached the threshold count as right-censored: K is above the steps run.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from cbs_lightning.console import count_of
from cbs_lightning.fit.forms import FREE, STARTS, Shape
from cbs_lightning.fit.likelihood import LEAST_SIGMA, Floats, Observations, aicc
from cbs_lightning.fit.measurements import Measurements, Unreached, measurements
from cbs_lightning.theory.checks import (
    computing,
    finite,
    non_negative,
    open_unit,
    positive_array,
)

BOOTSTRAPS = 1000
PLACES = 100  # of b* at which the likelihood is profiled
FINER = 10  # places between two of them
BEYOND = 16.0  # factor: an end of an interval so far outside the batch sizes run is open
# Of log b*, RMS: by how much a form misses it on noisy quadratics, whose b* and K are exact.
FORM_ERROR = {"iiduka": 0.11, "nested": 0.04}
MISFIT = 0.05  # a lack of fit with less probability than that is taken for one


@dataclass(frozen=True, eq=False)
class Fit:
    """One model's curve K = A(b + B1)/(b - B0) through the measurements.

    `critical_batch` is None where the curve has no interior minimum of K·b, or there are too few
    batch sizes to tell; `reason` says why, and otherwise what to mind ("" if nothing). AICc counts
    the noise scale as a parameter. `lack_of_fit` is the probability of seeds scattering so little
    about their means compared with the means about the curve, were the form right; None without
    several seeds.

    >>> found = fit([4, 8, 16, 32, 64], [1800, 560, 270, 170, 121])
    >>> found.model, round(found.steps(64)), found.steps(2)
    ('nested', 121, inf)
    """

    model: str
    A: float  # steps: K in the limit of large b
    B0: float  # samples: no K at or below this b
    B1: float  # samples
    sigma: float  # of log K about the curve
    aicc: float
    rms_log_error: float  # of log K
    log_likelihood: float
    critical_batch: float | None  # b*, samples
    reason: str
    lack_of_fit: float | None
    data: Measurements = field(repr=False)

    @overload
    def steps(self, b: float) -> float: ...
    @overload
    def steps(self, b: ArrayLike) -> float | Floats: ...
    def steps(self, b: ArrayLike) -> float | Floats:
        """K(b); infinite for b ≤ B0, and nan where there was too little to fit."""
        sizes = positive_array("b", b)
        room = sizes - self.B0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = np.where(room > 0, self.A * ((sizes + self.B1) / room), np.inf)
        found = np.where(math.isnan(self.A), np.nan, found)
        return found if found.ndim else float(found)

    @overload
    def sfo(self, b: float) -> float: ...
    @overload
    def sfo(self, b: ArrayLike) -> float | Floats: ...
    def sfo(self, b: ArrayLike) -> float | Floats:
        """K(b)·b, where K(b) is defined as in `steps`."""
        with np.errstate(over="ignore"):
            found = np.asarray(self.steps(b)) * positive_array("b", b)
        return found if found.ndim else float(found)

    @property
    def balance_point(self) -> float | None:
        """McCandlish et al.'s B_crit = E/S, where K is twice its limit for large b."""
        return self.B1 if self.model == "mccandlish" and math.isfinite(self.B1) else None

    def overhead_batch(self, reference: float, overhead: float = 0.2) -> float | None:
        """The largest b whose K·b is at most 1 + overhead times that at the reference batch size.

        With `mccandlish` that is (1 + overhead)·reference + overhead·E/S, the rule of the
        published critical batch sizes of language models. None where the curve has no K at the
        reference.
        """
        reference, overhead = (
            non_negative("reference", reference),
            non_negative("overhead", overhead),
        )
        if math.isnan(self.A) or reference <= max(self.B0, 0.0):
            return None
        # K·b = limit where b² + (B1 - limit/A)·b + B0·limit/A = 0
        allowed = (1 + overhead) * reference * ((reference + self.B1) / (reference - self.B0))
        half = (allowed - self.B1) / 2
        # not below 0, but for rounding where the reference is b*
        root = math.sqrt(max(0.0, 1 - (allowed / half) * (self.B0 / half)))
        with computing("overhead_batch"):
            return finite(half * (1 + root))

    def interval(self, level: float = 0.9) -> tuple[float, float] | None:
        """The confidence interval of b*; an end of 0 or infinity is open. None: there is no b*.

        It is found by bootstrap over seeds where every batch size has several, else by profile
        likelihood.

        Seeds tell nothing of a form that misses their means. Where it does (`lack_of_fit`), the
        means are profiled instead, with their scatter about the curve as the noise. And no form is
        exact: `FORM_ERROR`, what it misses b* by where b* is known, is added.
        """
        open_unit("level", level)
        if self.model == "mccandlish" or self.data.distinct <= len(FREE[self.model]):
            return None
        if level not in self._intervals:
            self._intervals[level] = self._find_interval(level)
        return self._intervals[level]

    def _find_interval(self, level: float) -> tuple[float, float]:
        basis = self._basis
        if basis.data.replicated:
            shape = Shape.of(basis.data)
            low, high = map(float, _quantiles(shape.critical(basis._resampled), level))
        else:
            low, high = _profile_interval(basis, level)
        return self._open_ends(*self._widen(low, high, level))

    def band(self, b: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats] | None:
        """Lower and upper bounds of K at every b, between which the share `level` of the curves
        lies that are fitted to resampled data.

        Resampled as for `interval`; with one seed a batch size, log K is drawn about the curve. The
        form is taken to be right. None where no scatter about the curve can be told.
        """
        open_unit("level", level)
        if self.data.distinct <= len(FREE[self.model]):
            return None
        sizes = np.atleast_1d(positive_array("b", b))
        basis = self._basis
        found = Shape.of(basis.data).steps(basis._resampled, sizes)
        middle = np.median(found, axis=0)  # not the curve itself where runs are censored
        own = np.asarray(self.steps(sizes))
        with np.errstate(invalid="ignore"):  # beyond the pole all of them are infinite
            low, high = (own * edge / middle for edge in _quantiles(found, level))
        return np.fmin(low, own), np.fmax(high, own)

    def _widen(self, low: float, high: float, level: float) -> tuple[float, float]:
        """The interval with the error of the form added, which is independent of the noise."""
        found = self.critical_batch
        if found is None:
            return low, high
        form = stats.norm.ppf((1 + level) / 2) * FORM_ERROR[self.model]
        below, above = math.inf if low == 0 else math.log(found / low), math.log(high / found)
        return (
            found * math.exp(-math.hypot(max(below, 0.0), form)),
            found * math.exp(math.hypot(max(above, 0.0), form)),
        )

    def _open_ends(self, low: float, high: float) -> tuple[float, float]:
        """An end that far beyond all batch sizes run is known by nothing but the form."""
        sizes = self.data.batch_sizes
        return (
            0.0 if low < sizes.min() / BEYOND else low,
            math.inf if high > sizes.max() * BEYOND else high,
        )

    @cached_property
    def _intervals(self) -> dict[float, tuple[float, float]]:
        """Those found so far, by level: they take longer than the fit itself."""
        return {}

    @cached_property
    def _basis(self) -> "Fit":
        """The fit to the seeds' means where they miss the form by more than seeds explain."""
        if self.lack_of_fit is not None and self.lack_of_fit < MISFIT:
            return fit_measurements(self.data.collapse(), self.model)
        return self

    @cached_property
    def _resampled(self) -> Floats:
        """The parameters of fits to resampled data."""
        shape = Shape.of(self.data)
        rng = np.random.default_rng(0)
        drawn = self.data.resample(rng, BOOTSTRAPS) if self.data.replicated else self._redraw(rng)
        shape = replace(shape, observations=drawn)
        own = (
            math.log1p((self.B0 + self.B1) / shape.unit),
            -math.log1p(-self.B0 / shape.unit),
        )
        return shape.solve(self.model, np.tile(own, (BOOTSTRAPS, 1))).parameters

    def _redraw(self, rng: np.random.Generator) -> Observations:
        """Draw log K anew about the curve, with the scatter of the runs about it.

        Few runs tell that scatter only roughly, so every resample has another one, as in Student's
        distribution.
        """
        observations, reached = self.data.observations, self.data.reached
        spare = max(len(reached) - len(FREE[self.model]), 1)
        noise = self.rms_log_error * np.sqrt(len(reached) / rng.chisquare(spare, (BOOTSTRAPS, 1)))
        drawn = np.tile(observations.log_steps, (BOOTSTRAPS, 1))
        about = np.log(self.steps(reached))
        drawn[:, ~observations.censored] = rng.normal(about, noise, (BOOTSTRAPS, len(reached)))
        return Observations(drawn, observations.censored)


def fit(
    batch_sizes: ArrayLike,
    steps: ArrayLike,
    model: str = "nested",
    unreached: Unreached = None,
) -> Fit:
    """Fit one model to the steps that runs needed to reach the threshold.

    Args:
        batch_sizes: The batch size of each run that reached it; repeat it for several seeds.
        steps: K of each of these runs, in the same order.
        model: "nested", "iiduka" (the paper's) or "mccandlish".
        unreached: The runs that did not reach it, which count as right-censored. Either a mapping
            from batch size to steps run (or a list of them, for several seeds), or pairs of both,
            or just batch sizes.

    Returns:
        The fitted curve, with b* if it has one.

    Raises:
        ValueError: The model is unknown, or the numbers are not positive.

    >>> sizes, steps = [4, 8, 16, 32, 64, 128, 256], [1800, 560, 270, 170, 121, 101, 90]
    >>> found = fit(sizes, steps, model="nested", unreached={2: 5000})
    >>> print(f"{found.critical_batch:.1f}")
    11.5
    >>> low, high = found.interval(0.9)
    >>> low < found.critical_batch < high
    True
    >>> fit(sizes, steps, model="mccandlish").reason
    'S + E/b has no interior minimum of K·b'
    """
    return fit_measurements(measurements(batch_sizes, steps, unreached), model)


def fit_measurements(data: Measurements, model: str) -> Fit:
    """Do what `fit` does, for measurements that have been checked already."""
    if not isinstance(model, str) or model not in FREE:
        raise ValueError(f"model must be one of {', '.join(FREE)}, not {model!r}")
    parameters = len(FREE[model])
    if data.distinct < parameters:
        return _empty_fit(data, model)
    shape = Shape.of(data)
    found = shape.solve(model, STARTS)
    best = int(np.argmax(found.log_likelihood))
    log_scale, q, v = found.parameters[best]
    eta, _ = shape.curve(found.parameters[[best]], np.array([0]))
    residuals = data.log_steps - eta[0, ~data.observations.censored]
    critical = float(shape.critical(found.parameters[[best]])[0])
    reason = _reason(data, model, critical)
    likelihood = float(found.log_likelihood[best])
    supported = model != "mccandlish" and 0 < critical < math.inf and data.distinct > parameters
    return Fit(
        model=model,
        A=math.exp(log_scale - q),
        B0=-math.expm1(-v) * shape.unit,
        B1=(math.expm1(q) + math.expm1(-v)) * shape.unit if model != "iiduka" else 0.0,
        sigma=float(found.sigma[best]),
        aicc=aicc(likelihood, parameters + 1, len(data.reached))
        if data.distinct > parameters
        else math.inf,
        rms_log_error=float(np.sqrt(np.mean(residuals**2))),
        log_likelihood=likelihood,
        critical_batch=critical if supported else None,
        reason=reason,
        lack_of_fit=_lack_of_fit(data, residuals, parameters),
        data=data,
    )


def _quantiles(values: Floats, level: float) -> tuple[Floats, Floats]:
    """The ends of the central share `level`; values may be infinite."""
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0, method="nearest")
    return low, high


def _profile_interval(fitted: Fit, level: float) -> tuple[float, float]:
    """The places of b* whose profile likelihood is close enough to the greatest."""
    shape, data = Shape.of(fitted.data), fitted.data
    furthest = data.batch_sizes.max() / shape.unit * 2.0**12
    if fitted.model == "iiduka":
        furthest = 2 * (1 - 1e-6)
    places = np.geomspace(2.0**-12, furthest, PLACES)
    if (known := fitted.critical_batch) is not None:
        places = np.sort(np.append(places, known / shape.unit))
    runs, spare = len(data.reached), max(len(data.reached) - len(FREE[fitted.model]), 1)
    # Wilks' limit for many runs; exact for few where the curve is linear in its parameters.
    allowed = runs / 2 * math.log1p(stats.f.ppf(level, 1, spare) / spare)
    likelihood = shape.profile(fitted.model, places)
    best = max(float(likelihood.max()), fitted.log_likelihood)

    def edge(inner: int, outer: int) -> float:
        """Where, between two places, the likelihood falls below what is allowed."""
        between = np.geomspace(places[inner], places[outer], FINER)
        drop = best - shape.profile(fitted.model, between)
        return shape.unit * math.exp(np.interp(allowed, drop, np.log(between)))

    inside = np.flatnonzero(likelihood >= min(best - allowed, likelihood.max()))
    first, last = int(inside[0]), int(inside[-1])
    low = edge(first, first - 1) if first > 0 else 0.0
    high = edge(last, last + 1) if last + 1 < len(places) else math.inf
    return low, high


def _reason(data: Measurements, model: str, critical: float) -> str:
    """Why there is no b*, or what to mind about it."""
    if data.distinct <= len(FREE[model]):
        needed = len(FREE[model]) + 1
        reached = count_of(data.distinct, "batch size")
        return f"{reached} reached the threshold; {model} takes {needed} to tell"
    if model == "mccandlish":
        return "S + E/b has no interior minimum of K·b"
    if critical == 0:
        return "K·b grows from the smallest batch size on: the best pole is B0 = 0"
    if math.isinf(critical):
        return "K·b falls as far as the largest batch size: no end of it can be seen"
    if critical < data.batch_sizes.min():
        return f"b* lies below the smallest batch size run, {data.batch_sizes.min():g}"
    if critical > data.batch_sizes.max():
        return f"b* lies beyond the largest batch size run, {data.batch_sizes.max():g}"
    return ""


def _empty_fit(data: Measurements, model: str) -> Fit:
    nan = math.nan
    reason = _reason(data, model, 0.0)
    return Fit(model, nan, nan, nan, nan, math.inf, nan, nan, None, reason, None, data)


def _lack_of_fit(data: Measurements, residuals: Floats, parameters: int) -> float | None:
    """The F test of the means' scatter about the curve against the seeds' about their means."""
    groups, index = np.unique(data.reached, return_inverse=True)
    means = np.bincount(index, data.log_steps) / np.bincount(index)
    seeds_spare, curve_spare = len(residuals) - len(groups), len(groups) - parameters
    if seeds_spare <= 0 or curve_spare <= 0:
        return None
    among_seeds = float(((data.log_steps - means[index]) ** 2).sum()) / seeds_spare
    among_means = (float((residuals**2).sum()) - among_seeds * seeds_spare) / curve_spare
    floor = LEAST_SIGMA**2
    return float(
        stats.f.sf(max(among_means, 0) / max(among_seeds, floor), curve_spare, seeds_spare)
    )
