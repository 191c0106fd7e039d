"""A quantity against batch size for many curves: one panel per family of optimizers."""

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.names import in_order, shared_settings, short_names
from cbs_lightning.reporting.colors import FAMILIES, OTHERS, colors_of, family_of
from cbs_lightning.reporting.figures.labels import End, write_beside
from cbs_lightning.reporting.figures.quantities import Quantity
from cbs_lightning.reporting.figures.style import (
    FULL_WIDTH,
    GRAY,
    STYLE,
    add_legend,
    draw_band,
    draw_unreached,
    key,
    markers_of,
    set_batch_sizes,
    set_octaves,
    set_round_ticks,
    shorten,
)

COLUMNS = 3
# In inches: a panel, what is above and below each, above and below all, and beside a row of them.
PANEL_HEIGHT, AROUND_PANEL, AROUND_ALL, BESIDE_PANELS = 1.4, 0.4, 0.5, 0.6
LEAST_HEIGHT = 2.8  # of a figure
VALUES_HEIGHT = 1.0  # of a panel below its band of missed thresholds
LABEL_HEIGHT, CHARACTER, UNREACHED_HEIGHT = 0.115, 0.05, 0.06
MOST_ROOM = 0.55  # of a panel's width, for the names
LONGEST_TITLE = 110  # characters
LEAST_OCTAVES = 2.0  # of the values' axis
MOST_TICKS = 6  # of a panel's batch sizes
ARROW: dict[str, Any] = {"marker": r"$\uparrow$", "ms": 5, "mew": 0.3, "ls": "none"}
Point = tuple[int, float]  # a batch size, and what it took to reach the threshold


@dataclass(frozen=True)
class Line:
    """The points, the label and the look of one curve."""

    curve: Curve
    label: str
    look: dict[str, Any]  # colour and marker
    points: list[Point]
    ranges: list[tuple[int, float, float]]  # of seeds: a batch size, the least and the most
    bounds: list[Point]  # of runs that were abandoned
    best: int | None  # batch size
    joined: bool  # else its points cannot be compared

    @property
    def unreached(self) -> list[int]:
        return [point.batch_size for point in self.curve.unreached]

    @property
    def values(self) -> list[float]:
        seeds = [value for _, *ends in self.ranges for value in ends]
        return [*seeds, *(value for _, value in (*self.points, *self.bounds))]


def draw_families(title: str, curves: list[Curve], quantity: Quantity) -> Figure:
    """One quantity against batch size, of at least one curve."""
    lines = _lines(curves, quantity)
    families: dict[str, list[Line]] = {}
    for line in lines:
        families.setdefault(family_of(line.curve.optimizer), []).append(line)
    shown = {name: families[name] for name in (*FAMILIES, OTHERS) if name in families}
    columns = _columns(len(shown), max(len(line.label) for line in lines))
    heights = _heights(list(shown.values()), columns)
    with mpl.rc_context(STYLE):
        around = AROUND_ALL + AROUND_PANEL * len(heights)
        height = max(sum(heights) + around, LEAST_HEIGHT)
        figure = Figure((FULL_WIDTH, height), layout="constrained")
        panels = figure.subplots(
            len(heights), columns, sharex=True, sharey=True, squeeze=False, height_ratios=heights
        )
        band = _band(list(shown.values()), heights, columns)
        _set_axes(panels[0, 0], lines, quantity, band, columns)
        for number, (axes, (family, own)) in enumerate(
            zip(panels.flat, shown.items(), strict=False)
        ):
            axes.set_title(family, loc="left", color=GRAY)
            _draw_panel(axes, own, UNREACHED_HEIGHT / heights[number // columns])
        for axes in list(panels.flat)[len(shown) :]:
            axes.set_axis_off()
        for axes in list(panels.flat)[max(0, len(shown) - columns) : len(shown)]:
            axes.set_xlabel("Batch size b")
            axes.tick_params(labelbottom=True)
        if shared := shared_settings(curves):
            title += f"; {shared}"
        figure.suptitle(shorten(title, LONGEST_TITLE), x=0.02, ha="left", fontsize=8)
        figure.supylabel(f"{quantity.title} to loss ≤ {curves[0].threshold:g}", fontsize=8)
        notes = [key(quantity.caveat, ls="none")] if quantity.caveat else []
        add_legend(figure, (_keys(lines, quantity), 4), (notes, 1))
        figure.draw_without_rendering()  # lays it out
        for axes, (number, own) in zip(panels.flat, enumerate(shown.values()), strict=False):
            row = UNREACHED_HEIGHT / heights[number // columns]
            write_beside(axes, _ends(own, row), LABEL_HEIGHT)
    return figure


def _lines(curves: list[Curve], quantity: Quantity) -> list[Line]:
    names = short_names(curves)
    kinds = [(curve.variant, curve.optimizer) for curve in curves]
    markers, colors = markers_of(kinds), colors_of(kinds)
    longest = int(MOST_ROOM * _panel_width(1) / CHARACTER)
    found = []
    order = {name: place for place, name in enumerate(in_order(names))}
    for curve in sorted(curves, key=lambda curve: order[curve.variant]):
        value, marked = quantity.value, quantity.marked(curve)
        ranges = []
        for point in curve.points:
            seeds = [own for run in point.reached if (own := value(run)) is not None]
            ranges += [(point.batch_size, min(seeds), max(seeds))] if len(seeds) > 1 else []
        line = Line(
            curve,
            shorten(names[curve.variant], longest),
            {"color": colors[curve.variant], "marker": markers[curve.variant]},
            [(point.batch_size, own) for point in curve.points if (own := value(point))],
            ranges,
            [(r.batch_size, quantity.bound(r)) for point in curve.points for r in point.abandoned],
            marked.batch_size if marked else None,
            not quantity.caveat,
        )
        found.append(line)
    return found


def _panel_width(columns: int) -> float:
    return (FULL_WIDTH - BESIDE_PANELS) / columns


def _columns(panels: int, longest: int) -> int:
    """As many as leave room for a label of so many characters."""
    for columns in range(min(COLUMNS, panels), 1, -1):
        if longest * CHARACTER <= MOST_ROOM * _panel_width(columns):
            return columns
    return 1


def _heights(families: list[list[Line]], columns: int) -> list[float]:
    """Of each row of panels, with room for every label and every row of crosses."""
    wanted = [
        max(
            PANEL_HEIGHT,
            LABEL_HEIGHT * (len(own) + 1),
            VALUES_HEIGHT + UNREACHED_HEIGHT * sum(bool(line.unreached) for line in own),
        )
        for own in families
    ]
    return [max(wanted[start : start + columns]) for start in range(0, len(wanted), columns)]


def _band(families: list[list[Line]], heights: list[float], columns: int) -> float:
    """The largest share of a panel's height that crosses take; all panels have the same axis."""
    return max(
        UNREACHED_HEIGHT * sum(bool(line.unreached) for line in own) / heights[number // columns]
        for number, own in enumerate(families)
    )


def _set_axes(axes: Axes, lines: list[Line], quantity: Quantity, band: float, columns: int) -> None:
    """Set the same axes for all panels, with room for names to the right."""
    sizes = [point.batch_size for line in lines for point in line.curve.points]
    set_batch_sizes(axes, sizes, MOST_TICKS)
    left, right = axes.get_xlim()
    longest = max(len(line.label) for line in lines) + 2
    room = min(MOST_ROOM, longest * CHARACTER / _panel_width(columns))
    axes.set_xlim(left, left * (right / left) ** (1 / (1 - room)))
    values = [value for line in lines for value in line.values]
    axes.set_yscale("log", base=2)
    low, high = np.log2(min(values, default=1)), np.log2(max(values, default=2))
    short = max(0.0, LEAST_OCTAVES - (high - low)) / 2
    margin = 0.12 * (high - low + 2 * short)
    low, high = low - short - margin, high + short + margin
    axes.set_ylim(2**low, 2 ** (high + (high - low) * band / (1 - band)))
    if quantity.per_step is None:  # a time, which people say in plain numbers
        set_round_ticks(axes.yaxis, 2**low, 2**high)
    else:
        set_octaves(axes.yaxis, low, high, 0.0)


def _draw_panel(axes: Axes, lines: list[Line], row_height: float) -> None:
    missed = [line for line in lines if line.unreached]
    for row, line in enumerate(missed):
        draw_unreached(axes, line.unreached, row, line.look["color"], row_height=row_height)
    if missed:
        draw_band(axes, row_height * len(missed) + 0.01)
    for line in lines:
        look = line.look
        for size, least, most in line.ranges:
            axes.vlines(size, least, most, color=look["color"], lw=0.8)
        if line.bounds:
            axes.plot(*zip(*line.bounds, strict=True), color=look["color"], **ARROW)
        if not line.points:
            continue
        style = "-" if line.joined else "none"
        axes.plot(*zip(*line.points, strict=True), ms=3.2, lw=1.0, ls=style, **look)
        for place in (place for place in line.points if place[0] == line.best):
            star = look | {"marker": "*", "ms": 9, "mec": "white", "mew": 0.6}
            axes.plot(*place, zorder=4, **star)


def _ends(lines: list[Line], row_height: float) -> list[End]:
    """Where each curve ends: its last point, else its last bound or cross."""
    ends = []
    missed = [line for line in lines if line.unreached]
    for line in lines:
        color = line.look["color"]
        if places := line.points or line.bounds:
            ends.append(End(line.label, color, places[-1][0], value=places[-1][1]))
        elif line in missed:
            height = 1 - row_height * (missed.index(line) + 0.6)
            ends.append(End(line.label, color, line.unreached[-1], height=height))
    return ends


def _keys(lines: list[Line], quantity: Quantity) -> list[Line2D]:
    keys = []
    if any(line.best is not None for line in lines):
        keys.append(key(quantity.mark_label, ls="none", marker="*", ms=8))
    if any(line.ranges for line in lines):
        keys.append(key("median and range of runs", marker="|", ms=8, ls="none", mew=0.9))
    if any(line.bounds for line in lines):
        keys.append(key("abandoned: a lower bound", **ARROW))
    if any(line.unreached for line in lines):
        keys.append(key("threshold not reached", ls="none", marker="x", ms=4.5))
    return keys
