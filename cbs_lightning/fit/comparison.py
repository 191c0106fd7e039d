"""All forms fitted to the same runs, and what they support."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from numpy.typing import ArrayLike

from cbs_lightning.console import count_of
from cbs_lightning.fit.curve_fit import Fit, fit_measurements
from cbs_lightning.fit.forms import FREE
from cbs_lightning.fit.measurements import FEWEST_SIZES, Measurements, Unreached, measurements
from cbs_lightning.fit.minimum import Minimum, measured_minimum

ALIKE = 2.0  # models whose AICc differ by less are taken to fit alike


@dataclass(frozen=True, eq=False)
class Comparison(Sequence[Fit]):
    """All models' fits, the best first, and the measured minimum beside them.

    It is a sequence of `Fit`; `critical_batch` is None where the data support no interior minimum
    of K·b, and `reason` says why.

    Example:
        >>> from cbs_lightning import compare
        >>> found = compare([4, 8, 16, 32, 64], [1800, 560, 270, 170, 121])
        >>> len(found), found.measured.batch_size
        (3, 16.0)
    """

    fits: tuple[Fit, ...]

    @overload
    def __getitem__(self, index: int) -> Fit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Fit, ...]: ...
    def __getitem__(self, index: int | slice) -> Fit | tuple[Fit, ...]:
        return self.fits[index]

    def __len__(self) -> int:
        return len(self.fits)

    def by_name(self, model: str) -> Fit:
        return next(fitted for fitted in self.fits if fitted.model == model)

    @property
    def best(self) -> Fit:
        return self.fits[0]

    @cached_property
    def measured(self) -> Minimum | None:
        """The batch size with the least median K·b, and an interval for it.

        With one seed per batch size, the interval takes the scatter about the best curve for the
        noise. None where no batch size reached the threshold with all its runs.
        """
        best = self.best
        spare = len(best.data.reached) - len(FREE[best.model])
        known = spare > 0 and math.isfinite(best.aicc)
        noise = best.rms_log_error * math.sqrt(len(best.data.reached) / spare) if known else None
        return measured_minimum(best.data, noise)

    @property
    def shown(self) -> Fit | None:
        """The best fit, where there are enough runs to choose a form and to tell the scatter."""
        enough = math.isfinite(self.best.aicc) and self.best.band(1.0) is not None
        return self.best if enough else None

    @property
    def critical_batch(self) -> float | None:
        """The best model's b*, where the data support an interior minimum."""
        return None if self.reason else self.best.critical_batch

    @cached_property
    def reason(self) -> str:
        """Why these data support no interior minimum of K·b; "" where they do."""
        best = self.best
        edge = best.data.at_edge
        if not math.isfinite(best.aicc):
            runs = count_of(len(best.data.reached), "run")
            why = f"{runs} that reached the threshold: too few to choose a form"
        elif best.data.distinct < FEWEST_SIZES:
            why = f"{best.data.distinct} batch sizes that reached the threshold are too few"
        elif edge:
            why = f"K·b is least at the {edge} batch size that tells"
        elif best.critical_batch is None or best.reason:
            why = f"{best.model} has the best AICc, and {best.reason}"
        elif (interval := best.interval()) is not None and interval[0] == 0:
            found = f"its b* = {best.critical_batch:.3g} may as well be 0"
            why = f"{best.model} has the best AICc, but {found}"
        else:
            return ""
        return f"no interior minimum is supported by these data: {why}"


def compare(batch_sizes: ArrayLike, steps: ArrayLike, unreached: Unreached = None) -> Comparison:
    """Fit all models, and say what the runs support.

    The best model comes first, by AICc. `nested`, of which the others are special cases, comes
    first only where it is better by 2, the usual bound for a difference that says something.

    Args:
        batch_sizes: The batch size of each run that reached the threshold; repeated where there
            are several seeds.
        steps: K of each of these runs, in the same order.
        unreached: The runs that did not reach it, as in `fit`.

    Returns:
        The fits, b* where an interior minimum is supported, and the measured minimum.

    >>> sizes, steps = [4, 8, 16, 32, 64, 128, 256], [1800, 560, 270, 170, 121, 101, 90]
    >>> found = compare(sizes, steps)
    >>> found.best.model, len(found)
    ('nested', 3)
    >>> print(f"{found.critical_batch:.1f}; least of those run: {found.measured.batch_size:g}")
    11.5; least of those run: 16
    >>> compare(sizes[2:], steps[2:]).reason.partition(": ")[2]
    'K·b is least at the smallest batch size that tells'
    """
    return compare_measurements(measurements(batch_sizes, steps, unreached))


def compare_measurements(data: Measurements) -> Comparison:
    """Do what `compare` does, for measurements that have been checked already."""
    fits = sorted(
        (fit_measurements(data, model) for model in FREE),
        key=lambda f: (f.aicc, f.rms_log_error if f.rms_log_error >= 0 else math.inf),
    )
    simple = [f for f in fits if f.model != "nested" and f.aicc <= fits[0].aicc + ALIKE]
    first = simple[:1] if math.isfinite(fits[0].aicc) else []
    return Comparison((*first, *(f for f in fits if f not in first)))
