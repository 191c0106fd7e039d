"""Time against gradients (McCandlish et al. 2018): what a batch size gains and what it costs."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cbs_lightning.analysis.conditions import why_seconds_differ
from cbs_lightning.analysis.curves import BatchSizePoint, Curve, seeds_of
from cbs_lightning.analysis.recommendation import OVERHEAD, Recommendation, percent
from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.figures.labels import Label, add_labels
from cbs_lightning.reporting.figures.style import (
    FULL_WIDTH,
    PLOT_HEIGHT,
    STYLE,
    add_legend,
    key,
    markers_of,
    note,
    set_plain_log,
    set_round_ticks,
    shorten,
)

# The three batch sizes that are recommended, the largest mark first: they may be the same.
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "largest_within_overhead": (
        f"largest b within {percent(OVERHEAD)} of the fewest",
        {"marker": "s", "ms": 10, "mew": 0.8, "mfc": "none"},
    ),
    "least_sfo": ("fewest gradients", {"marker": "*", "ms": 9, "mec": "white", "mew": 0.6}),
    "fastest": ("fastest of those run", {"marker": "^", "ms": 6, "mfc": "none"}),
}
TITLES = ("Steps against gradients", "Time against gradients")
TIMES = {
    "steps": "Steps K",
    "seconds": "Seconds of training",
}


def draw_tradeoff(study: str, curves: list[Curve], found: list[Recommendation]) -> Figure | None:
    """Draw steps and seconds against SFO, one point per batch size; None if no curve has two."""
    curves = [curve for curve in curves if sum(p.all_reached for p in curve.points) > 1]
    if not curves:
        return None
    recommended = {one.variant: one for one in found}
    caveat = why_seconds_differ(run for c in curves for point in c.points for run in point.runs)
    with mpl.rc_context(STYLE):
        markers = markers_of((curve.variant, curve.optimizer) for curve in curves)
        colors = colors_of((curve.variant, curve.optimizer) for curve in curves)
        figure = Figure((FULL_WIDTH, PLOT_HEIGHT), layout="constrained")
        labels: dict[Axes, list[Label]] = {}
        for axes, (name, title) in zip(figure.subplots(1, 2), TIMES.items(), strict=True):
            for curve in curves:
                color, marker = colors[curve.variant], markers[curve.variant]
                _draw_curve(axes, curve, name, color, marker, joined=name == "steps" or not caveat)
                _draw_marks(axes, name, recommended[curve.variant], color, timed=not caveat)
            labels[axes] = [
                label
                for curve in curves
                for label in _sizes(curve, name, recommended[curve.variant], colors[curve.variant])
            ]
            _set_axes(axes, curves, name, title)
        seeds = seeds_of(curves)
        title = f"{shorten(study)}: rule {curves[0].rule}, {seeds}"
        for axes, name in zip(figure.axes, TITLES, strict=True):
            axes.set_title(f"{title}\n{name}" if axes is figure.axes[0] else name, loc="left")
        handles = [
            key(shorten(c.variant), color=colors[c.variant], marker=markers[c.variant], ms=3.4)
            for c in curves
        ]
        if any(curve.is_fitted for curve in curves):
            handles.append(key("curve", lw=1.0))
        notes = [note(f"Seconds are {caveat}", FULL_WIDTH)] if caveat else []
        add_legend(figure, (handles, 4), (_mark_keys(timed=not caveat), 4), (notes, 1))
        add_labels(figure, labels)
    return figure


def _set_axes(axes: Axes, curves: list[Curve], name: str, title: str) -> None:
    complete = [p for curve in curves for p in curve.points if p.all_reached]
    spent = [p.sfo for p in complete if p.sfo]
    times = [time for p in complete if (time := getattr(p, name))]
    axes.set_xscale("log")
    axes.set_xlim(min(spent) / 1.3, max(spent) * 1.3)
    set_round_ticks(axes.xaxis, min(spent) / 1.3, max(spent) * 1.1)  # inside the figure's edge
    if times:
        set_plain_log(axes, min(times), max(times))
    axes.set_xlabel(f"Gradients: SFO K·b to loss ≤ {curves[0].threshold:g}")
    axes.set_ylabel(title)


def _mark_keys(*, timed: bool) -> list[Line2D]:
    marks = [
        key(label, ls="none", **look)
        for attribute, (label, look) in MARKS.items()
        if timed or attribute != "fastest"
    ]
    return marks[::-1]


def _draw_curve(
    axes: Axes, curve: Curve, name: str, color: str, marker: str, *, joined: bool
) -> None:
    points = _points(curve, name)
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


def _draw_marks(axes: Axes, name: str, found: Recommendation, color: str, *, timed: bool) -> None:
    for attribute, (_, look) in MARKS.items():
        choice = getattr(found, attribute)
        known = choice is not None and (timed or attribute != "fastest")
        if known and getattr(choice, name):
            axes.plot(choice.sfo, getattr(choice, name), color=color, zorder=4, **look)


def _points(curve: Curve, name: str) -> list[BatchSizePoint]:
    return [p for p in curve.points if p.all_reached and p.sfo and getattr(p, name)]


def _sizes(curve: Curve, name: str, found: Recommendation, color: str) -> list[Label]:
    """The batch sizes, those that are recommended first."""
    choices = [getattr(found, attribute) for attribute in MARKS]
    marked = {choice.batch_size for choice in choices if choice is not None}
    points = sorted(_points(curve, name), key=lambda point: point.batch_size not in marked)
    return [
        Label(str(point.batch_size), (point.sfo or 0.0, getattr(point, name)), color)
        for point in points
    ]
