"""Which batch size to use: a measured curve becomes an answer that a person can act on."""

import math

from cbs_lightning.analysis.caveats import find_caveats, next_batch_size
from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.analysis.recommendation import (
    LEVEL,
    OVERHEAD,
    Choice,
    FittedForm,
    Recommendation,
)
from cbs_lightning.fit.curve_fit import Fit
from cbs_lightning.fit.minimum import largest_within


def recommend(curve: Curve) -> Recommendation:
    """Say which batch size to use, by the runs of one curve.

    Args:
        curve: The runs of one variant at one threshold and rule; `curves` makes them of results.

    Returns:
        The batch size with the fewest gradient evaluations, two alternatives, the fitted b*, and
        what the runs leave open.

    >>> from cbs_lightning.analysis.curves import curves
    >>> from cbs_lightning.analysis.example import example_results
    >>> (curve,) = curves(example_results())
    >>> found = recommend(curve)
    >>> found.least_sfo.batch_size, found.fastest.batch_size
    (16, 256)
    >>> print(f"{found.critical_batch:.1f}")
    11.5
    >>> found.caveats
    ('One seed: seed=0,1,2 tells how far K scatters.',)
    """
    comparison = curve.comparison
    data = comparison.best.data
    minimum = comparison.measured
    complete = [point for point in curve.distinct_points if point.all_reached]
    least, fastest = curve.best, curve.fastest
    end = largest_within(data, OVERHEAD)
    largest = next((point for point in complete if point.effective_batch_size == end), None)
    interval = _open_at_edges(curve, minimum.interval) if minimum else None
    caveats, following = find_caveats(curve), next_batch_size(curve)
    if following is None and (following := _beyond(curve, interval)) is not None:
        caveats.append(f"Run next: batch_size={following}.")
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
        caveats=tuple(caveats),
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
