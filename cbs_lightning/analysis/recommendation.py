"""The answer for one curve: which batch sizes to use, how sure that is, and how to say it."""

import math
from dataclasses import dataclass

from cbs_lightning.console import count_of, duration
from cbs_lightning.fit.curve_fit import MISFIT

OVERHEAD = 0.2  # of the least SFO that a larger batch may cost
LEVEL = 0.9  # of the intervals
FASTER = 1.05  # times as fast: less is not worth telling


@dataclass(frozen=True)
class Choice:
    """A batch size that was run, what it costs, and that relative to the least SFO's.

    >>> from cbs_lightning.analysis.curves import curves
    >>> from cbs_lightning.analysis.example import example_results
    >>> from cbs_lightning.analysis.recommend import recommend
    >>> fastest = recommend(curves(example_results())[0]).fastest
    >>> print(f"b = {fastest.batch_size}: {fastest.speedup:.1f} times as fast")
    b = 256: 3.0 times as fast
    """

    batch_size: int
    steps: float  # median over seeds, as are the next two
    sfo: float
    seconds: float
    sfo_ratio: float  # to the least SFO
    speedup: float | None  # in measured seconds


@dataclass(frozen=True)
class FittedForm:
    """What one fitted form says about the curve."""

    model: str
    critical_batch: float | None
    interval: tuple[float, float] | None
    aicc: float
    rms_log_error: float
    lack_of_fit: float | None
    balance_point: float | None  # McCandlish et al.'s E/S
    overhead_batch: float | None  # where K·b is 20 % above its value at the measured b*
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """The answer for one variant at one threshold: which batch sizes to use, and how sure that is.

    >>> from cbs_lightning.analysis.curves import curves
    >>> from cbs_lightning.analysis.example import example_results
    >>> from cbs_lightning.analysis.recommend import recommend
    >>> found = recommend(curves(example_results())[0])
    >>> print(found.summary_lines()[0].partition(";")[0])
    adam: use b = 16: fewest gradient evaluations, K·b = 4,320 in 270 steps, 2.7 s
    """

    variant: str
    optimizer: str
    threshold: float
    rule: str
    seeds: tuple[int, ...]
    batch_sizes: tuple[int, ...]  # that were run
    least_sfo: Choice | None  # the measured b*
    interval: tuple[float, float] | None  # of the measured b*; open where nothing was run
    interval_basis: str  # what the interval comes from
    fastest: Choice | None
    largest_within_overhead: Choice | None  # the end of perfect scaling
    fits: tuple[FittedForm, ...]  # the best first
    critical_batch: float | None  # by the best form, where an interior minimum is supported
    no_interior_minimum: str  # why none is; "" where one is
    caveats: tuple[str, ...]  # sentences
    next_batch_size: int | None  # to run next

    def summary_lines(self) -> list[str]:
        """Lines to print: the answer, the alternatives, the fit, and the caveats."""
        if self.least_sfo is None:
            return [f"{self.variant}: {self.caveats[0]}", *_joined(self.caveats[1:])]
        if len(self.batch_sizes) == 1:
            only = f"only b = {self.batch_sizes[0]} was run, {_cost(self.least_sfo)}."
            return [f"{self.variant}: {only}"]
        return [
            f"{self.variant}: {self._answer(self.least_sfo)}",
            *_joined(self._alternatives(self.least_sfo)),
            *_joined([self._fitted()]),
            *_joined(self.caveats),
        ]

    def _answer(self, least: Choice) -> str:
        text = f"use b = {least.batch_size}: fewest gradient evaluations, {_cost(least)}"
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
        if self.interval is None:
            return f"{text} ({seeds}; no interval)."
        basis = f"{seeds}, {self.interval_basis}"
        if self.interval == (0.0, math.inf):
            return f"{text}; these runs do not bound b* ({basis})."
        return f"{text}; {LEVEL:.0%} interval {_span(self.interval)} ({basis})."

    def _alternatives(self, least: Choice) -> list[str]:
        lines = []
        fastest, largest = self.fastest, self.largest_within_overhead
        if fastest is not None and (fastest.speedup or 0) > FASTER:
            lines.append(
                f"{fastest.speedup:.1f} times as fast in wall-clock at b = {fastest.batch_size}, "
                f"for {_more(fastest)} gradients ({_cost(fastest)})."
            )
        elif fastest is not None:
            lines.append("No other was faster in wall-clock by 5%.")
        if largest is not None and largest.batch_size != least.batch_size:
            lines.append(
                f"Largest within {OVERHEAD:.0%} of the least: b = {largest.batch_size}, "
                f"for {_more(largest)} gradients ({_cost(largest)})."
            )
        return lines

    def _fitted(self) -> str:
        if self.no_interior_minimum:
            return f"Fitted: {self.no_interior_minimum}."
        best = self.fits[0]
        text = f"Fitted: b* = {self.critical_batch:.3g}"
        if best.interval is not None:
            text += f", {LEVEL:.0%} interval {_span(best.interval)}"
        text += f" ({best.model}, RMS of log K {best.rms_log_error:.2f}"
        if best.lack_of_fit is not None and best.lack_of_fit < MISFIT:
            text += ", more than seeds explain"
        nested = next(form for form in self.fits if form.model == "nested")
        if nested is not best and nested.critical_batch and nested.interval:
            text += f"; nested {nested.critical_batch:.3g}, {_span(nested.interval)}"
        return f"{text})."


def _joined(sentences: list[str] | tuple[str, ...]) -> list[str]:
    return [f"  {' '.join(sentences)}"] if sentences else []


def _cost(choice: Choice) -> str:
    whole = choice.steps == round(choice.steps)  # the median of two seeds need not be
    steps = count_of(round(choice.steps), "step") if whole else f"{choice.steps:,.1f} steps"
    return f"K·b = {choice.sfo:,.0f} in {steps}, {duration(choice.seconds)}"


def _more(choice: Choice) -> str:
    if choice.sfo_ratio < 1.005:
        return "as many"
    if choice.sfo_ratio < 2:
        return f"{choice.sfo_ratio - 1:.0%} more"
    return f"{choice.sfo_ratio:.1f} times the"


def _span(interval: tuple[float, float]) -> str:
    low, high = interval
    if low == high:
        return f"{_short(low)} alone"
    if low == 0:
        return f"up to {_short(high)}" if math.isfinite(high) else "without bounds"
    return f"{_short(low)} to {_short(high)}" if math.isfinite(high) else f"{_short(low)} and more"


def _short(size: float) -> str:
    return f"{size:,.0f}" if size >= 10 else f"{size:.3g}"
