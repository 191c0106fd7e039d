"""Steps and SFO against batch size, the paper's Figures 1 to 4."""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cbs_lightning.curves import Curve, Point
from cbs_lightning.figures.style import (
    DASHED,
    HOLLOW,
    LEGEND_ROW_HEIGHT,
    PLOT_HEIGHT,
    STYLE,
    UNREACHED_ROW,
    WIDTH,
    colors_of,
    draw_band,
    markers_of,
    set_octaves,
)
from cbs_lightning.results import Result

LONGEST_LABEL = 70  # characters that fit in one legend column
TITLES = {"steps": "Steps K", "sfo": "SFO complexity K·b"}


def draw(study: str, study_curves: list[Curve], quantity: str) -> Figure:
    """Steps or SFO against batch size, all curves together."""
    with mpl.rc_context(STYLE):
        markers = markers_of((curve.variant, curve.optimizer) for curve in study_curves)
        colors = colors_of(curve.optimizer for curve in study_curves)
        handles = _legend_handles(study_curves, markers, colors)
        columns = 2 if max(len(str(h.get_label())) for h in handles) <= LONGEST_LABEL // 2 else 1
        height = PLOT_HEIGHT + LEGEND_ROW_HEIGHT * -(-len(handles) // columns)
        figure = Figure((WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        value = _value(quantity)
        for curve in study_curves:
            _draw_curve(
                axes, curve, value, quantity, markers[curve.variant], colors[curve.optimizer]
            )
        _set_log2_axes(axes, study_curves, value)
        missed = [curve for curve in study_curves if curve.unreached]
        for row, curve in enumerate(missed):
            _draw_unreached(axes, curve, row, colors[curve.optimizer])
        if missed:
            draw_band(axes, UNREACHED_ROW * len(missed) + 0.01)
        first = study_curves[0]
        axes.set_xlabel("Batch size b")
        axes.set_ylabel(f"{TITLES[quantity]} to loss ≤ {first.threshold:g}")
        axes.set_title(_title(study, study_curves), loc="left", fontsize=9)
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.17), ncols=columns)
    return figure


def _value(quantity: str) -> Callable[[Point | Result], float | None]:
    return lambda item: getattr(item, quantity)


def _draw_curve(
    axes: Axes,
    curve: Curve,
    value: Callable[[Point | Result], float | None],
    quantity: str,
    marker: str,
    color: str,
) -> None:
    measured = [(point.batch_size, value(point)) for point in curve.points if point.reached]
    if not measured:
        return
    sizes, medians = zip(*measured, strict=True)
    axes.plot(sizes, medians, color=color, marker=marker, markersize=4.5, zorder=3)
    for point in curve.points:
        if point.sliced and (height := value(point)) is not None:
            axes.plot(point.batch_size, height, color=color, marker=marker, zorder=3.5, **HOLLOW)
    if len(curve.seeds) > 1:
        runs = [(point.batch_size, value(run)) for point in curve.points for run in point.reached]
        run_sizes, run_values = zip(*runs, strict=True)
        axes.scatter(run_sizes, run_values, s=9, color=color, alpha=0.45, lw=0, zorder=2)
    best = curve.best
    if best is None or best.sfo is None or (lowest := value(best)) is None:
        return
    everywhere = np.array([point.batch_size for point in curve.points], float)
    scaling = best.sfo / everywhere if quantity == "steps" else np.full(len(everywhere), best.sfo)
    axes.plot(everywhere, scaling, color=color, lw=0.9, ls=DASHED, alpha=0.8, zorder=1)
    axes.plot(
        best.batch_size,
        lowest,
        marker="*",
        markersize=13,
        color="white" if best.sliced else color,
        markeredgecolor=color if best.sliced else "white",
        markeredgewidth=0.8,
        zorder=4,
    )


def _draw_unreached(axes: Axes, curve: Curve, row: int, color: str) -> None:
    """Batch sizes that did not reach the threshold, at the top edge: K is above the budget."""
    sizes = [point.batch_size for point in curve.unreached]
    axes.plot(
        sizes,
        [1 - UNREACHED_ROW * (row + 0.6)] * len(sizes),
        ls="none",
        marker="x",
        markersize=5,
        markeredgewidth=1.4,
        color=color,
        transform=axes.get_xaxis_transform(),
        clip_on=False,
    )


def _set_log2_axes(
    axes: Axes, study_curves: list[Curve], value: Callable[[Point | Result], float | None]
) -> None:
    sizes = [point.batch_size for curve in study_curves for point in curve.points]
    values = [
        found
        for curve in study_curves
        for point in curve.points
        for run in point.reached
        if (found := value(run)) is not None
    ]
    rows_of_unreached = sum(bool(curve.unreached) for curve in study_curves)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = np.log2(min(sizes)), np.log2(max(sizes))
    set_octaves(axes.xaxis, low, high, 0.4)
    axes.set_xlim(2 ** (low - 0.4), 2 ** (high + 0.4))
    low, high = (np.log2(min(values)), np.log2(max(values))) if values else (0.0, 1.0)
    span = max(high - low, 2.0)
    low, high = (low + high - span) / 2, (low + high + span) / 2
    top = high + span * (0.08 + 1.3 * UNREACHED_ROW * rows_of_unreached)
    axes.set_ylim(2 ** (low - 0.08 * span), 2**top)
    band = UNREACHED_ROW * rows_of_unreached + 0.02 if rows_of_unreached else 0.0
    bottom = low - 0.08 * span
    set_octaves(axes.yaxis, bottom, top - band * (top - bottom), 0.0)


def _legend_handles(
    study_curves: list[Curve], markers: dict[str, str], colors: dict[str, str]
) -> list[Line2D]:
    handles = []
    for curve in study_curves:
        best = f", least SFO at b = {curve.best.batch_size}" if curve.best else ", no minimum"
        room = LONGEST_LABEL - len(best)
        name = curve.variant if len(curve.variant) <= room else curve.variant[: room - 3] + "..."
        marker = markers[curve.variant]
        handles.append(
            Line2D([], [], color=colors[curve.optimizer], marker=marker, ms=4.5, label=name + best)
        )
    gray: dict[str, Any] = {"color": "#555555"}
    if any(curve.best for curve in study_curves):
        handles.append(Line2D([], [], ls="none", marker="*", ms=9, label="least SFO", **gray))
        handles.append(Line2D([], [], lw=0.9, ls=DASHED, label="perfect scaling", **gray))
    if any(curve.unreached for curve in study_curves):
        handles.append(
            Line2D([], [], ls="none", marker="x", ms=5, label="threshold not reached", **gray)
        )
    if any(point.sliced and point.reached for curve in study_curves for point in curve.points):
        label = "in slices, seen by BatchNorm"
        handles.append(Line2D([], [], ls="none", marker="o", label=label, **gray, **HOLLOW))
    return handles


def _title(study: str, study_curves: list[Curve]) -> str:
    seeds = {seed for curve in study_curves for seed in curve.seeds}
    told = f"{len(seeds)} seeds, median" if len(seeds) > 1 else "".join(f"seed {s}" for s in seeds)
    return f"{study}: rule {study_curves[0].rule}, {told or 'no run finished'}"
