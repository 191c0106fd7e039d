"""The common style of all figures, and how they are written."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from cbs_lightning.console import visible
from cbs_lightning.files import write_atomically
from cbs_lightning.reporting.colors import marks_of

GRAY = "#555555"
MARKERS = "os^vPhX<"  # a star is the least SFO, a diamond the fitted b*
DASHED = (0, (4, 3))
HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5, "markeredgewidth": 1.1}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.borderpad": 0.2,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # embedded TrueType
    "savefig.dpi": 300,
}
UNDATED = {"png": ["Software"], "pdf": ["CreationDate", "Producer", "Creator"]}  # left out
# In inches: a column of a paper, and both.
WIDTH, FULL_WIDTH, PLOT_HEIGHT, LEGEND_ROW_HEIGHT = 3.6, 7.2, 2.6, 0.133
KEY_WIDTH, NOTE_WIDTH = 0.37, 20  # of a legend: inches beside the text, characters per inch
LONGEST_NAME = 28  # characters of a study or a variant that are shown
UNREACHED_ROW = 0.045  # of the axes' height, at their top
MOST_UNREACHED_ROWS = 6  # of variants; the rest share the last


def shorten(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a name, which becomes text: matplotlib takes what is between dollars for mathematics,
    and cannot draw some characters."""
    name = visible(name)
    short = name if len(name) <= longest else f"{name[: longest - 3]}..."
    return short.replace("$", r"\$")


def key(label: str, **look: Any) -> Line2D:
    """A legend entry that applies to all optimizers."""
    return Line2D([], [], label=label, **({"color": GRAY} | look))


def note(text: str, width: float = WIDTH) -> Line2D:
    """A remark in a legend, without a mark, in as many lines as a figure of that width needs."""
    return key(fill(text, round(NOTE_WIDTH * (width - KEY_WIDTH))), ls="none")


def add_legend(figure: Figure, *groups: tuple[Sequence[Line2D | Patch], int]) -> None:
    """Add a legend below the figure, which grows; a group has at most its number of columns."""
    width, height = figure.get_size_inches()
    groups = tuple((own, _columns(own, most, width)) for own, most in groups if own)
    rows = [-(-sum(map(_lines, handles)) // columns) for handles, columns in groups]
    room = LEGEND_ROW_HEIGHT * sum(rows) + 0.05
    figure.set_size_inches(width, height + room)
    share = room / (height + room)
    figure.set_layout_engine("constrained", rect=(0, share, 1, 1 - share))
    top = share
    for (handles, columns), own in zip(groups, rows, strict=True):
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.02, top)}
        figure.legend(handles=handles, ncols=columns, borderaxespad=0.0, labelspacing=0.4, **place)
        top -= LEGEND_ROW_HEIGHT * own / (height + room)


def _columns(handles: Sequence[Line2D | Patch], most: int, width: float) -> int:
    """As many as the labels have room for, in inches."""
    widths = [_text_width(str(handle.get_label())) for handle in handles]
    for columns in range(most, 1, -1):
        widest = [max(own, default=0.0) for own in np.array_split(widths, columns)]
        if sum(KEY_WIDTH + each for each in widest) <= width:
            return columns
    return 1


def _text_width(label: str) -> float:
    """Of a legend's text, in inches."""
    lines = [line for line in label.split("\n") if line.strip()]
    size = STYLE["legend.fontsize"]
    extents = [TextPath((0, 0), line, size=size).get_extents() for line in lines]
    return max((float(each.width) for each in extents), default=0.0) / 72


def _lines(handle: Line2D | Patch) -> int:
    return 1 + str(handle.get_label()).count("\n")


def markers_of(variants: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Markers by variant, given pairs of variant and optimizer, which decides on the colour."""
    return {name: MARKERS[mark % len(MARKERS)] for name, mark in marks_of(variants).items()}


def set_octaves(
    axis: mpl.axis.Axis, low: float, high: float, margin: float, most: int = 13
) -> None:
    """Ticks at powers of two, `most` of them or fewer."""
    exponents = np.arange(np.ceil(low - margin), np.floor(high + margin) + 1)
    exponents = exponents[:: 1 + len(exponents) // most]
    axis.set_major_locator(FixedLocator(list(2.0**exponents)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"$2^{{{round(np.log2(x))}}}$"))


def set_batch_sizes(axes: Axes, sizes: Iterable[float], most: int = 13) -> None:
    """Set a logarithmic x axis with room for all batch sizes, and with one to `most` ticks."""
    sizes = list(sizes)
    low, high = np.log2(min(sizes)), np.log2(max(sizes))
    margin = max(0.4, 0.05 * (high - low))
    if np.ceil(low - margin) > np.floor(high + margin):
        margin = 0.5  # within half an octave there is a power of two
    axes.set_xscale("log", base=2)
    set_octaves(axes.xaxis, low, high, margin, most)
    axes.set_xlim(2 ** (low - margin), 2 ** (high + margin))


def draw_band(axes: Axes, height: float) -> None:
    """Draw the gray band at the top edge for missed thresholds, as a share of the height."""
    box: dict[str, Any] = {"facecolor": "#EFEFEF", "lw": 0, "zorder": 0}
    axes.add_patch(Rectangle((0, 1 - height), 1, height, transform=axes.transAxes, **box))


def draw_unreached(
    axes: Axes,
    sizes: list[int],
    row: int,
    color: str,
    label: str = "",
    fontsize: float = 5,
    row_height: float = UNREACHED_ROW,
) -> None:
    """Crosses in a row of that band, at batch sizes that did not reach the threshold."""
    height = 1 - row_height * (row + 0.6)
    if label:
        look: dict[str, Any] = {"fontsize": fontsize, "color": color, "transform": axes.transAxes}
        axes.text(1.01, height, label, va="center", **look)
    cross: dict[str, Any] = {"marker": "x", "ms": 4.2, "mew": 1.2, "clip_on": False}
    place = axes.get_xaxis_transform()
    axes.plot(sizes, [height] * len(sizes), ls="none", color=color, transform=place, **cross)


def set_plain_log(axes: Axes, low: float, high: float, band: float = 0.0) -> None:
    """Set a logarithmic y axis with a few round numbers, even over less than a decade.

    `band` is the share of its height that stays free at the top.
    """
    axes.set_yscale("log")
    margin = 0.12 * max(np.log(high / low), 0.3)
    low, high = low * np.exp(-margin), high * np.exp(margin)
    axes.set_ylim(low, high * (high / low) ** (band / (1 - band)))
    set_round_ticks(axes.yaxis, low, high)


def set_round_ticks(axis: mpl.axis.Axis, low: float, high: float) -> None:
    """Set as many round ticks as fit; a label takes up to an eighth of the axis."""
    fine = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    choices = (fine, (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 6, 8), (1, 2, 3, 5, 7))
    for digits in (*choices, (1, 2, 5), (1, 3), (1,)):
        ticks = [d * 10.0**e for e in range(-6, 12) for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) < 2 or np.diff(np.log(ticks)).min() >= np.log(high / low) / 8:
            break
    axis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 7]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda y, _: round_number(y)))


def round_number(value: float) -> str:
    """A tick's label, in full below a million: 0.5, 20,000, 1.5M."""
    return f"{value:,g}" if value < 1e6 else f"{value / 1e6:,g}M"


def write_figure(figure: Figure, stem: Path, forms: Sequence[str] = tuple(UNDATED)) -> list[Path]:
    """Write a figure as PNG and PDF; the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for form in forms:
        undated = UNDATED[form]
        picture = BytesIO()
        with mpl.rc_context(STYLE):
            figure.savefig(picture, format=form, metadata=dict.fromkeys(undated))
        figure.set_layout_engine("none")  # as it is laid out now
        paths.append(stem.with_name(f"{stem.name}.{form}"))
        write_atomically(paths[-1], picture.getvalue())
    return paths
