"""How much of b* is due to a fixed learning rate: compared with scaled and tuned ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.analysis.recommendation import heading
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results.result import Request

SCALING_WORDS = ("lr_scaling=", "lr_reference_batch_size=")
LR_WORD = "lr="
WORDS = {
    Scaling.NONE: "with a fixed learning rate",
    Scaling.SQRT: "with sqrt scaling",
    Scaling.LINEAR: "with linear scaling",
    Scaling.TUNED: "tuned",
}


@dataclass(frozen=True)
class Tuned:
    """For every batch size, the runs with the best of the learning rates tried there.

    The best rate is the one whose runs missed the threshold least often; of those, the one with the
    smallest median SFO, or if none reached it the one that came closest; of equal ones, the
    smallest.
    """

    variant: str  # without what it says of the learning rate
    curve: Curve
    tried: dict[int, tuple[float, ...]]  # learning rates by batch size, ascending

    @property
    def best_rates(self) -> dict[int, float]:
        """The best learning rate of each batch size at which one reached the threshold."""
        return {point.batch_size: lr_of(point) for point in self.curve.points if point.reached}

    @property
    def at_edge(self) -> list[int]:
        """Batch sizes at which a learning rate beyond those tried may be better still."""
        return [
            b for b, lr in self.best_rates.items() if lr in (self.tried[b][0], self.tried[b][-1])
        ]


@dataclass(frozen=True)
class LrComparison:
    """Curves that differ only in how the learning rate depends on the batch size."""

    variant: str  # without what it says of a scaling
    curves: dict[Scaling, Curve]
    tuned: Tuned | None

    @property
    def optimizer(self) -> str:
        return next(iter(self.curves.values())).optimizer

    @property
    def request(self) -> Request:
        return next(iter(self.curves.values())).request

    def summary_lines(self, asked: str = "") -> list[str]:
        """Lines to print: where each has its least K·b, what tuning brings, the rates it takes.

        `asked`: what of the request the heading has to tell.
        """
        least = [
            f"{WORDS[scaling]} {_least_in_words(curve)}" for scaling, curve in self.curves.items()
        ]
        lines = [f"{heading(self.variant, asked)}: least K·b {', '.join(least)}."]
        if self.tuned is not None:
            lines += [
                f"  - {sentence}"
                for sentence in (self._gain(), _rates_in_words(self.tuned))
                if sentence
            ]
        return lines

    def _gain(self) -> str:
        """How much is due to the fixed learning rate, at the largest batch size that shows it."""
        fixed, tuned = self.curves.get(Scaling.NONE), self.curves[Scaling.TUNED]
        points = {point.batch_size: point for point in fixed.points} if fixed else {}
        both = [
            (point, own)
            for point in tuned.points
            if point.all_reached and (own := points.get(point.batch_size)) and own.all_reached
        ]
        if not both:
            return ""
        point, own = both[-1]
        assert point.sfo and own.sfo
        ratio = f"{own.sfo / point.sfo:.2g}"
        share = "about as many gradients as" if ratio == "1" else f"{ratio} times the gradients of"
        return (
            f"At b = {point.batch_size} the fixed one takes {share} the tuned one "
            f"({own.sfo:,.0f} and {point.sfo:,.0f})."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "scalings": {str(scaling): _as_json(curve) for scaling, curve in self.curves.items()},
            "tuned_at_edge": self.tuned.at_edge if self.tuned else None,
        }


def lr_comparisons(curves: Iterable[Curve]) -> list[LrComparison]:
    """Compare curves that answer the same request.

    Of scaled curves that differ only in the reference batch size, the first counts.
    """
    return [
        compared
        for _, same in groupby(sorted(curves, key=_request_key), _request_key)
        for compared in _compare_at_one_threshold(list(same))
    ]


def _compare_at_one_threshold(curves: list[Curve]) -> list[LrComparison]:
    found: dict[str, dict[Scaling, Curve]] = {}
    for curve in curves:
        own = found.setdefault(_without(curve.variant, *SCALING_WORDS), {})
        if len(curve.points) > 1:
            own.setdefault(_scaling(curve), curve)
    tuned = {
        variant: one for one in tuned_curves(curves) for variant in _variants_beside(one, found)
    }
    for variant, one in tuned.items():
        found.setdefault(variant, {})[Scaling.TUNED] = one.curve
    return [
        LrComparison(variant, {s: own[s] for s in Scaling if s in own}, tuned.get(variant))
        for variant, own in sorted(found.items())
        if len(own) > 1 or variant in tuned
    ]


def _variants_beside(tuned: Tuned, found: dict[str, dict[Scaling, Curve]]) -> list[str]:
    """The variants that it is compared with: those that differ in the learning rate alone, and
    have a scaled or the optimizer's own; else the best fixed one; else none, and it is alone.
    """
    own = [each for each, one in found.items() if one and _without(each, LR_WORD) == tuned.variant]
    beside = [each for each in own if each == tuned.variant or {*found[each]} != {Scaling.NONE}]
    if beside or not own:
        return beside or [tuned.variant]
    return [min(own, key=lambda each: _least_sfo(found[each][Scaling.NONE]))]


def _least_sfo(curve: Curve) -> float:
    return (curve.best.sfo if curve.best else None) or math.inf


def tuned_curves(curves: Iterable[Curve]) -> list[Tuned]:
    """Tune the learning rate over curves that differ only in a fixed one.

    This takes two or more batch sizes with several rates. A tuned curve has all batch sizes of such
    curves, including those at which only one rate was tried.
    """
    fixed = [curve for curve in curves if _scaling(curve) is Scaling.NONE]

    def family(curve: Curve) -> tuple[str, float, str, int]:
        return _without(curve.variant, LR_WORD), *_request_key(curve)

    found = []
    for (variant, *_), group in groupby(sorted(fixed, key=family), family):
        members = list(group)
        points = sorted(
            (point for curve in members for point in curve.points if point.reached or point.missed),
            key=lambda point: (point.batch_size, lr_of(point)),
        )
        at = {b: list(same) for b, same in groupby(points, lambda point: point.batch_size)}
        tried = {b: tuple(dict.fromkeys(map(lr_of, same))) for b, same in at.items()}
        if sum(len(rates) > 1 for rates in tried.values()) > 1:
            best = tuple(min(same, key=_cost) for same in at.values())
            curve = replace(members[0], variant=f"{variant} lr tuned", points=best)
            found.append(Tuned(variant, curve, tried))
    return found


def _request_key(curve: Curve) -> tuple[float, str, int]:
    return curve.threshold, str(curve.rule), curve.request.window


def lr_of(point: BatchSizePoint) -> float:
    lr = point.runs[0].lr
    return math.nan if lr is None else lr


def _cost(point: BatchSizePoint) -> tuple[float, float]:
    missed = len(point.missed) / (len(point.missed) + len(point.reached))
    if point.sfo is not None:
        return missed, point.sfo
    return missed, min((run.loss for run in point.runs if run.loss is not None), default=math.inf)


def _scaling(curve: Curve) -> Scaling:
    return Scaling(curve.points[0].runs[0].lr_scaling)


def _without(variant: str, *beginnings: str) -> str:
    return " ".join(word for word in variant.split(" ") if not word.startswith(beginnings))


def _least_in_words(curve: Curve) -> str:
    if curve.best is None:
        return "unknown (none reached it)"
    if too_soon := curve.stopped_too_soon:
        return f"unknown (b = {', '.join(map(str, too_soon))} stopped too soon)"
    sizes = [point.batch_size for point in curve.distinct_points]
    size = curve.best.batch_size
    edge = {sizes[0]: " (the smallest tried)", sizes[-1]: " (the largest tried)"}
    return f"at b = {size}{edge.get(size, '')}"


def _rates_in_words(tuned: Tuned) -> str:
    if not tuned.best_rates:
        return ""
    rates = ", ".join(f"{lr:g} at b = {b}" for b, lr in tuned.best_rates.items())
    edge = ", ".join(map(str, tuned.at_edge))
    beyond = f"; at b = {edge} that is the edge of those tried, and another may be better"
    return f"Best learning rates: {rates}{beyond if edge else ''}."


def _as_json(curve: Curve) -> dict[str, Any]:
    return {
        "least_sfo_batch_size": curve.best.batch_size if curve.best else None,
        "batch_sizes": [point.batch_size for point in curve.points],
        "lr": [lr_of(point) for point in curve.points],
        "sfo": [point.sfo for point in curve.points],
    }
