"""A quantity against batch size for many curves: one panel per family of optimizers."""

import math
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cbs_lightning.analysis.curves import Curve, short_names
from cbs_lightning.reporting.colors import FAMILIES, OTHERS, colors_of, family_of
from cbs_lightning.reporting.figures.quantities import Quantity
from cbs_lightning.reporting.figures.style import (
    FULL_WIDTH,
    GRAY,
    STYLE,
    UNREACHED_ROW,
    add_legend,
    draw_band,
    draw_unreached,
    key,
    markers_of,
    set_batch_sizes,
    set_octaves,
    shorten,
)

PANEL_HEIGHT = 1.9  # inches
LEAST_HEIGHT = 2.8  # of a figure
COLUMNS = 3
LABEL_HEIGHT = 0.09  # of a panel's height
ROOM_PER_CHARACTER = 0.042  # of the span of batch sizes, to the right of them
LONGEST_LABEL = 28  # characters
MOST_TICKS = 6  # of a panel's batch sizes
ARROW: dict[str, Any] = {"marker": r"$\uparrow$", "ms": 5, "mew": 0.3, "ls": "none"}
Point = tuple[int, float]  # a batch size, and what it took to reach the threshold


@dataclass(frozen=True)
class Line:
    """The points and the label of one curve."""

    curve: Curve
    label: str
    points: list[Point]
    ranges: list[tuple[int, float, float]]  # of seeds: a batch size, the least and the most
    bounds: list[Point]  # of runs that were abandoned
    best: int | None  # batch size
    joined: bool  # else its points cannot be compared


def draw_families(title: str, curves: list[Curve], quantity: Quantity) -> Figure:
    """One quantity against batch size, of at least one curve."""
    names = short_names(curves)
    lines = [_line(curve, quantity, names[curve.variant]) for curve in curves]
    families: dict[str, list[Line]] = {}
    for line in lines:
        families.setdefault(family_of(line.curve.optimizer), []).append(line)
    shown = [name for name in (*FAMILIES, OTHERS) if name in families]
    with mpl.rc_context(STYLE):
        columns = min(COLUMNS, len(shown))
        rows = math.ceil(len(shown) / columns)
        height = max(PANEL_HEIGHT * rows, LEAST_HEIGHT)
        figure = Figure((FULL_WIDTH, height), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        looks = _looks([line.curve for line in lines])
        sizes = [point.batch_size for line in lines for point in line.curve.points]
        values = [value for line in lines for _, value in [*line.points, *line.bounds]]
        missed = max(sum(bool(line.curve.unreached) for line in own) for own in families.values())
        longest = max(len(line.label) for line in lines)
        room = ROOM_PER_CHARACTER * longest * columns / COLUMNS
        _set_axes(panels[0, 0], sizes, values, UNREACHED_ROW * missed, room)
        for axes, family in zip(panels.flat, shown, strict=False):
            axes.set_title(family, loc="left", color=GRAY)
            _draw_panel(axes, families[family], looks)
        for axes in list(panels.flat)[len(shown) :]:
            axes.set_axis_off()
        figure.suptitle(title, x=0.02, ha="left", fontsize=8)
        for axes in list(panels.flat)[max(0, len(shown) - columns) : len(shown)]:
            axes.set_xlabel("Batch size b")
            axes.tick_params(labelbottom=True)
        figure.supylabel(f"{quantity.title} to loss ≤ {curves[0].threshold:g}", fontsize=8)
        notes = [key(quantity.caveat, ls="none")] if quantity.caveat else []
        add_legend(figure, (_keys(lines, quantity, missed), 4), (notes, 1))
    return figure


def _keys(lines: list[Line], quantity: Quantity, missed: int) -> list[Line2D]:
    keys = []
    if any(line.best is not None for line in lines):
        keys.append(key(quantity.mark_label, ls="none", marker="*", ms=8))
    if any(line.ranges for line in lines):
        keys.append(key("median and range of seeds", marker="|", ms=8, ls="none", mew=0.9))
    if any(line.bounds for line in lines):
        keys.append(key("abandoned: a lower bound", **ARROW))
    if missed:
        keys.append(key("threshold not reached", ls="none", marker="x", ms=4.5))
    return keys


def _line(curve: Curve, quantity: Quantity, name: str) -> Line:
    value, marked = quantity.value, quantity.marked(curve)
    ranges = []
    for point in curve.points:
        seeds = [found for run in point.reached if (found := value(run)) is not None]
        ranges += [(point.batch_size, min(seeds), max(seeds))] if len(seeds) > 1 else []
    return Line(
        curve,
        shorten(name, LONGEST_LABEL),
        [(point.batch_size, own) for point in curve.points if (own := value(point))],
        ranges,
        [(r.batch_size, quantity.bound(r)) for point in curve.points for r in point.abandoned],
        marked.batch_size if marked else None,
        not quantity.caveat,
    )


def _looks(curves: list[Curve]) -> dict[str, dict[str, Any]]:
    markers = markers_of((curve.variant, curve.optimizer) for curve in curves)
    colors = colors_of((curve.variant, curve.optimizer) for curve in curves)
    return {
        variant: {"color": color, "marker": markers[variant]} for variant, color in colors.items()
    }


def _set_axes(axes: Axes, sizes: list[int], values: list[float], band: float, room: float) -> None:
    """Set the same axes for all panels, with room for names to the right."""
    set_batch_sizes(axes, sizes)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** room)
    set_octaves(axes.xaxis, np.log2(min(sizes)), np.log2(max(sizes)), 0.0, MOST_TICKS)
    axes.set_yscale("log", base=2)
    low, high = np.log2(min(values, default=1)), np.log2(max(values, default=2))
    margin = 0.12 * max(high - low, 1)
    top = high + margin + (high - low + 2 * margin) * band / (1 - band)
    axes.set_ylim(2 ** (low - margin), 2**top)
    set_octaves(axes.yaxis, low - margin, high + margin, 0.0)


def _draw_panel(axes: Axes, lines: list[Line], looks: dict[str, dict[str, Any]]) -> None:
    ends: list[tuple[str, str, Point]] = []  # label, colour, place
    missed = [line.curve for line in lines if line.curve.unreached]
    for row, curve in enumerate(missed):
        unreached = [point.batch_size for point in curve.unreached]
        draw_unreached(axes, unreached, row, looks[curve.variant]["color"])
    if missed:
        draw_band(axes, UNREACHED_ROW * len(missed) + 0.01)
    for line in lines:
        look = looks[line.curve.variant]
        for size, least, most in line.ranges:
            axes.vlines(size, least, most, color=look["color"], lw=0.8)
        if line.bounds:
            axes.plot(*zip(*line.bounds, strict=True), color=look["color"], **ARROW)
        if not line.points:
            continue
        axes.plot(
            *zip(*line.points, strict=True),
            ms=3.2,
            lw=1.0,
            ls="-" if line.joined else "none",
            **look,
        )
        for place in (place for place in line.points if place[0] == line.best):
            star = look | {"marker": "*", "ms": 9, "mec": "white", "mew": 0.6}
            axes.plot(*place, zorder=4, **star)
        ends.append((line.label, look["color"], line.points[-1]))
    _label(axes, ends)


def _label(axes: Axes, ends: list[tuple[str, str, Point]]) -> None:
    """Write names beside the curves' last points, moved apart where they would overlap."""
    to_share = axes.transData + axes.transAxes.inverted()
    places = [to_share.transform(end) for _, _, end in ends]
    named = sorted(
        (float(y), float(x), label, color)
        for (x, y), (label, color, _) in zip(places, ends, strict=True)
    )
    left = max((x for _, x, _, _ in named), default=0.0) + 0.05
    heights: list[float] = []
    for wanted, *_ in named:
        lowest = heights[-1] + LABEL_HEIGHT if heights else 0.03
        heights.append(max(wanted, lowest))
    excess = max(0.0, heights[-1] - 0.97) if heights else 0.0
    for number in reversed(range(len(heights))):  # from the top down, only as far as needed
        highest = heights[number + 1] - LABEL_HEIGHT if number + 1 < len(heights) else 0.97
        heights[number] = min(heights[number], highest) if excess else heights[number]
    for (y, x, label, color), height in zip(named, heights, strict=True):
        line = {"arrowstyle": "-", "color": color, "lw": 0.4, "alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            label,
            xy=(x, y),
            xytext=(left, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=6,
            color=color,
            va="center",
            arrowprops=line,
        )
