"""The answer for one curve: which batch sizes to use, how sure that is, and how to say it."""

import math
from dataclasses import dataclass

from cbs_lightning.analysis.predictions import RunPrediction, prediction_sentences
from cbs_lightning.console import count_of, duration
from cbs_lightning.fit.comparison import CLAIM, probability_in_words
from cbs_lightning.fit.curve_fit import MISFIT
from cbs_lightning.results.result import seeds_in_words

OVERHEAD = 0.2  # of the least SFO that a larger batch may cost
LEVEL = 0.9  # of the intervals, and how sure a range is to be
LIKELY = 0.5  # of a range, to recommend a batch size for now
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
    seed: int | None
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
    seeds: tuple[int | None, ...]
    batch_sizes: tuple[int, ...]  # that were run
    runs: tuple[RunBehind, ...]
    range: CheapRange | None
    wider_range: CheapRange | None  # within more, where `range` is one batch size or not sure
    least_sfo: Choice | None  # the measured b*
    fastest: Choice | None  # None also where their seconds cannot be compared
    largest_within_overhead: Choice | None  # the end of perfect scaling
    probability: float  # of an interior minimum of K·b
    critical_batch: float | None  # b*, where an interior minimum is supported
    interval: tuple[float, float]  # of b*; an end of 0 or infinity is open
    no_interior_minimum: str  # why none is supported; "" where one is
    why_none: str  # the same as a sentence for people, where the caveats do not say it
    formula_probability: float  # that some formula fits these runs
    refutes_formulas: bool  # whether the runs speak against all of them
    decisive: tuple[int, ...]  # batch sizes without which a b* is claimed, or no more is
    fits: tuple[FittedForm, ...]  # the named forms, the best first
    caveats: tuple[str, ...] = ()  # sentences
    next_batch_size: int | None = None  # to run next
    predictions: tuple[RunPrediction, ...] = ()  # of b*, by the probes of single runs
    outliers: tuple[int, ...] = ()  # batch sizes whose K is far off the curve of the others
    seconds_caveat: str = ""  # why the seconds of these runs cannot be compared

    @property
    def is_sure(self) -> bool:
        """Whether a range of batch sizes is sure to be cheap."""
        found = self.range
        surely = found is None or found.is_sure or self.wider_range is not None
        return surely and not self.is_unknown

    @property
    def is_unknown(self) -> bool:
        """Whether none is even likely to be, so that no batch size can be recommended."""
        found = self.range
        unlikely = found is not None and found.confidence < LIKELY and self.wider_range is None
        return unlikely or self._best_is_outlier

    @property
    def _best_is_outlier(self) -> bool:
        return self.least_sfo is not None and self.least_sfo.batch_size in self.outliers

    def summary_lines(self, asked: str = "") -> list[str]:
        """Lines to print: the headline, and the details as a list.

        `asked`: what of the request the headline has to tell, where there are several.
        """
        return [self.headline(asked), *(f"  - {line}" for line in self.details())]

    def headline(self, asked: str = "") -> str:
        """Which batch size to use, and over which range that hardly matters."""
        return f"{heading(self.variant, asked)}: {self._verdict()}"

    def details(self) -> list[str]:
        """Sentences: what the batch sizes cost, the fastest, b*, and the caveats."""
        predicted = prediction_sentences(self.predictions)
        if self.least_sfo is None:
            return [*self.caveats[1:], *predicted]
        if len(self.batch_sizes) == 1:
            return predicted
        return [
            *self._least(self.least_sfo),
            *self._alternatives(self.least_sfo),
            self._minimum(),
            *predicted,
            *self.caveats,
        ]

    def _verdict(self) -> str:
        least, found, wider = self.least_sfo, self.range, self.wider_range
        if least is None:
            return self.caveats[0]
        if len(self.batch_sizes) == 1:
            return f"only b = {self.batch_sizes[0]} was run, {_cost(least)}."
        if self.is_unknown:
            return f"the runs do not tell yet; {self._least_run(least)}."
        text = f"use b = {least.batch_size}{'' if self.is_sure else ' for now'}"
        if found is None:
            return f"{text}."
        most = f"at most {percent(found.within)}"
        if found.low < found.high:
            text += f"; {_costs_at_most(found)}"
            return f"{text}; {_costs_at_most(wider)}." if wider else f"{text}."
        if wider is None:
            costs = "costs" if found.is_sure else "probably costs"
            return f"{text}, which {costs} {most} more gradients than the least ({_sure(found)})."
        return f"{text}; {_costs_at_most(wider)}, b = {found.low} itself {most} ({_sure(found)})."

    def _least_run(self, least: Choice) -> str:
        """Which batch size came out best, and in how many runs."""
        count = sum(run.batch_size == least.batch_size for run in self.runs)
        where = "in one run" if count == 1 else f"in the median of {count} runs"
        return f"b = {least.batch_size} had the least K·b, {where}"

    def _least(self, least: Choice) -> list[str]:
        """What the fewest gradients were; how sure that is, where nothing is."""
        runs = f"{count_of(len(self.runs), 'run')}, {seeds_in_words(self.seeds)}"
        lines = [f"Fewest gradients: b = {least.batch_size}, {self._cost(least)} ({runs})."]
        if self.is_unknown and self.range is not None and not self._best_is_outlier:
            lines.append(f"The best guess so far: {_costs_at_most(self.range)}.")
        far = "is far off the curve of the others, so it may be an outlier."
        return lines + [f"b = {size} {far}" for size in self.outliers]

    def _cost(self, choice: Choice) -> str:
        """Without the time where times cannot be compared."""
        return _cost(choice, timed=not self.seconds_caveat)

    def _alternatives(self, least: Choice) -> list[str]:
        lines = []
        fastest, largest = self.fastest, self.largest_within_overhead
        if fastest is not None and (fastest.speedup or 0) > FASTER:
            lines.append(
                f"b = {fastest.batch_size} trains {fastest.speedup:.1f} times as fast, for "
                f"{_more(fastest)} gradients ({self._cost(fastest)})."
            )
        elif fastest is not None:
            lines.append("No other batch size was more than 5 % faster.")
        if largest is not None and largest.batch_size != least.batch_size:
            what = f"the largest within {percent(OVERHEAD)} of the least"
            if lines and fastest is not None and largest.batch_size == fastest.batch_size:
                lines.append(f"b = {largest.batch_size} is also {what}.")
            else:
                cost = f"for {_more(largest)} gradients ({self._cost(largest)})"
                lines.append(f"b = {largest.batch_size} is {what}, {cost}.")
        return lines

    def _minimum(self) -> str:
        """What the curves say of b*, and whether one batch size decides that."""
        where = "the probability of a minimum inside these batch sizes is"
        if self.critical_batch is not None:
            interval = f"{percent(LEVEL)} interval {span_in_words(self.interval)}"
            parts = [f"b* = {size_in_words(self.critical_batch)}, {interval}; {where} "]
            parts[0] += f"{probability_in_words(self.probability)}."
        else:
            chance = probability_in_words(self.probability)
            parts = [f"No b* claimed: {where} {chance} ({CLAIM:g} is needed).", self.why_none]
            if self.interval != (0.0, math.inf):
                parts.append(f"If there is one, it is {_located(self.interval)}.")
        if self.refutes_formulas:
            chance = f"probability {probability_in_words(self.formula_probability)}"
            parts.append(f"No formula fits these runs ({chance}): the curve assumes none.")
        return " ".join(filter(None, [*parts, self._decisive()]))

    def _decisive(self) -> str:
        if not self.decisive:
            return ""
        *others, last = map(str, self.decisive)
        some = f"b = {', '.join(others)} or {last}" if others else f"b = {last}"
        if 2 * len(self.decisive) > len(self.batch_sizes):
            some = "any one of most batch sizes"
        what = "a b*" if self.critical_batch is None else "no b*"
        return f"Without {some} {what} would be claimed."


def heading(variant: str, asked: str = "") -> str:
    return f"{variant} ({asked})" if asked else variant


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _costs_at_most(found: CheapRange) -> str:
    span = f"b from {found.low} to {found.high}" if found.low < found.high else f"b = {found.low}"
    return f"{span} costs at most {percent(found.within)} more gradients ({_sure(found)})"


def _sure(found: CheapRange) -> str:
    """A probability rounded down; nothing is 100 % sure."""
    return f"{min(math.floor(100 * found.confidence), 99)} % sure"


def _located(interval: tuple[float, float]) -> str:
    """Where a b* that is not claimed would be."""
    low, high = interval
    first, last = size_in_words(low), size_in_words(high)
    if low == 0:
        place = f"below {last}"
    else:
        place = f"from {first} to {last}" if math.isfinite(high) else f"above {first}"
    return f"{place} ({percent(LEVEL)})"


def _cost(choice: Choice, *, timed: bool = True) -> str:
    whole = choice.steps == round(choice.steps)  # the median of two seeds need not be
    steps = count_of(round(choice.steps), "step") if whole else f"{choice.steps:,.1f} steps"
    time = f", {duration(choice.seconds)}" if timed else ""
    return f"K·b = {choice.sfo:,.0f} in {steps}{time}"


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
    """A batch size that need not be whole, with two digits or all before the point."""
    return f"{size:,.0f}" if size >= 10 else f"{size:.2g}"
