"""Which batch size to use: a measured curve becomes an answer that a person can act on."""

import math
from dataclasses import dataclass

from cbs_lightning.curves import Curve, Point
from cbs_lightning.fit import MISFIT, Comparison, Fit, compare_measurements
from cbs_lightning.forms import FREE
from cbs_lightning.readings import measured_minimum
from cbs_lightning.results import Result
from cbs_lightning.wording import count_of, duration

OVERHEAD = 0.2  # of the least SFO that a larger batch may cost
LEVEL = 0.9  # of the intervals
FEW = 4  # batch sizes; with fewer there is no curve to speak of


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
    interval: tuple[float, float] | None  # of the measured b*, in batch sizes run; open at edges
    fastest: Choice | None
    largest_within_overhead: Choice | None  # the end of perfect scaling
    fits: tuple[FittedForm, ...]  # the best first
    critical_batch: float | None  # by the best form, where an interior minimum is supported
    no_interior_minimum: str  # why none is; "" where one is
    unknowns: tuple[str, ...]
    next_batch_size: int | None  # to run next

    def sentences(self) -> list[str]:
        """The answer first, then how sure it is, then what is not known."""
        if self.least_sfo is None:
            return [f"{self.variant}: {self.unknowns[0]}", *self.unknowns[1:]]
        if len(self.batch_sizes) == 1:
            return [
                f"{self.variant}: only b = {self.batch_sizes[0]} was run, {_cost(self.least_sfo)}."
            ]
        return [
            f"{self.variant}: {self._answer(self.least_sfo)}",
            *self._alternatives(self.least_sfo),
            *self._fitted(),
            *self.unknowns,
        ]

    def _answer(self, least: Choice) -> str:
        text = f"use b = {least.batch_size}: fewest gradient evaluations, {_cost(least)}"
        basis = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
        if self.interval is None:
            return f"{text} ({basis}, so no interval)."
        return f"{text}; {LEVEL:.0%} interval {_span(self.interval)} ({basis})."

    def _alternatives(self, least: Choice) -> list[str]:
        lines = []
        if self.fastest is not None and self.fastest.batch_size != least.batch_size:
            lines.append(
                f"{self.fastest.speedup:.1f} times as fast in wall-clock at "
                f"b = {self.fastest.batch_size}, for {_more(self.fastest)} gradients."
            )
        elif self.fastest is not None:
            lines.append("It was also the fastest in wall-clock.")
        largest = self.largest_within_overhead
        if largest is not None and largest.batch_size != least.batch_size:
            lines.append(
                f"Largest within {OVERHEAD:.0%} of the least: b = {largest.batch_size}, "
                f"for {_more(largest)} gradients."
            )
        return lines

    def _fitted(self) -> list[str]:
        if not any(math.isfinite(form.aicc) for form in self.fits):
            return []
        if self.no_interior_minimum:
            return [f"Fitted: {self.no_interior_minimum}."]
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
        return [f"{text})."]


def told(found: Recommendation) -> list[str]:
    """For people: the answer in a line, all else in a second."""
    first, *others = found.sentences()
    return [first, f"  {' '.join(others)}"] if others else [first]


def recommend(curve: Curve) -> Recommendation:
    comparison = compare_measurements(curve.measurements())
    complete = [point for point in curve.points if point.all_reached]
    least = curve.best
    minimum = measured_minimum(curve.measurements(), _noise(comparison), LEVEL)
    fastest = min(complete, key=lambda point: point.seconds or math.inf, default=None)
    within = [p for p in complete if least and _sfo(p) <= (1 + OVERHEAD) * _sfo(least)]
    unknowns, following = _unknowns(curve)
    return Recommendation(
        variant=curve.variant,
        optimizer=curve.optimizer,
        threshold=curve.threshold,
        rule=str(curve.rule),
        seeds=curve.seeds,
        batch_sizes=tuple(point.batch_size for point in curve.points),
        least_sfo=_choice(least, least),
        interval=_open_at_edges(curve, minimum.interval) if minimum else None,
        fastest=_choice(fastest, least) if fastest and fastest.seconds else None,
        largest_within_overhead=_choice(within[-1] if within else None, least),
        fits=tuple(_form(fitted, least) for fitted in comparison),
        critical_batch=comparison.critical_batch,
        no_interior_minimum=comparison.reason,
        unknowns=tuple(unknowns),
        next_batch_size=following,
    )


def _sfo(point: Point) -> float:
    return point.sfo or 0.0


def _noise(comparison: Comparison) -> float | None:
    """The scatter of log K about the best curve, unbiased; None where nothing is left over."""
    best = comparison.best
    reached = len(best.data.reached)
    spare = reached - len(FREE[best.model])
    return best.rms_log_error * math.sqrt(reached / spare) if spare > 0 else None


def _open_at_edges(
    curve: Curve, interval: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Beyond the batch sizes that were run nothing is known."""
    if interval is None:
        return None
    low, high = interval
    first, last = curve.points[0].runs[0], curve.points[-1].runs[0]
    return (
        0.0 if 1 < first.effective_batch_size == low else low,
        math.inf if last.data_size > last.effective_batch_size == high else high,
    )


def _choice(point: Point | None, least: Point | None) -> Choice | None:
    if point is None or least is None or point.steps is None or point.seconds is None:
        return None
    return Choice(
        batch_size=point.batch_size,
        steps=point.steps,
        sfo=_sfo(point),
        seconds=point.seconds,
        sfo_ratio=_sfo(point) / _sfo(least),
        speedup=(least.seconds or 0.0) / point.seconds if point.seconds else None,
    )


def _form(fitted: Fit, least: Point | None) -> FittedForm:
    reference = least.runs[0].effective_batch_size if least else 0
    return FittedForm(
        model=fitted.model,
        critical_batch=fitted.critical_batch,
        interval=fitted.interval(LEVEL),
        aicc=fitted.aicc,
        rms_log_error=fitted.rms_log_error,
        lack_of_fit=fitted.lack_of_fit,
        balance_point=fitted.balance_point,
        overhead_batch=fitted.overhead_batch(reference, OVERHEAD),
        reason=fitted.reason,
    )


def _unknowns(curve: Curve) -> tuple[list[str], int | None]:
    """What the runs leave open, and the batch size whose run would tell most."""
    least, unknowns, following = curve.best, [], None
    tried = ", ".join(str(point.batch_size) for point in curve.points)
    if least is None:
        some = any(point.reached for point in curve.points)
        what = "at no batch size did all seeds reach" if some else "no run reached"
        return [f"{what} {curve.threshold:g} (b = {tried})."], None
    sizes = [point.batch_size for point in curve.points]
    place = sizes.index(least.batch_size)
    data_size = least.runs[0].data_size
    if place == 0 and len(sizes) > 1 and least.batch_size > 1:
        following = least.batch_size // 2
        unknowns.append("That is the smallest batch size tried: b* may be smaller still.")
    elif place == len(sizes) - 1 and len(sizes) > 1 and least.batch_size < data_size:
        following = 2 * least.batch_size
        unknowns.append("That is the largest batch size tried: b* may be larger still.")
    for point in curve.points:
        lowest = min((_sfo_at_least(run) for run in point.missed), default=math.inf)
        if lowest <= _sfo(least):
            following = following or point.batch_size
            unknowns.append(
                f"b = {point.batch_size} stopped at an SFO of {lowest:,.0f}, too soon to tell."
            )
    ties = [p.batch_size for p in curve.points if p.all_reached and _sfo(p) == _sfo(least)]
    if len(ties) > 1:
        unknowns.append(f"The same SFO: b = {', '.join(map(str, ties))}.")
    if least.at_first_reading:
        unknowns.append(
            f"b = {least.batch_size} met the threshold with the rule's first reading: "
            "K may be smaller."
        )
    complete = sum(point.all_reached for point in curve.points)
    if complete < FEW:
        unknowns.append(f"Only {count_of(complete, 'batch size')} reached it: too few for a curve.")
    following = following or _between(sizes, place)
    if following is not None:
        unknowns.append(f"Run next: b = {following}.")
    if len(curve.seeds) == 1:
        unknowns.append("One seed: seed=0,1,2 tells how far K scatters.")
    if curve.unreached:
        missed = ", ".join(str(point.batch_size) for point in curve.unreached)
        unknowns.append(f"Not reached at b = {missed}.")
    if sliced := ", ".join(str(point.batch_size) for point in curve.points if point.sliced):
        unknowns.append(f"In slices, which any BatchNorm saw instead of batches: b = {sliced}.")
    return unknowns, following


def _sfo_at_least(run: Result) -> float:
    return float(run.steps_answered * run.effective_batch_size)


def _between(sizes: list[int], place: int) -> int | None:
    """In the middle of a gap of more than an octave beside the least SFO; the wider one."""
    gaps = []
    for i, j in ((place - 1, place), (place, place + 1)):
        if i >= 0 and j < len(sizes) and sizes[j] > 2 * sizes[i]:
            gaps.append((sizes[j] / sizes[i], round(math.sqrt(sizes[i] * sizes[j]))))
    return max(gaps)[1] if gaps else None


def _cost(choice: Choice) -> str:
    steps = count_of(round(choice.steps), "step")
    return f"K·b = {choice.sfo:,.0f} in {steps}, {duration(choice.seconds)}"


def _more(choice: Choice) -> str:
    return (
        f"{choice.sfo_ratio - 1:.0%} more"
        if choice.sfo_ratio < 2
        else (f"{choice.sfo_ratio:.1f} times the")
    )


def _span(interval: tuple[float, float]) -> str:
    low, high = interval
    if low == high:
        return f"{_short(low)} alone"
    if low == 0:
        return f"up to {_short(high)}" if math.isfinite(high) else "without bounds"
    return f"{_short(low)} to {_short(high)}" if math.isfinite(high) else f"{_short(low)} and more"


def _short(size: float) -> str:
    return f"{size:,.0f}" if size >= 10 else f"{size:.3g}"
