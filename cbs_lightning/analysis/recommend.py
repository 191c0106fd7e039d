"""Turns a measured curve into an answer that a person can act on."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cbs_lightning.analysis.advice import Advice
from cbs_lightning.analysis.caveats import find_caveats, next_batch_size
from cbs_lightning.analysis.conditions import why_seconds_differ
from cbs_lightning.analysis.curves import FEWEST, BatchSizePoint, Curve
from cbs_lightning.analysis.predictions import predictions_of
from cbs_lightning.analysis.recommendation import (
    LEVEL,
    OVERHEAD,
    CheapRange,
    Choice,
    FittedForm,
    Recommendation,
    RunBehind,
)
from cbs_lightning.console import count_of
from cbs_lightning.fit.comparison import WITHIN
from cbs_lightning.fit.curve_fit import Fit
from cbs_lightning.fit.minimum import largest_within
from cbs_lightning.noise.record import NoiseRecord
from cbs_lightning.results.trajectory import RuleName

Records = Mapping[str, NoiseRecord]  # what probes measured in runs, by `config_hash`
NO_RECORDS: Records = MappingProxyType({})
WIDER = (0.1, 0.2, 0.5)  # of the least SFO, tried in turn where a range is narrow


def recommend(
    curve: Curve, within: float = WITHIN, records: Records = NO_RECORDS, *, leverage: bool = True
) -> Recommendation:
    """Recommend a batch size, given the runs of one curve.

    Args:
        curve: The runs of one variant at one threshold and rule, from `curves`.
        within: How much more than the best one the range's batch sizes may cost, as a share.
        records: What probes measured in runs, by `config_hash`.
        leverage: Whether to look for single batch sizes that decide the verdict, which is slow.

    Returns:
        The batch size with the fewest gradients, the range around it, alternatives, b*, and what
        the runs leave open.

    >>> from cbs_lightning.analysis.curves import curves
    >>> from cbs_lightning.analysis.example import example_results
    >>> (curve,) = curves(example_results())
    >>> found = recommend(curve)
    >>> found.least_sfo.batch_size, found.range.high, found.fastest.batch_size
    (16, 16, 256)
    >>> found.interval[0] < found.critical_batch < found.interval[1]
    True
    >>> found.caveats[0]
    'Only one seed. Add seed=0,1,2 to see how much K varies.'
    """
    comparison = curve.comparison
    least, cheap = curve.best, _range(curve, within)
    seconds_caveat = why_seconds_differ(curve.runs)
    fastest = curve.fastest if not seconds_caveat else None
    found = Recommendation(
        variant=curve.variant,
        optimizer=curve.optimizer,
        threshold=curve.threshold,
        rule=str(curve.rule),
        window=curve.request.window if curve.rule is not RuleName.EPOCH else None,
        seeds=curve.seeds,
        batch_sizes=_sizes(curve),
        runs=_runs_behind(curve),
        range=cheap,
        wider_range=_wider_range(curve, cheap),
        least_sfo=_choice(least, least),
        fastest=_choice(fastest, least) if fastest and fastest.seconds else None,
        largest_within_overhead=_choice(_largest_within_overhead(curve), least),
        probability=comparison.probability,
        critical_batch=comparison.critical_batch,
        interval=_interval(curve),
        no_interior_minimum=comparison.reason,
        why_none=_why_none(curve),
        formula_probability=comparison.formula_probability,
        refutes_formulas=curve.refutes_formulas,
        decisive=_decisive(curve) if leverage else (),
        fits=tuple(_form(fitted, least) for fitted in comparison),
        predictions=predictions_of(curve, records),
        outliers=_outliers(curve),
        seconds_caveat=seconds_caveat,
    )
    caveats, following = _open_questions(curve, found)
    return replace(found, caveats=tuple(caveats), next_batch_size=following)


def _decisive(curve: Curve) -> tuple[int, ...]:
    """The batch sizes without one of which the verdict would be another."""
    if sum(point.all_reached for point in curve.distinct_points) < 2:
        return ()
    return tuple(round(size) for size in curve.comparison.decisive)


def _why_none(curve: Curve) -> str:
    """A sentence on why no b* is claimed, unless a caveat says it."""
    comparison = curve.comparison
    complete = sum(point.all_reached for point in curve.distinct_points)
    if comparison.critical_batch is not None or complete < FEWEST or curve.best_at_edge:
        return ""
    if not math.isfinite(comparison.best.aicc):
        runs = count_of(len(comparison.data.reached), "run")
        return f"Only {runs} reached the threshold."
    if edge := comparison.data.at_edge:
        return f"K·b is least at the {edge} batch size that reached the threshold."
    return "Curves without a minimum fit about as well."


def _largest_within_overhead(curve: Curve) -> BatchSizePoint | None:
    end = largest_within(curve.comparison.data, OVERHEAD)
    complete = (point for point in curve.distinct_points if point.all_reached)
    return next((point for point in complete if point.effective_batch_size == end), None)


def _open_questions(curve: Curve, found: Recommendation) -> tuple[list[str], int | None]:
    """The caveats, and the batch size to run next, which the last of them names.

    An outlier comes before everything else: what looks like an edge may be its doing.
    """
    caveats = find_caveats(curve)
    if found.least_sfo is None or len(found.batch_sizes) == 1:
        return caveats, None
    following, how = (None, "") if found.outliers else next_batch_size(curve)
    if following is None:
        following = _next_to_settle(curve, found)
        how = " with another seed" if following in _sizes(curve) else ""
    if following is not None:
        caveats.append(f"Run next: {Advice(curve.runs).next_run(following)}{how}.")
    return caveats, following


def _sizes(curve: Curve) -> tuple[int, ...]:
    return tuple(point.batch_size for point in curve.points)


def _runs_behind(curve: Curve) -> tuple[RunBehind, ...]:
    return tuple(
        RunBehind(
            run.batch_size, run.seed, str(run.status), run.steps_run, run.budget, run.config_hash
        )
        for point in curve.points
        for run in (*point.reached, *point.missed)
    )


def _range(curve: Curve, within: float) -> CheapRange | None:
    found = curve.comparison.range(within, LEVEL)
    if found is None:
        return None
    asked, confidence = _asked(curve), found.confidence
    best = curve.best
    if best is not None and best.batch_size in _outliers(curve):
        # the curves pass its runs by: the range rests on runs that are probably wrong
        wild = curve.comparison.wild_probability[best.effective_batch_size]
        confidence = min(confidence, 1 - wild)
    return CheapRange(asked[int(found.low)], asked[int(found.high)], within, confidence)


def _asked(curve: Curve) -> dict[int, int]:
    """The batch size that was asked for, by the effective one."""
    return {point.effective_batch_size: point.batch_size for point in curve.distinct_points}


def _outliers(curve: Curve) -> tuple[int, ...]:
    """The batch sizes whose runs are probably wrong, the best one first, then the likeliest."""
    asked, best = _asked(curve), curve.best
    found = [asked[int(size)] for size in curve.comparison.outliers]
    return tuple(sorted(found, key=lambda size: best is None or size != best.batch_size))


def _wider_range(curve: Curve, cheap: CheapRange | None) -> CheapRange | None:
    """Where that is one batch size, or not sure: what costs the least more, of several surely."""
    if cheap is None or (cheap.is_sure and cheap.low < cheap.high):
        return None
    for within in WIDER:
        wider = _range(curve, within) if within > cheap.within else None
        if wider is not None and wider.is_sure and wider.low < wider.high:
            return wider
    return None


def _interval(curve: Curve) -> tuple[float, float]:
    """Of b*; closed at 1 and at the whole data set, beyond which there is no batch size."""
    low, high = curve.comparison.interval(LEVEL)
    smallest, largest = curve.points[0], curve.points[-1]
    return (
        1.0 if low == 0 and smallest.effective_batch_size == 1 else low,
        float(curve.data_size)
        if math.isinf(high) and largest.effective_batch_size == curve.data_size
        else high,
    )


def _next_to_settle(curve: Curve, found: Recommendation) -> int | None:
    """An outlier once more; else beyond the edge to which b*'s interval is open, unless runs failed
    there; where both edges are, or single batch sizes decide, the batch size whose run would tell
    most; else the best one once more, if nothing is sure."""
    if found.outliers:
        return found.outliers[0]
    again = curve.best.batch_size if curve.best is not None and not found.is_sure else None
    if sum(point.all_reached for point in curve.distinct_points) < 2:
        return again
    low, high = _interval(curve)
    first, last = curve.points[0], curve.points[-1]
    down, up = low == 0 and first.all_reached, math.isinf(high) and last.all_reached
    if down and not up:
        return first.batch_size // 2
    if up and not down:
        return 2 * last.batch_size
    asked = up or (found.decisive and curve.is_fitted)
    size = curve.comparison.settling_batch_size if asked else None
    failed = size is not None and (
        (size < first.batch_size and not first.all_reached)
        or (size > last.batch_size and not last.all_reached)
    )
    return again if size is None or failed else min(round(size), curve.data_size)


def _choice(point: BatchSizePoint | None, least: BatchSizePoint | None) -> Choice | None:
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


def _form(fitted: Fit, least: BatchSizePoint | None) -> FittedForm:
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
