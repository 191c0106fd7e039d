"""Strips below a figure: which batch sizes cost little more than the best, and the paper's cells.

A cell of the paper's studies reached the threshold or not, in the paper and here.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.recommendation import Recommendation, percent
from cbs_lightning.reporting.colors import color_of
from cbs_lightning.reporting.figures.style import GRAY, key
from cbs_lightning.reporting.paper import PaperCell

RANGE_HEIGHT = 0.12  # inches, of a row
RANGE_MARGIN = 1.15  # by which a range is drawn beyond its batch sizes, to be seen if it is one
THICK_BAR, THIN_BAR = 3.2, 1.3  # points
SHADE = 0.05
FONT_SIZE = 5.5
RIGHT = 0.85  # share of the strip from which on a bar has its number at its left
PATTERN_HEIGHT = 0.14  # inches, of a row
REACHED: dict[str, Any] = {"marker": "o", "ms": 3.6}
MISSED: dict[str, Any] = {"marker": "x", "ms": 3.8, "mew": 1.1}
OPEN: dict[str, Any] = {"marker": "_", "ms": 3.6, "mec": "#999999", "mew": 0.7}


def ranges(curves: list[Curve], found: Sequence[Recommendation]) -> list[Recommendation]:
    """The answers for those of these curves that have several batch sizes and a range."""
    variants = {curve.variant for curve in curves if len(curve.points) > 1}
    return [one for one in found if one.variant in variants and one.range is not None]


def draw_ranges(strip: Axes, found: list[Recommendation], colors: dict[str, str]) -> None:
    """A row for each answer: a thick bar, and a thin one with its cost for the wider range."""
    for row, one in enumerate(found):
        color = colors[one.variant]
        for cheap, width in ((one.wider_range, THIN_BAR), (one.range, THICK_BAR)):
            if cheap is not None:
                ends = cheap.low / RANGE_MARGIN, cheap.high * RANGE_MARGIN
                strip.plot(ends, [-row, -row], color=color, lw=width, solid_capstyle="butt")
        if one.wider_range is not None:
            low = one.wider_range.low / RANGE_MARGIN
            high = one.wider_range.high * RANGE_MARGIN
            share = strip.transAxes.inverted().transform(strip.transData.transform((high, 0)))[0]
            place, align = (high * 1.04, "left") if share < RIGHT else (low / 1.04, "right")
            look: dict[str, Any] = {"fontsize": FONT_SIZE, "color": color, "va": "center_baseline"}
            strip.text(place, -row, percent(one.wider_range.within), ha=align, **look)
    strip.set_ylim(-len(found) + 0.05, 0.75)
    strip.set_yticks([-(len(found) - 1) / 2], ["range"], fontsize=6)
    strip.tick_params(axis="y", length=0)
    strip.grid(visible=False, axis="y")
    strip.spines["left"].set_visible(False)


def shade_ranges(axes: Axes, found: list[Recommendation], colors: dict[str, str]) -> None:
    """The same batch sizes, behind the curves."""
    for one in found:
        if one.range is not None:
            ends = one.range.low / RANGE_MARGIN, one.range.high * RANGE_MARGIN
            axes.axvspan(*ends, color=colors[one.variant], alpha=SHADE, lw=0, zorder=0.5)


def range_keys(found: list[Recommendation]) -> list[Line2D]:
    shares = sorted({one.range.within for one in found if one.range is not None})
    keys = [key(f"range: at most {percent(s)} more gradients", lw=THICK_BAR) for s in shares]
    wider = any(one.wider_range for one in found)
    return [*keys, *([key("range: at most the printed % more", lw=THIN_BAR)] if wider else [])]


def draw_pattern(axes: Axes, curves: list[Curve], paper: dict[str, list[PaperCell]]) -> None:
    """Draw two rows per optimizer: the paper's cells, and those measured here."""
    labels = []
    here = {curve.variant: curve for curve in curves}
    for number, (optimizer, cells) in enumerate(paper.items()):
        above, below = -2 * number, -2 * number - 1
        labels += [(above, f"{optimizer}: paper"), (below, "here")]
        points = {p.batch_size: p for p in here[optimizer].points} if optimizer in here else {}
        for cell in cells:
            look = REACHED if cell.reached else MISSED
            axes.plot(cell.batch_size, above, color=GRAY, ls="none", **look)
            point = points.get(cell.batch_size)
            known = point is not None and (
                point.reached or len(point.missed) > len(point.abandoned)
            )
            look = OPEN if not known else REACHED if point and point.all_reached else MISSED
            axes.plot(cell.batch_size, below, color=color_of(optimizer), ls="none", **look)
    axes.set_ylim(-2 * len(paper) + 0.4, 0.6)
    axes.set_yticks([place for place, _ in labels], [label for _, label in labels], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def pattern_keys() -> list[Line2D]:
    return [
        key("reached", ls="none", **REACHED),
        key("not measured yet", ls="none", **OPEN),
    ]
