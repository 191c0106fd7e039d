"""Steps, SFO and seconds against batch size; the first two are the paper's Figures 1 to 4."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path

from cbs_lightning.analysis.conditions import why_seconds_differ
from cbs_lightning.analysis.curves import BatchSizePoint, Curve, seeds_of
from cbs_lightning.analysis.recommendation import (
    LEVEL,
    Recommendation,
    percent,
    size_in_words,
    span_in_words,
)
from cbs_lightning.fit.comparison import probability_in_words
from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.figures.by_family import draw_families
from cbs_lightning.reporting.figures.quantities import QUANTITIES, Quantity
from cbs_lightning.reporting.figures.strips import (
    PATTERN_HEIGHT,
    RANGE_HEIGHT,
    draw_pattern,
    draw_ranges,
    pattern_keys,
    range_keys,
    ranges,
    shade_ranges,
)
from cbs_lightning.reporting.figures.style import (
    DASHED,
    GRAY,
    HOLLOW,
    MOST_UNREACHED_ROWS,
    PLOT_HEIGHT,
    STYLE,
    UNREACHED_ROW,
    WIDTH,
    add_legend,
    draw_band,
    draw_unreached,
    key,
    markers_of,
    note,
    set_batch_sizes,
    set_octaves,
    set_round_ticks,
    shorten,
)
from cbs_lightning.reporting.paper import PaperCell
from cbs_lightning.results.result import Result

PREDICTION_ALPHA, BAND_ALPHA = 0.08, 0.2
# An arrow upwards, whose foot is at the value.
ARROW = Path(
    [(-0.3, 0), (0.3, 0), (0, 0), (0, 1), (-0.3, 0.6), (0, 1), (0.3, 0.6)],
    [Path.MOVETO, Path.LINETO, Path.MOVETO, Path.LINETO, Path.MOVETO, Path.LINETO, Path.LINETO],
)
MOST_TOGETHER = 9  # curves in one pair of axes
MOST_SHADED = 3  # of them with bands and ranges shaded
LEGEND_WIDTH = 62  # characters
ABANDONED: dict[str, Any] = {"marker": ARROW, "ms": 16, "mew": 1.0, "mfc": "none"}


def draw(
    study: str,
    study_curves: list[Curve],
    name: str,
    paper: dict[str, list[PaperCell]] | None = None,
    found: Sequence[Recommendation] = (),
) -> Figure:
    """One quantity against batch size, all curves together.

    The ranges of the answers `found` are drawn in a strip below, and `paper` in another. More than
    `MOST_TOGETHER` curves are drawn in one panel per family of optimizers, without these.
    """
    quantity = QUANTITIES[name]
    if name == "seconds" and (reason := why_seconds_differ(_runs(study_curves))):
        quantity = replace(quantity, caveat=f"Seconds are {reason}", marked=lambda _: None)
    if len(study_curves) > MOST_TOGETHER:
        return draw_families(_title(study, study_curves), study_curves, quantity)
    cheap = ranges(study_curves, found) if quantity.per_step is not None else []
    with mpl.rc_context(STYLE):
        markers = markers_of((curve.variant, curve.optimizer) for curve in study_curves)
        colors = colors_of((curve.variant, curve.optimizer) for curve in study_curves)
        strips = [len(cheap) * RANGE_HEIGHT, 2 * len(paper or {}) * PATTERN_HEIGHT]
        heights = [PLOT_HEIGHT, *filter(None, strips)]
        figure = Figure((WIDTH, sum(heights)), layout="constrained")
        axes, *below = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
        sizes = {point.batch_size for curve in study_curves for point in curve.points}
        sizes |= {cell.batch_size for cells in (paper or {}).values() for cell in cells}
        set_batch_sizes(axes, sizes)
        _set_values(axes, study_curves, quantity)
        for curve in study_curves:
            look = {"marker": markers[curve.variant], "color": colors[curve.variant]}
            _draw_curve(axes, curve, quantity, look, shaded=_are_shaded(study_curves))
            _draw_abandoned(axes, curve, quantity, colors[curve.variant])
        _draw_unreached(axes, study_curves, colors)
        if _are_shaded(study_curves):
            shade_ranges(axes, cheap, colors)
        first = study_curves[0] if study_curves else None
        axes.set_ylabel(quantity.title + (f" to loss ≤ {first.threshold:g}" if first else ""))
        axes.set_title(_title(study, study_curves), loc="left")
        names = _names(study_curves, quantity, markers, colors)
        keys = [*_keys(study_curves, quantity), *range_keys(cheap)]
        for strip in below:
            set_batch_sizes(strip, sizes)
        if cheap:
            draw_ranges(below[0], cheap, colors)
        if paper:
            draw_pattern(below[-1], study_curves, paper)
            keys += pattern_keys()
        *above, lowest = [axes, *below]
        for own in above:
            own.tick_params(labelbottom=False)
        lowest.set_xlabel("Batch size b")
        notes = [note(quantity.caveat)] if quantity.caveat else []
        add_legend(figure, (names, 1), (keys, 2), (notes, 1))
    return figure


def _runs(study_curves: list[Curve]) -> list[Result]:
    return [run for curve in study_curves for point in curve.points for run in point.runs]


def _are_shaded(study_curves: list[Curve]) -> bool:
    """Whether there are few enough curves for their bands to be told apart."""
    return len(study_curves) <= MOST_SHADED


def _draw_curve(
    axes: Axes, curve: Curve, quantity: Quantity, look: dict[str, str], *, shaded: bool
) -> None:
    value, color, marker = quantity.value, look["color"], look["marker"]
    reached = [(point, found) for point in curve.points if (found := value(point)) is not None]
    if not reached:
        return
    per_step = quantity.per_step
    fitted = per_step is not None and _draw_fit(axes, curve, per_step, color, shaded=shaded)
    axes.plot(
        [point.batch_size for point, _ in reached],
        [found for _, found in reached],
        color=color,
        marker=marker,
        markersize=3.8,
        ls="none" if fitted or quantity.caveat else "-",
        zorder=3,
    )
    for point, found in reached:
        if point.sliced:
            axes.plot(point.batch_size, found, color=color, marker=marker, zorder=3.5, **HOLLOW)
    _draw_seeds(axes, [point for point, _ in reached if len(point.reached) > 1], value, color)
    marked = quantity.marked(curve)
    if marked is None or (lowest := value(marked)) is None:
        return
    if per_step is not None and marked.sfo is not None:
        asked = np.array([point.batch_size for point in curve.points], float)
        sizes = np.minimum(asked, curve.data_size)
        scaling = marked.sfo / sizes * per_step(sizes)
        axes.plot(asked, scaling, color=color, lw=0.8, ls=DASHED, alpha=0.8, zorder=1)
    axes.plot(
        marked.batch_size,
        lowest,
        marker="*",
        markersize=10,
        color="white" if marked.sliced else color,
        markeredgecolor=color if marked.sliced else "white",
        markeredgewidth=0.7,
        zorder=4,
    )


def _draw_seeds(
    axes: Axes,
    points: list[BatchSizePoint],
    value: Callable[[BatchSizePoint | Result], float | None],
    color: str,
) -> None:
    """Draw every run, and the range of the runs at one batch size."""
    found = [(point.batch_size, [value(run) or 0.0 for run in point.reached]) for point in points]
    if not found:
        return
    sizes, values = zip(*found, strict=True)
    look: dict[str, Any] = {"color": color, "lw": 0.9, "zorder": 2}
    axes.vlines(sizes, [min(own) for own in values], [max(own) for own in values], **look)
    places = [size for size, own in found for _ in own]
    axes.scatter(places, [each for own in values for each in own], s=14, marker="_", **look)


def _draw_fit(
    axes: Axes, curve: Curve, per_step: Callable[[Floats], Floats], color: str, *, shaded: bool
) -> bool:
    """Draw the curve, if shaded with its two bands, and b* with its interval; False if there is
    none."""
    if not curve.is_fitted:
        return False
    comparison = curve.comparison
    asked = [point.batch_size for point in curve.points if point.reached]
    grid = np.geomspace(min(asked), max(asked), 200)
    sizes = np.minimum(grid, curve.data_size)  # as they were: at most the whole data set
    axes.plot(grid, comparison.steps(sizes) * per_step(sizes), color=color, lw=1.0, zorder=2.5)
    bands = {comparison.prediction_band: PREDICTION_ALPHA, comparison.band: BAND_ALPHA}
    for band_of, alpha in bands.items() if shaded else ():
        band = band_of(sizes, LEVEL)
        assert band is not None
        low, high = (np.minimum(edge, 1e300) * per_step(sizes) for edge in band)
        axes.fill_between(grid, low, high, color=color, alpha=alpha, lw=0, zorder=1.5)
    if (critical := comparison.critical_batch) is not None:
        height = comparison.steps(critical) * per_step(np.array(critical))
        ends = np.clip(comparison.interval(LEVEL), *axes.get_xlim())
        axes.plot(ends, [height] * 2, color=color, lw=2.6, alpha=0.55, zorder=3.6)
        look: dict[str, Any] = {"mec": "white", "mew": 0.6, "zorder": 4.5}
        axes.plot(critical, height, color=color, marker="D", ms=4.6, **look)
    return True


def _draw_unreached(axes: Axes, study_curves: list[Curve], colors: dict[str, str]) -> None:
    """A row of crosses for each curve with batch sizes that did not reach the threshold."""
    missed = [curve for curve in study_curves if curve.unreached]
    if not missed:
        return
    alike = len({curve.optimizer for curve in missed}) < len(missed)
    last = MOST_UNREACHED_ROWS - 1
    for row, curve in enumerate(missed):
        label = shorten(curve.variant, 24) if alike and row <= last else ""
        if row == last and len(missed) > MOST_UNREACHED_ROWS:
            label = f"{len(missed) - last} others"
        sizes = [point.batch_size for point in curve.unreached]
        draw_unreached(axes, sizes, min(row, last), colors[curve.variant], label)
    draw_band(axes, UNREACHED_ROW * _unreached_rows(study_curves) + 0.01)


def _unreached_rows(study_curves: list[Curve]) -> int:
    return min(sum(bool(curve.unreached) for curve in study_curves), MOST_UNREACHED_ROWS)


def _draw_abandoned(axes: Axes, curve: Curve, quantity: Quantity, color: str) -> None:
    """Draw runs that a search abandoned at their cost so far; the full cost would be higher."""
    runs = [run for point in curve.points for run in point.abandoned]
    sizes, bounds = [run.batch_size for run in runs], [quantity.bound(run) for run in runs]
    axes.plot(sizes, bounds, color=color, ls="none", zorder=3, **ABANDONED)


def _set_values(axes: Axes, study_curves: list[Curve], quantity: Quantity) -> None:
    values = [
        found
        for curve in study_curves
        for point in curve.points
        for run in point.reached
        if (found := quantity.value(run))
    ]
    given_up = [run for curve in study_curves for point in curve.points for run in point.abandoned]
    values += [quantity.bound(run) for run in given_up]
    rows_of_unreached = _unreached_rows(study_curves)
    axes.set_yscale("log", base=2)
    if not values:
        axes.set_yticks([], minor=False)
        axes.minorticks_off()
        look: dict[str, Any] = {"ha": "center", "color": GRAY, "transform": axes.transAxes}
        axes.text(0.5, 0.45, "No run reached the threshold", **look)
        return
    low, high = np.log2(min(values)), np.log2(max(values))
    span = max(high - low, 2.0)
    low, high = (low + high - span) / 2, (low + high + span) / 2
    bottom = low - 0.08 * span
    top = high + span * (0.08 + 1.3 * UNREACHED_ROW * rows_of_unreached)
    axes.set_ylim(2**bottom, 2**top)
    band = UNREACHED_ROW * rows_of_unreached + 0.02 if rows_of_unreached else 0.0
    highest = top - band * (top - bottom)
    if quantity.per_step is None:  # a time, which people say in plain numbers
        set_round_ticks(axes.yaxis, 2**bottom, 2**highest)
    else:
        set_octaves(axes.yaxis, bottom, highest, 0.0)


def _names(
    study_curves: list[Curve], quantity: Quantity, markers: dict[str, str], colors: dict[str, str]
) -> list[Line2D]:
    handles = []
    fitted = quantity.per_step is not None
    empty = [curve for curve in study_curves if quantity.marked(curve) is None]
    folded = empty if len(empty) > MOST_UNREACHED_ROWS else []
    for curve in study_curves:
        if curve in folded:
            continue
        marked = quantity.marked(curve)
        words = "" if quantity.caveat else ": no minimum"
        if marked is not None:
            words = f": \N{BLACK STAR} {quantity.mark_label} at b = {marked.batch_size}"
        elif len(curve.points) == 1:
            words = f": only b = {curve.points[0].batch_size}"
        words += _note(curve) if fitted and curve.is_fitted else ""
        color, marker = colors[curve.variant], markers[curve.variant]
        if len(curve.variant) + len(words) > LEGEND_WIDTH:  # in a line of its own
            words = f"\n{words.removeprefix(': ')}"
        name = shorten(curve.variant, LEGEND_WIDTH)
        line = "none" if quantity.caveat else "-"
        handles.append(key(name + words, color=color, marker=marker, ms=3.8, ls=line))
    if folded:
        handles.append(key(f"{len(folded)} others: no minimum", ls="none"))
    return handles


def _note(curve: Curve) -> str:
    """What the curves say about b*."""
    found = curve.comparison
    if found.critical_batch is None:
        return f", no b*: P(minimum) {probability_in_words(found.probability)}"
    span = span_in_words(found.interval(LEVEL))
    return f", \N{BLACK DIAMOND} b* = {size_in_words(found.critical_batch)} ({span})"


def _keys(study_curves: list[Curve], quantity: Quantity) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    fitted = quantity.per_step is not None
    if any(curve.is_repeated for curve in study_curves):
        handles.append(key("median and range of runs", marker="|", ms=8, ls="none", mew=0.9))
    if fitted and any(curve.best for curve in study_curves):
        handles.append(key("perfect scaling", lw=0.8, ls=DASHED))
    if fitted and any(curve.is_fitted for curve in study_curves) and _are_shaded(study_curves):
        band = f"{percent(LEVEL)} band for the curve"
        handles.append(Patch(facecolor=GRAY, alpha=2 * BAND_ALPHA, label=band))
        further = f"{percent(LEVEL)} band for a new run"
        handles.append(Patch(facecolor=GRAY, alpha=2 * PREDICTION_ALPHA, label=further))
    if fitted and any(c.is_fitted and c.comparison.critical_batch for c in study_curves):
        handles.append(key(f"b*, {percent(LEVEL)} interval", marker="D", ms=4.2, lw=2.6))
    if any(curve.unreached for curve in study_curves):
        handles.append(key("threshold not reached", ls="none", marker="x", ms=4.5))
    if any(point.abandoned for curve in study_curves for point in curve.points):
        handles.append(key("abandoned: a lower bound", ls="none", **(ABANDONED | {"ms": 9})))
    if any(point.sliced and point.reached for curve in study_curves for point in curve.points):
        handles.append(key("in slices, seen by BatchNorm", ls="none", marker="o", **HOLLOW))
    return handles


def _title(study: str, study_curves: list[Curve]) -> str:
    seeds = seeds_of(study_curves)
    rule = f"rule {study_curves[0].rule}, " if study_curves else ""
    return f"{shorten(study)}: {rule}{seeds}"
