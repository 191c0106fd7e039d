"""The critical batch size against the loss threshold."""

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from cbs_lightning.across_thresholds import AcrossThresholds
from cbs_lightning.figures.style import (
    DASHED,
    HOLLOW,
    LEGEND_ROW_HEIGHT,
    PLOT_HEIGHT,
    STYLE,
    WIDTH,
    colors_of,
    markers_of,
    set_octaves,
)
from cbs_lightning.wording import count_of

SPREAD = (
    0.012  # between variants, as a share of the axis, so that their intervals can be told apart
)


def draw_by_threshold(study: str, variants: list[AcrossThresholds]) -> Figure | None:
    """b* measured and fitted at every threshold; None where fewer than two thresholds tell."""
    thresholds = sorted({found.threshold for variant in variants for found in variant.at})
    if len(thresholds) < 2:
        return None
    with mpl.rc_context(STYLE):
        markers = markers_of((variant.variant, variant.optimizer) for variant in variants)
        colors = colors_of(variant.optimizer for variant in variants)
        agreeing = [v for v in variants if not v.joint.reason and not v.joint.contradicted]
        handles = _handles(variants, markers, colors, bool(agreeing))
        height = PLOT_HEIGHT + LEGEND_ROW_HEIGHT * -(-len(handles) // 2)
        figure = Figure((WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        low, high = _size_range(variants)
        axes.set_ylim(low, high)
        span = math.log(thresholds[-1] / thresholds[0])
        for place, variant in enumerate(variants):
            shift = math.exp(SPREAD * span * (place - (len(variants) - 1) / 2))
            color, marker = colors[variant.optimizer], markers[variant.variant]
            _draw_variant(axes, variant, shift, color, marker)
        for variant in agreeing:
            grid = np.geomspace(thresholds[0], thresholds[-1], 100)
            theory = [variant.joint.critical_batch(threshold) or math.nan for threshold in grid]
            axes.plot(grid, theory, color=colors[variant.optimizer], ls=DASHED, lw=0.9)
        axes.invert_xaxis()
        axes.xaxis.set_major_locator(FixedLocator(thresholds))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        set_octaves(axes.yaxis, math.log2(low), math.log2(high), 0.0)
        axes.set_xlabel("Loss threshold (stricter to the right)")
        axes.set_ylabel("Critical batch size b*")
        axes.set_title(_title(study, variants), loc="left", fontsize=9)
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.17), ncols=2)
    return figure


def _title(study: str, variants: list[AcrossThresholds]) -> str:
    seeds = {seed for variant in variants for found in variant.at for seed in found.seeds}
    return f"{study}: rule {variants[0].at[0].rule}, {count_of(len(seeds), 'seed')}"


def _draw_variant(
    axes: Axes, variant: AcrossThresholds, shift: float, color: str, marker: str
) -> None:
    bottom, top = axes.get_ylim()
    line: dict[str, Any] = {"color": color, "solid_capstyle": "butt"}
    for found in variant.at:
        x = found.threshold * shift
        for interval, width in ((found.interval, 0.9), (found.fits[0].interval, 4.0)):
            if interval is not None and (width < 1 or found.critical_batch is not None):
                ends = np.clip(interval, bottom, top)
                axes.plot([x, x], ends, lw=width, alpha=1 if width < 1 else 0.4, **line)
                for end, given, arrow in zip(ends, interval, "v^", strict=True):
                    if width < 1 and end != given:  # open
                        axes.plot(x, end, color=color, marker=arrow, ms=6, clip_on=False)
        if found.critical_batch is not None:
            axes.plot(x, found.critical_batch, color=color, marker="D", ms=4.5, zorder=4)
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


def _handles(
    variants: list[AcrossThresholds],
    markers: dict[str, str],
    colors: dict[str, str],
    with_theory: bool,
) -> list[Line2D]:
    handles = [
        Line2D(
            [], [], color=colors[v.optimizer], marker=markers[v.variant], label=v.variant, **HOLLOW
        )
        for v in variants
    ]
    gray = "#555555"
    handles.append(
        Line2D(
            [],
            [],
            color=gray,
            marker="o",
            lw=0.9,
            label="least SFO of those run, 90% interval",
            **HOLLOW,
        )
    )
    if any(found.critical_batch for variant in variants for found in variant.at):
        label = "fitted b*, 90% interval"
        handles.append(Line2D([], [], color=gray, marker="D", ms=4.5, ls="none", label=label))
    if any(_open(found.interval) for variant in variants for found in variant.at):
        label = "open: nothing was run beyond"
        handles.append(Line2D([], [], color=gray, marker="v", ms=6, lw=0.9, label=label))
    if with_theory:
        label = "theorem, all thresholds together"
        handles.append(Line2D([], [], color=gray, lw=0.9, ls=DASHED, label=label))
    return handles


def _open(interval: tuple[float, float] | None) -> bool:
    return interval is not None and (interval[0] == 0 or math.isinf(interval[1]))
