"""The answer for one curve: which batch sizes to use, how sure that is, and how to say it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cbs_lightning.analysis.predictions import RunPrediction, prediction_sentences
from cbs_lightning.console import count_of, duration
from cbs_lightning.fit.curve_fit import MISFIT

OVERHEAD = 0.2  # of the least SFO that a larger batch may cost
LEVEL = 0.9  # of the intervals, and how sure a range is to be
FASTER = 1.05  # times as fast: less is not worth telling
FORMULA_FITS = 0.5  # probability from which one is said to


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
class CheapRange:
    """Batch sizes run, about the least SFO's, that cost at most so much more gradients."""

    low: int
    high: int
    within: float  # of the least SFO
    confidence: float  # probability of that

    @property
    def is_sure(self) -> bool:
        return self.confidence >= LEVEL


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

    @property
    def misses(self) -> bool:
        """Whether it misses batch sizes by more than their seeds scatter."""
        return self.lack_of_fit is not None and self.lack_of_fit < MISFIT


@dataclass(frozen=True)
class RunBehind:
    """A run that an answer rests on."""

    batch_size: int
    seed: int
    status: str
    steps_run: int
    budget: str  # in words; "": not known
    config_hash: str


@dataclass(frozen=True)
class Recommendation:
    """The answer for one variant at one threshold: which batch sizes to use, and how sure that is.

    >>> from cbs_lightning.analysis.curves import curves
    >>> from cbs_lightning.analysis.example import example_results
    >>> from cbs_lightning.analysis.recommend import recommend
    >>> found = recommend(curves(example_results())[0])
    >>> found.summary_lines()[0][:16], found.range.low <= 16 <= found.range.high
    ('adam: use b = 16', True)
    """

    variant: str
    optimizer: str
    threshold: float
    rule: str
    window: int | None  # samples; None: the rule has none
    seeds: tuple[int, ...]
    batch_sizes: tuple[int, ...]  # that were run
    runs: tuple[RunBehind, ...]
    range: CheapRange | None
    wider_range: CheapRange | None  # within more, where `range` is one batch size or not sure
    least_sfo: Choice | None  # the measured b*
    fastest: Choice | None
    largest_within_overhead: Choice | None  # the end of perfect scaling
    probability: float  # of an interior minimum of K·b
    critical_batch: float | None  # b*, where an interior minimum is supported
    interval: tuple[float, float]  # of b*; an end of 0 or infinity is open
    no_interior_minimum: str  # why none is supported; "" where one is
    formula_probability: float  # that some formula fits these runs
    decisive: tuple[int, ...]  # batch sizes without which the verdict on a minimum is another
    fits: tuple[FittedForm, ...]  # the named forms, the best first
    caveats: tuple[str, ...]  # sentences
    next_batch_size: int | None  # to run next
    predictions: tuple[RunPrediction, ...] = ()  # of b*, by the probes of single runs

    def summary_lines(self, asked: str = "") -> list[str]:
        """Lines to print: the range, what its batch sizes cost, b*, and the caveats.

        `asked`: what of the request the heading has to tell, where there are several.
        """
        name = heading(self.variant, asked)
        predicted = prediction_sentences(self.predictions)
        if self.least_sfo is None:
            others = [*self.caveats[1:], *predicted]
            return [f"{name}: {self.caveats[0]}", *_joined(others)]
        if len(self.batch_sizes) == 1:
            only = f"only b = {self.batch_sizes[0]} was run, {_cost(self.least_sfo)}."
            return [f"{name}: {only}", *_joined(predicted)]
        return [
            f"{name}: {self._use(self.least_sfo)}",
            *_joined([self._least(self.least_sfo), *self._alternatives(self.least_sfo)]),
            *_joined([self._minimum(), *self._fit(), *predicted]),
            *_joined(self.caveats),
        ]

    def _use(self, least: Choice) -> str:
        text = f"use b = {least.batch_size}"
        found, wider = self.range, self.wider_range
        if found is None:
            return f"{text}."
        most = f"at most {percent(found.within)}"
        if found.low < found.high:
            text += f"; {_costs_at_most(found)}"
            return f"{text}; {_costs_at_most(wider)}." if wider else f"{text}."
        if wider is None:
            return f"{text}, which costs {most} more gradients than the least ({_sure(found)})."
        return f"{text}; {_costs_at_most(wider)}, b = {found.low} itself {most} ({_sure(found)})."

    def _least(self, least: Choice) -> str:
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
        runs = f"{count_of(len(self.runs), 'run')}, {seeds}"
        return f"Fewest gradients: b = {least.batch_size}, {_cost(least)} ({runs})."

    def _alternatives(self, least: Choice) -> list[str]:
        lines = []
        fastest, largest = self.fastest, self.largest_within_overhead
        if fastest is not None and (fastest.speedup or 0) > FASTER:
            lines.append(
                f"{fastest.speedup:.1f} times as fast in wall-clock at b = {fastest.batch_size}, "
                f"for {_more(fastest)} gradients ({_cost(fastest)})."
            )
        elif fastest is not None:
            lines.append("No other was faster in wall-clock by 5 %.")
        if largest is not None and largest.batch_size != least.batch_size:
            text = f"Largest within {percent(OVERHEAD)} of the least: b = {largest.batch_size}"
            mentioned = any(f"at b = {largest.batch_size}," in line for line in lines)
            cost = f"for {_more(largest)} gradients ({_cost(largest)})"
            lines.append(f"{text} as well." if mentioned else f"{text}, {cost}.")
        return lines

    def _minimum(self) -> str:
        """What the curves say of b*."""
        if self.critical_batch is not None:
            interval = f"{percent(LEVEL)} interval {span_in_words(self.interval)}"
            probability = f"probability of an interior minimum {self.probability:.2f}"
            return f"b* = {size_in_words(self.critical_batch)}, {interval}; {probability}."
        text = f"b*: {self.no_interior_minimum}."
        if self.interval == (0.0, math.inf):
            return text
        return f"{text} {percent(LEVEL)} interval {span_in_words(self.interval)}."

    def _fit(self) -> list[str]:
        """Whether a formula describes the runs, and whether one batch size decides the verdict."""
        lines = []
        if self.formula_probability < FORMULA_FITS:
            chance = f"probability {self.formula_probability:.2f}"
            lines.append(f"No formula fits these runs ({chance}): the curve assumes none.")
        if len(self.decisive) == 1:
            lines.append(f"b = {self.decisive[0]} alone decides whether there is a minimum.")
        elif 2 * len(self.decisive) > len(self.batch_sizes):
            lines.append("Dropping any one of most batch sizes would overturn that.")
        elif self.decisive:
            sizes = " or ".join(map(str, self.decisive))
            lines.append(f"Dropping b = {sizes} would overturn that.")
        return lines


def heading(variant: str, asked: str = "") -> str:
    return f"{variant} ({asked})" if asked else variant


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _costs_at_most(found: CheapRange) -> str:
    span = f"b from {found.low} to {found.high}"
    return f"{span} costs at most {percent(found.within)} more gradients ({_sure(found)})"


def _sure(found: CheapRange) -> str:
    """A probability rounded down; nothing is 100 % sure."""
    return f"{min(math.floor(100 * found.confidence), 99)} % sure"


def _joined(sentences: Iterable[str]) -> list[str]:
    text = " ".join(sentences)
    return [f"  {text}"] if text else []


def _cost(choice: Choice) -> str:
    whole = choice.steps == round(choice.steps)  # the median of two seeds need not be
    steps = count_of(round(choice.steps), "step") if whole else f"{choice.steps:,.1f} steps"
    return f"K·b = {choice.sfo:,.0f} in {steps}, {duration(choice.seconds)}"


def _more(choice: Choice) -> str:
    if choice.sfo_ratio < 1.005:
        return "as many"
    if choice.sfo_ratio < 2:
        return f"{percent(round(choice.sfo_ratio - 1, 2))} more"
    return f"{choice.sfo_ratio:.1f} times the"


def span_in_words(interval: tuple[float, float]) -> str:
    """An interval in words; an end of 0 or infinity is open."""
    low, high = interval
    if low == high:
        return f"{size_in_words(low)} alone"
    first, last = size_in_words(low), size_in_words(high)
    if low == 0:
        return f"up to {last}" if math.isfinite(high) else "without bounds"
    return f"{first} to {last}" if math.isfinite(high) else f"{first} and more"


def size_in_words(size: float) -> str:
    """A batch size that need not be whole, with three digits or all before the point."""
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"
