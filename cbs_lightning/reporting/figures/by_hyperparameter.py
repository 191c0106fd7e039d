"""Hyperparameters close to one: measured steps, and the theorem's bound, against β₁, β₂ and lr."""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from cbs_lightning.analysis.hyperparameters import NAMES, THE_BOUND, THE_SUM, Panel
from cbs_lightning.reporting.colors import color_of
from cbs_lightning.reporting.figures.style import (
    DASHED,
    GRAY,
    STYLE,
    WIDTH,
    add_legend,
    draw_band,
    key,
    note,
    set_plain_log,
    shorten,
)
from cbs_lightning.results.result import seeds_in_words

PANEL_WIDTH, ROW_HEIGHT = 2.4, 2.1  # inches
BAND = 0.1  # of the axes' height, for what was not reached


def draw_by_hyperparameter(study: str, panels: list[Panel]) -> Figure:
    """All panels of one optimizer side by side: what was measured above, the bound below.

    Without a row of bounds if the theorem has none for this optimizer.
    """
    with mpl.rc_context(STYLE):
        bounded = any(panel.constants(value) for panel in panels for value in panel.values)
        rows = 2 if bounded else 1
        width = max(2 * PANEL_WIDTH if bounded else WIDTH, len(panels) * PANEL_WIDTH)
        assumption = panels[0].assumption() if bounded else ""
        figure = Figure((width, rows * ROW_HEIGHT), layout="constrained")
        color = color_of(panels[0].optimizer)
        grid = figure.subplots(rows, len(panels), squeeze=False)
        for column, panel in zip(grid.T, panels, strict=True):
            for axes, draw in zip(column, (_draw_measured, _draw_bound), strict=False):
                draw(axes, panel, color)
                _set_axis(axes, panel)
        threshold = panels[0].runs[0].threshold
        grid[0, 0].set_ylabel(f"Steps K to loss ≤ {threshold:g}")
        if bounded:
            grid[1, 0].set_ylabel("Bound on VI(K, θ)")
        seeds = seeds_in_words(run.seed for panel in panels for run in panel.runs)
        title = f"{shorten(study)}: {shorten(panels[0].optimizer)}, b = {panels[0].batch_size},"
        title += "\n" if width <= WIDTH else " "
        title += f"rule {panels[0].runs[0].rule}, {seeds}"
        grid[0, 0].set_title(title, loc="left")
        figure.align_xlabels()
        notes = [note(assumption, width)] if assumption else []
        add_legend(figure, (_handles(panels), 4), (notes, 1))
    return figure


def _place(name: str) -> Callable[[Any], Any]:
    """The position on the axis: betas are drawn by their distance to one."""
    return (lambda value: value) if name == "lr" else (lambda value: 1 - np.asarray(value))


def _draw_measured(axes: Axes, panel: Panel, color: str) -> None:
    place = _place(panel.name)
    medians, every = [], []
    for value in panel.values:
        steps = [run.steps for run in panel.at(value) if run.steps is not None]
        every += steps
        if (middle := panel.steps(value)) is not None:
            axes.scatter([place(value)] * len(steps), steps, s=10, color=color, alpha=0.5, lw=0)
            medians.append((place(value), middle))
    if medians:
        axes.plot(*zip(*medians, strict=True), color=color, marker="o", ms=4)
    missed = [value for value in panel.values if panel.missed(value)]
    set_plain_log(axes, min(every, default=1), max(every, default=2), BAND if missed else 0.0)
    if missed:
        draw_band(axes, BAND)
    for value in missed:
        top = axes.get_xaxis_transform()
        axes.plot(place(value), 1 - BAND / 2, "x", color=color, ms=5, mew=1.4, transform=top)


def _draw_bound(axes: Axes, panel: Panel, color: str) -> None:
    low, high = panel.values[0], panel.values[-1]
    if panel.name == "lr":
        values = np.geomspace(low, high, 100)
    else:
        values = 1 - np.geomspace(1 - low, 1 - high, 100)
    found = [(value, bounds) for value in values if (bounds := panel.bounds(float(value)))]
    if not found:
        axes.text(0.5, 0.5, "no bound", ha="center", transform=axes.transAxes, color=GRAY)
        axes.set_yticks([])
        return
    place = _place(panel.name)
    places = [float(place(value)) for value, _ in found]
    for name in found[0][1]:
        style: dict[str, Any] = {"ls": DASHED, "lw": 1.1} if name == THE_SUM else {}
        axes.plot(places, [bounds[name] for _, bounds in found], color=color, **style)
    every = [bound for _, bounds in found for bound in bounds.values()]
    set_plain_log(axes, min(every), max(every))


def _set_axis(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log")
    place = _place(panel.name)
    axes.xaxis.set_major_locator(FixedLocator([float(place(value)) for value in panel.values]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in panel.values]))
    axes.tick_params(axis="x", labelsize=7.5, rotation=45)
    if panel.name != "lr":
        axes.invert_xaxis()
    others = ", ".join(
        f"{NAMES[name]} = {value:g}" for name, value in panel.base.items() if name != panel.name
    )
    label = f"{NAMES[panel.name]}   ({others})" if others else NAMES[panel.name]
    axes.set_xlabel(label, fontsize=8)


def _handles(panels: list[Panel]) -> list[Line2D]:
    handles = [key("steps, median", marker="o", ms=4)]
    if any(panel.missed(value) for panel in panels for value in panel.values):
        handles.append(key("not reached", ls="none", marker="x"))
    bounds = {name for panel in panels for value in panel.values for name in panel.bounds(value)}
    if THE_BOUND in bounds:
        handles.append(key(THE_BOUND))
    if THE_SUM in bounds:
        handles.append(key(THE_SUM, ls=DASHED, lw=1.1))
    return handles
