"""Time against gradients (McCandlish et al. 2018): what a batch size gains, and what it costs."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.analysis.recommendation import OVERHEAD, Recommendation, percent
from cbs_lightning.console import count_of
from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.conditions import why_seconds_differ
from cbs_lightning.reporting.figures.style import (
    FULL_WIDTH,
    PLOT_HEIGHT,
    STYLE,
    add_legend,
    key,
    markers_of,
    set_plain_log,
    set_round_ticks,
    shorten,
)

# The three batch sizes that are recommended, the largest mark first: they may be the same.
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "largest_within_overhead": (
        f"largest b within {percent(OVERHEAD)} of the fewest",
        {"marker": "s", "ms": 9},
    ),
    "least_sfo": ("fewest gradients", {"marker": "*", "ms": 10}),
    "fastest": ("fastest of those run", {"marker": "^", "ms": 5}),
}
TIMES = {
    "steps": "Steps K",
    "seconds": "Seconds of training",
}


def draw_tradeoff(study: str, curves: list[Curve], found: list[Recommendation]) -> Figure | None:
    """Steps and seconds against SFO, a point per batch size; None where no curve has two."""
    curves = [curve for curve in curves if sum(p.all_reached for p in curve.points) > 1]
    if not curves:
        return None
    recommended = {one.variant: one for one in found}
    caveat = why_seconds_differ(run for c in curves for point in c.points for run in point.runs)
    with mpl.rc_context(STYLE):
        markers = markers_of((curve.variant, curve.optimizer) for curve in curves)
        colors = colors_of(curve.optimizer for curve in curves)
        figure = Figure((FULL_WIDTH, PLOT_HEIGHT), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, 2), TIMES.items(), strict=True):
            for curve in curves:
                color, marker = colors[curve.optimizer], markers[curve.variant]
                _draw_curve(axes, curve, name, color, marker, joined=name == "steps" or not caveat)
                _draw_marks(axes, name, recommended[curve.variant], color, timed=not caveat)
            complete = [p for curve in curves for p in curve.points if p.all_reached]
            spent = [p.sfo for p in complete if p.sfo]
            times = [time for p in complete if (time := getattr(p, name))]
            axes.set_xscale("log")
            axes.set_xlim(min(spent) / 1.3, max(spent) * 1.3)
            set_round_ticks(axes.xaxis, min(spent) / 1.3, max(spent) * 1.3)
            if times:
                set_plain_log(axes, min(times), max(times))
            axes.set_xlabel(f"Gradients: SFO K·b to loss ≤ {curves[0].threshold:g}")
            axes.set_ylabel(title)
        seeds = count_of(len({seed for curve in curves for seed in curve.seeds}), "seed")
        title = f"{shorten(study)}: rule {curves[0].rule}, {seeds}"
        figure.axes[0].set_title(title, loc="left")
        handles = [
            key(shorten(c.variant), color=colors[c.optimizer], marker=markers[c.variant], ms=3.4)
            for c in curves
        ]
        if any(curve.is_fitted for curve in curves):
            handles.append(key("curve", lw=1.0))
        marks = [
            key(label, ls="none", mfc="none", **look)
            for attribute, (label, look) in MARKS.items()
            if not (caveat and attribute == "fastest")
        ]
        notes = [key(f"Seconds: {caveat}", ls="none")] if caveat else []
        add_legend(figure, (handles, 4), (marks[::-1], 4), (notes, 1))
    return figure


def _draw_curve(
    axes: Axes, curve: Curve, name: str, color: str, marker: str, *, joined: bool
) -> None:
    points = [p for p in curve.points if p.all_reached and p.sfo and getattr(p, name)]
    if not points:
        return
    fitted = name == "steps" and curve.is_fitted
    if fitted:
        sizes = [point.effective_batch_size for point in points]
        grid = np.geomspace(min(sizes), max(sizes), 200)
        steps = curve.comparison.steps(grid)
        axes.plot(steps * grid, steps, color=color, lw=1.0)
    axes.plot(
        [point.sfo or 0.0 for point in points],
        [getattr(point, name) for point in points],
        color=color,
        marker=marker,
        ms=3.4,
        ls=":" if joined and not fitted else "none",
        lw=0.9,
    )
    for point in points[:: max(1, len(points) // 8)]:
        _name_size(axes, point, name, color)


def _draw_marks(axes: Axes, name: str, found: Recommendation, color: str, *, timed: bool) -> None:
    for attribute, (_, look) in MARKS.items():
        choice = getattr(found, attribute)
        known = choice is not None and (timed or attribute != "fastest")
        if known and getattr(choice, name):
            axes.plot(choice.sfo, getattr(choice, name), color=color, mfc="none", zorder=4, **look)


def _name_size(axes: Axes, point: BatchSizePoint, name: str, color: str) -> None:
    place = (point.sfo or 0.0, getattr(point, name))
    offset: dict[str, Any] = {"xytext": (5, 4), "textcoords": "offset points"}
    axes.annotate(str(point.batch_size), place, fontsize=5.5, color=color, **offset)
