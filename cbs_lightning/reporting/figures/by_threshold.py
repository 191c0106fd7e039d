"""The critical batch size against the loss threshold."""

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from cbs_lightning.analysis.recommendation import LEVEL, percent
from cbs_lightning.analysis.thresholds import AcrossThresholds
from cbs_lightning.fit.joint import JointFit
from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.figures.style import (
    DASHED,
    HOLLOW,
    PLOT_HEIGHT,
    STYLE,
    WIDTH,
    add_legend,
    key,
    markers_of,
    set_octaves,
    shorten,
)
from cbs_lightning.results.result import seeds_of_cells

THRESHOLD, CRITICAL = "Loss threshold (stricter to the right)", "Critical batch size b*"
RANGE_MARGIN = 1.1  # by which a range is drawn beyond its batch sizes, to be seen if it is one
SPREAD = 0.015  # of the axis between variants, so that their intervals can be told apart


def draw_by_threshold(study: str, variants: list[AcrossThresholds]) -> Figure | None:
    """b*, measured and fitted, at every threshold; None if fewer than two thresholds are usable."""
    thresholds = sorted({found.threshold for variant in variants for found in variant.at})
    if len(thresholds) < 2:
        return None
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, PLOT_HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        _set_axes(axes, variants, thresholds)
        names = _draw_variants(axes, variants, thresholds)
        axes.invert_xaxis()
        axes.set_xlabel(THRESHOLD)
        axes.set_ylabel(CRITICAL)
        axes.set_title(_title(study, variants), loc="left")
        add_legend(figure, (names, 3), (_keys(variants), 2))
    return figure


def _set_axes(axes: Axes, variants: list[AcrossThresholds], thresholds: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    low, high = _size_range(variants)
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(thresholds))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    set_octaves(axes.yaxis, math.log2(low), math.log2(high), 0.0)


def _draw_variants(
    axes: Axes, variants: list[AcrossThresholds], thresholds: list[float]
) -> list[Line2D]:
    """Draw the variants side by side; return their legend entries."""
    markers = markers_of((variant.variant, variant.optimizer) for variant in variants)
    colors = colors_of((variant.variant, variant.optimizer) for variant in variants)
    span = math.log(thresholds[-1] / thresholds[0])
    names = []
    for place, variant in enumerate(variants):
        shift = math.exp(SPREAD * span * (place - (len(variants) - 1) / 2))
        color, marker = colors[variant.variant], markers[variant.variant]
        _draw_variant(axes, variant, shift, color, marker)
        if (joint := _agreeing(variant)) is not None:
            grid = np.geomspace(thresholds[0], thresholds[-1], 100)
            theory = np.array([joint.critical_batch(one) or math.nan for one in grid])
            low, high = axes.get_ylim()
            theory[(theory < low) | (theory > high)] = math.nan  # beyond what was measured
            axes.plot(grid, theory, color=color, ls=DASHED, lw=0.9)
        names.append(key(shorten(variant.variant), color=color, marker=marker, **HOLLOW))
    return names


def _agreeing(variant: AcrossThresholds) -> JointFit | None:
    """The theorem's constants if one set of them fits all thresholds."""
    joint = variant.joint
    return joint if joint and not joint.reason and not joint.contradicted else None


def _title(study: str, variants: list[AcrossThresholds]) -> str:
    runs = [(each, run) for each in variants for found in each.at for run in found.runs]
    seeds = seeds_of_cells(((each.variant, run.batch_size), run.seed) for each, run in runs)
    return f"{shorten(study)}: rule {variants[0].at[0].rule}, {seeds}"


def _draw_variant(
    axes: Axes, variant: AcrossThresholds, shift: float, color: str, marker: str
) -> None:
    bottom, top = axes.get_ylim()
    line: dict[str, Any] = {"color": color, "solid_capstyle": "butt"}
    for found in variant.at:
        x = found.threshold * shift
        ends = np.clip(found.interval, bottom, top)
        axes.plot([x, x], ends, lw=0.9, **line)
        for end, given, arrow in zip(ends, found.interval, "v^", strict=True):
            if end != given:  # open
                axes.plot(x, end, color=color, marker=arrow, ms=4, clip_on=False)
        if found.range is not None:
            cheap = found.range.low / RANGE_MARGIN, found.range.high * RANGE_MARGIN
            axes.plot([x, x], cheap, lw=3.2, alpha=0.4, **line)
        if found.critical_batch is not None:
            axes.plot(x, found.critical_batch, color=color, marker="D", ms=3.8, zorder=4)
    measured = [
        (found.threshold * shift, found.least_sfo.batch_size)
        for found in variant.at
        if found.least_sfo
    ]
    if measured:
        axes.plot(*zip(*measured, strict=True), color=color, lw=0.9, marker=marker, **HOLLOW)


def _size_range(variants: list[AcrossThresholds]) -> tuple[float, float]:
    sizes = [
        size
        for variant in variants
        for found in variant.at
        for size in (found.critical_batch, found.least_sfo and found.least_sfo.batch_size)
        if size
    ]
    return min(sizes, default=1) / 2.2, max(sizes, default=2) * 2.2


def _keys(variants: list[AcrossThresholds]) -> list[Line2D]:
    handles = [key("least SFO of those run", marker="o", lw=0.9, **HOLLOW)]
    shares = {found.range.within for variant in variants for found in variant.at if found.range}
    handles += [key(f"at most {percent(share)} more gradients", lw=3.2) for share in shares]
    claimed = any(found.critical_batch for variant in variants for found in variant.at)
    look = {"marker": "D", "ms": 3.8} if claimed else {}
    name = f"b*, {percent(LEVEL)} interval" if claimed else f"{percent(LEVEL)} interval of b*"
    handles.append(key(name, lw=0.9, **look))
    if any(_open(found.interval) for variant in variants for found in variant.at):
        handles.append(key("open: b* may lie beyond", marker="v", ms=4, lw=0.9))
    if any(map(_agreeing, variants)):
        handles.append(key("theorem, all thresholds together", lw=0.9, ls=DASHED))
    return handles


def _open(interval: tuple[float, float]) -> bool:
    return interval[0] == 0 or math.isinf(interval[1])
