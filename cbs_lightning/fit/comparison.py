"""What runs support without knowing the form of K, and the named forms fitted to them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from cbs_lightning.console import count_of
from cbs_lightning.fit.curve_fit import Fit, fit_measurements
from cbs_lightning.fit.forms import FREE
from cbs_lightning.fit.leverage import Leverage, leverage, settling_batch_size
from cbs_lightning.fit.likelihood import LEAST_SIGMA, Floats
from cbs_lightning.fit.measurements import Measurements, Unreached, measurements
from cbs_lightning.fit.minimum import Minimum, least_measured, measured_minimum
from cbs_lightning.fit.posterior import Posterior, Range, posterior
from cbs_lightning.theory.checks import open_unit, positive, positive_array

CLAIM = 0.9  # probability of an interior minimum from which one is claimed
FEWEST_TO_CLAIM = 2  # batch sizes that reached the threshold
ALIKE = 2.0  # forms whose scores differ by less are taken to fit alike
WITHIN = 0.1  # of the least K·b
# Probability above which runs are called an outlier: more likely than not. It follows from what the
# word means, so no data were needed to choose it.
OUTLIER = 0.5


@dataclass(frozen=True, eq=False)
class Comparison(Sequence[Fit]):
    """What the runs say about b* and the batch sizes around it.

    The answer averages over all curves that agree with the runs, without assuming a formula.
    `critical_batch` is None if the probability of an interior minimum of K·b is below 0.9; `reason`
    says why. A comparison is also a sequence of `Fit`: the three named formulas, best first.

    Example:
        >>> from cbs_lightning import compare
        >>> found = compare([4, 8, 16, 32, 64], [1800, 560, 270, 170, 121])
        >>> len(found), found.measured.batch_size
        (3, 16.0)
    """

    data: Measurements

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """The named formulas, best first; they are fitted only when asked for."""
        return _rank(self.data)

    @overload
    def __getitem__(self, index: int) -> Fit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Fit, ...]: ...
    def __getitem__(self, index: int | slice) -> Fit | tuple[Fit, ...]:
        return self.fits[index]

    def __len__(self) -> int:
        return len(FREE)

    def by_name(self, model: str) -> Fit:
        return next(fitted for fitted in self.fits if fitted.model == model)

    @property
    def best(self) -> Fit:
        """The named formula that fits best."""
        return self.fits[0]

    @cached_property
    def posterior(self) -> Posterior | None:
        """All curves that agree with the runs; None if no run reached the threshold."""
        return posterior(self.data) if self.data.distinct else None

    @property
    def probability(self) -> float:
        """Probability that K·b has a minimum inside the batch sizes run; 0 if no run reached."""
        return self.posterior.probability if self.posterior else 0.0

    @property
    def critical_batch(self) -> float | None:
        """b*: the median over the curves that have a minimum; None if none is claimed."""
        if self.reason or self.posterior is None:
            return None
        return self.posterior.critical_batch

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The interval that contains b* with probability `level`.

        An end of 0 or infinity is open: b* may lie beyond the smallest or largest batch size run.
        """
        open_unit("level", level)
        return self.posterior.interval(level) if self.posterior else (0.0, math.inf)

    def range(self, within: float = WITHIN, level: float = 0.9) -> Range | None:
        """The range of batch sizes whose K·b is at most 1 + `within` times the smallest.

        This is the widest range around the measured minimum for which that has at least the
        probability `level`, or else the most probable range; `confidence` is its probability. None
        if no batch size reached the threshold with all its runs.
        """
        open_unit("level", level)
        share = positive("within", within)
        about = least_measured(self.data)
        if self.posterior is None or about is None:
            return None
        return self.posterior.range(self.data.complete, about.batch_size, share, level)

    @overload
    def steps(self, b: float) -> float: ...
    @overload
    def steps(self, b: ArrayLike) -> float | Floats: ...
    def steps(self, b: ArrayLike) -> float | Floats:
        """K(b), the median over all curves; nan if no run reached the threshold."""
        sizes = positive_array("b", b)
        if self.posterior is None:
            found = np.full(sizes.shape, np.nan)
        else:
            log_steps = self.posterior.log_steps(sizes.ravel())
            with np.errstate(over="ignore"):  # infinite where no float holds it
                found = np.exp(np.median(log_steps, axis=0)).reshape(sizes.shape)
        return found if found.ndim else float(found)

    def sfo(self, b: ArrayLike) -> float | Floats:
        """K(b)·b, with K(b) as in `steps`."""
        with np.errstate(over="ignore"):
            found = np.asarray(self.steps(b)) * np.asarray(b, float)
        return found if found.ndim else float(found)

    def band(self, b: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats] | None:
        """Bounds that contain the curve K(b) with probability `level`, at each b."""
        open_unit("level", level)
        sizes = np.atleast_1d(positive_array("b", b))
        if self.posterior is None:
            return None
        low, high = self.posterior.band(sizes.ravel(), level)
        return low.reshape(sizes.shape), high.reshape(sizes.shape)

    def prediction_band(self, b: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats] | None:
        """Bounds that contain K of one more run with probability `level`, at each b."""
        open_unit("level", level)
        sizes = np.atleast_1d(positive_array("b", b))
        if self.posterior is None:
            return None
        low, high = self.posterior.prediction_band(sizes.ravel(), level)
        return low.reshape(sizes.shape), high.reshape(sizes.shape)

    @property
    def formula_probability(self) -> float:
        """Probability that one of the formulas fits, rather than a smooth curve without one."""
        return 1 - self.posterior.families["smooth"] if self.posterior else math.nan

    @cached_property
    def leverage(self) -> tuple[Leverage, ...]:
        """The answer without each of the batch sizes run, in turn."""
        return leverage(self.posterior, self.data, CLAIM) if self.posterior else ()

    @property
    def decisive(self) -> tuple[float, ...]:
        """The batch sizes without one of which no minimum would be claimed, or one would be: not by
        chance alone, since other random numbers move the probability by less."""
        return tuple(one.batch_size for one in self.leverage if one.overturns)

    @cached_property
    def wild_probability(self) -> dict[float, float]:
        """By batch size that reached the threshold: how likely it is that its runs tell nothing.

        One wild run decides little about the curve; this says that it is one.
        """
        if self.posterior is None:
            return {}
        sizes = np.unique(self.data.reached).tolist()
        found = self.posterior.wild_probability(self.data).tolist()
        return dict(zip(sizes, found, strict=True))

    @property
    def outliers(self) -> tuple[float, ...]:
        """The batch sizes whose runs are more likely wild than not, the likeliest first."""
        wild = self.wild_probability
        likely = [size for size, chance in wild.items() if chance > OUTLIER]
        return tuple(sorted(likely, key=wild.__getitem__, reverse=True))

    @cached_property
    def settling_batch_size(self) -> float | None:
        """Where one more run would tell most about b*."""
        return settling_batch_size(self.posterior, self.data) if self.posterior else None

    @cached_property
    def measured(self) -> Minimum | None:
        """The batch size with the least median K·b, and an interval for it.

        With one seed per batch size, the interval takes the scatter about the curves for the
        noise. None where no batch size reached the threshold with all its runs.
        """
        known = self.posterior is not None and math.isfinite(self.best.aicc)
        scatter = self.posterior.scatter if known and self.posterior else None
        return measured_minimum(self.data, scatter)

    @property
    def shown(self) -> Fit | None:
        """The best fit, where there are enough runs to choose a form and to tell the scatter."""
        enough = math.isfinite(self.best.aicc) and self.best.band(1.0) is not None
        return self.best if enough else None

    @cached_property
    def reason(self) -> str:
        """Why these data support no interior minimum of K·b; "" where they do."""
        reached, edge = self.data.distinct, self.data.at_edge
        if reached < FEWEST_TO_CLAIM:
            sizes = count_of(reached, "batch size")
            why = f"{sizes} that reached the threshold: too few to tell"
        elif self.probability >= CLAIM:
            return ""
        elif not math.isfinite(self.best.aicc):
            runs = count_of(len(self.data.reached), "run")
            why = f"{runs} that reached the threshold: too few to choose a form"
        elif edge:
            why = f"K·b is least at the {edge} batch size that tells"
        else:
            why = "curves without one fit too well"
        needed = f"probability {probability_in_words(self.probability)}; {CLAIM:g} is needed"
        return f"no interior minimum is supported by these data: {why} ({needed})"


def probability_in_words(value: float) -> str:
    """Two digits, or as many as show that it is below what a claim takes; nothing is impossible or
    certain."""
    if value < 0.01:
        return "below 0.01"
    if value > 0.99:
        return "above 0.99"
    digits = 2
    while value < CLAIM <= round(value, digits):
        digits += 1
    return f"{value:.{digits}f}"


def compare(
    batch_sizes: ArrayLike,
    steps: ArrayLike,
    unreached: Unreached = None,
    rounded_to: ArrayLike = 1,
) -> Comparison:
    """Find b* from the steps that runs needed, and fit all named formulas.

    The formulas are ranked by how well they fit the mean of each batch size, with a penalty per
    parameter. `nested` contains the other two and comes first only if it is clearly better.

    Args:
        batch_sizes: The batch size of each run that reached the threshold; repeat it for several
            seeds.
        steps: K of each of these runs, in the same order.
        unreached: The runs that did not reach it, as in `fit`.
        rounded_to: What K was rounded to, in steps: one number, or one for each K. If the loss was
            looked at once an epoch, the steps of an epoch.

    Returns:
        The probability of an interior minimum of K·b, b* with its interval, the range of batch
        sizes that cost little more, bands, the fitted formulas and the measured minimum.

    >>> sizes, steps = [4, 8, 16, 32, 64, 128, 256], [1800, 560, 270, 170, 121, 101, 90]
    >>> found = compare(sizes, steps)
    >>> found.best.model, len(found), found.probability > 0.9
    ('nested', 3, True)
    >>> low, high = found.interval(0.9)
    >>> low < found.critical_batch < high, found.measured.batch_size
    (True, 16.0)
    >>> compare(sizes[2:], steps[2:]).reason.partition(": ")[2].partition(" (")[0]
    'K·b is least at the smallest batch size that tells'
    """
    return compare_measurements(measurements(batch_sizes, steps, unreached, rounded_to))


def compare_measurements(data: Measurements) -> Comparison:
    """Do what `compare` does, for measurements that have been checked already."""
    return Comparison(data)


def _rank(data: Measurements) -> tuple[Fit, ...]:
    """All named formulas, best first."""
    means = data.collapse()
    scores = {model: _score(fit_measurements(means, model)) for model in FREE}
    fits = sorted(
        (fit_measurements(data, model) for model in FREE),
        key=lambda f: (scores[f.model], f.rms_log_error if f.rms_log_error >= 0 else math.inf),
    )
    least = scores[fits[0].model]
    simple = [f for f in fits if f.model != "nested" and scores[f.model] <= least + ALIKE]
    first = simple[:1] if math.isfinite(least) else []
    return (*first, *(f for f in fits if f not in first))


def _score(fitted: Fit) -> float:
    """-2 log of the evidence for a form, up to a constant, from one mean per batch size.

    Parameters cost the logarithm of the number of means, and the scatter about the curve counts
    once for each mean that they leave over. Unlike AICc that does not forbid a third parameter to
    six means, and more seeds of the same batch sizes do not speak for a form that misses them.
    """
    sizes, free = fitted.data.distinct, len(FREE[fitted.model])
    spare = sizes - free
    if spare <= 0:
        return math.inf
    sigma = max(fitted.sigma, LEAST_SIGMA)
    plain = sizes * math.log(2 * math.pi * sigma**2) + sizes * (fitted.rms_log_error / sigma) ** 2
    censored = -2 * fitted.log_likelihood - plain
    scatter = max(fitted.rms_log_error, LEAST_SIGMA) * math.sqrt(sizes / spare)
    return 2 * spare * math.log(scatter) + free * math.log(sizes) + max(censored, 0.0)
