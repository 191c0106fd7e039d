"""Which batch size to use: a measured curve becomes an answer that a person can act on."""

import math
from dataclasses import dataclass

from cbs_lightning.analysis.caveats import next_batch_size, unknowns
from cbs_lightning.analysis.curves import Curve, Point
from cbs_lightning.console import count_of, duration
from cbs_lightning.fit.minimum import largest_within
from cbs_lightning.fit.single import MISFIT, Fit

OVERHEAD = 0.2  # of the least SFO that a larger batch may cost
LEVEL = 0.9  # of the intervals
FASTER = 1.05  # times as fast: less is not worth telling


@dataclass(frozen=True)
class Choice:
    """A batch size that was run, what it costs, and that relative to the least SFO's."""

    batch_size: int
    steps: float
    sfo: float
    seconds: float
    sfo_ratio: float
    speedup: float | None  # in measured seconds


@dataclass(frozen=True)
class FittedForm:
    """What one form says of the curve."""

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
    """For one variant at one threshold: three batch sizes, b* with its interval, and the gaps."""

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
    unknowns: tuple[str, ...]
    next_batch_size: int | None  # to run next

    def told(self) -> list[str]:
        """For people: the answer, what else could be chosen, the fit, and what is not known."""
        if self.least_sfo is None:
            return [f"{self.variant}: {self.unknowns[0]}", *_joined(self.unknowns[1:])]
        if len(self.batch_sizes) == 1:
            only = f"only b = {self.batch_sizes[0]} was run, {_cost(self.least_sfo)}."
            return [f"{self.variant}: {only}"]
        return [
            f"{self.variant}: {self._answer(self.least_sfo)}",
            *_joined(self._alternatives(self.least_sfo)),
            *_joined([self._fitted()]),
            *_joined(self.unknowns),
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


def recommend(curve: Curve) -> Recommendation:
    comparison = curve.comparison
    data = comparison.best.data
    minimum = comparison.measured
    complete = [point for point in curve.distinct_points if point.all_reached]
    least, fastest = curve.best, curve.fastest
    end = largest_within(data, OVERHEAD)
    largest = next((point for point in complete if point.effective_batch_size == end), None)
    interval = _open_at_edges(curve, minimum.interval) if minimum else None
    open_questions, following = unknowns(curve), next_batch_size(curve)
    if following is None and (following := _beyond(curve, interval)) is not None:
        open_questions.append(f"Run next: batch_size={following}.")
    return Recommendation(
        variant=curve.variant,
        optimizer=curve.optimizer,
        threshold=curve.threshold,
        rule=str(curve.rule),
        seeds=curve.seeds,
        batch_sizes=tuple(point.batch_size for point in curve.points),
        least_sfo=_choice(least, least),
        interval=interval,
        interval_basis="resampled" if data.replicated else "by the scatter about the curve",
        fastest=_choice(fastest, least) if fastest and fastest.seconds else None,
        largest_within_overhead=_choice(largest, least),
        fits=tuple(_form(fitted, least) for fitted in comparison),
        critical_batch=comparison.critical_batch,
        no_interior_minimum=comparison.reason,
        unknowns=tuple(open_questions),
        next_batch_size=following,
    )


def _open_at_edges(
    curve: Curve, interval: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Beyond the batch sizes that were run nothing is known."""
    if interval is None:
        return None
    low, high = interval
    first, last = curve.points[0], curve.points[-1]
    return (
        0.0 if 1 < first.effective_batch_size == low else low,
        math.inf if last.runs[0].data_size > last.effective_batch_size == high else high,
    )


def _beyond(curve: Curve, interval: tuple[float, float] | None) -> int | None:
    """The batch size beyond the edge to which the interval is open."""
    if interval is None or len(curve.points) == 1:
        return None
    if interval[0] == 0:
        return curve.points[0].batch_size // 2
    return 2 * curve.points[-1].batch_size if math.isinf(interval[1]) else None


def _choice(point: Point | None, least: Point | None) -> Choice | None:
    if point is None or least is None or not (point.steps and point.sfo and least.sfo):
        return None
    seconds = point.seconds or 0.0
    return Choice(
        batch_size=point.batch_size,
        steps=point.steps,
        sfo=point.sfo,
        seconds=seconds,
        sfo_ratio=point.sfo / least.sfo,
        speedup=(least.seconds or 0.0) / seconds if seconds else None,
    )


def _form(fitted: Fit, least: Point | None) -> FittedForm:
    return FittedForm(
        model=fitted.model,
        critical_batch=fitted.critical_batch,
        interval=fitted.interval(LEVEL),
        aicc=fitted.aicc,
        rms_log_error=fitted.rms_log_error,
        lack_of_fit=fitted.lack_of_fit,
        balance_point=fitted.balance_point,
        overhead_batch=fitted.overhead_batch(least.effective_batch_size if least else 0, OVERHEAD),
        reason=fitted.reason,
    )


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
