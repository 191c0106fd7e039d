"""Places labels beside points so that they cover no points, lines or other labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

FONT_SIZE = 5.5  # points, as all lengths here
CHARACTER = 0.62 * FONT_SIZE
HEIGHT = 1.1 * FONT_SIZE
MARGIN = 1.2  # around a mark
DISTANCES = (5.0, 8.0, 12.0)
DIRECTIONS = tuple(np.deg2rad((45, 0, -45, 135, 180, -135, 90, -90)))
OUTSIDE = 2.0  # how far a label may lie beyond the axes
END_SIZE, BESIDE = 6, 0.04  # points; of the axes' width, from a curve's end to its name

Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Label:
    text: str
    place: tuple[float, float]  # of its point, in data
    color: str


@dataclass(frozen=True)
class End:
    """Where a curve ends: at a value or, above all values, at a height of the axes."""

    text: str
    color: str
    size: float  # on the x axis
    value: float | None = None
    height: float = 1.0


def add_labels(figure: Figure, labels: Mapping[Axes, Sequence[Label]]) -> None:
    """Add the labels that have room, the first ones first, to an otherwise finished figure."""
    figure.draw_without_rendering()  # lays it out
    for axes, wanted in labels.items():
        points, lines = _drawn(axes)
        taken: list[Box] = []
        for label in wanted:
            offset = _offset(axes, label.text, label.place, points, lines, taken)
            if offset is not None:
                _annotate(axes, label, offset)


def write_beside(axes: Axes, ends: Sequence[End], height: float) -> None:
    """Write names to the right of all that is drawn, moved apart to this height in inches each; the
    figure is laid out."""
    if not ends:
        return
    to_share = axes.transData + axes.transAxes.inverted()
    places = []
    for end in ends:
        x, y = to_share.transform((end.size, end.value if end.value is not None else 1.0))
        places.append((float(y) if end.value is not None else end.height, float(x), end))
    places.sort(key=lambda place: place[:2])
    left = _right_of_all(axes) + BESIDE
    gap = height * axes.figure.dpi / axes.get_window_extent().height
    for wanted, (y, x, end) in zip(spread([y for y, *_ in places], gap), places, strict=True):
        line = {"arrowstyle": "-", "color": end.color, "lw": 0.4, "alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            end.text,
            xy=(x, y),
            xytext=(left, wanted),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=END_SIZE,
            color=end.color,
            va="center",
            arrowprops=line,
        ).set_in_layout(False)


def _right_of_all(axes: Axes) -> float:
    """Of the marks and lines that are drawn, as a share of the axes."""
    points, lines = _drawn(axes)
    right = max(float(places[:, 0].max()) for places in (points, lines) if len(places))
    extent = axes.get_window_extent()
    return float((right * axes.figure.dpi / 72 - extent.x0) / extent.width)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights at least `gap` apart within [0, 1], close to those wanted, which are sorted.

    >>> [round(height, 2) for height in spread([0.1, 0.5, 0.5, 1.0], gap=0.2)]
    [0.1, 0.5, 0.7, 0.9]
    """
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + gap if found else gap / 2))
    highest = 1 - gap / 2
    for number in reversed(range(len(found))):
        found[number] = min(found[number], highest)
        highest = found[number] - gap
    return found


def _annotate(axes: Axes, label: Label, offset: tuple[float, float]) -> None:
    axes.annotate(
        label.text,
        label.place,
        xytext=offset,
        textcoords="offset points",
        fontsize=FONT_SIZE,
        color=label.color,
        ha="center",
        va="center",
    ).set_in_layout(False)


def _offset(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    points: NDArray[np.float64],
    lines: NDArray[np.float64],
    taken: list[Box],
) -> tuple[float, float] | None:
    """From the place to the middle of the text; `taken` grows by the text's box.

    `points` are the middles of marks, with half their widths in a third column.
    """
    center = _in_points(axes, np.array([place]))[0]
    half = np.array([CHARACTER * len(text), HEIGHT]) / 2
    extent = np.asarray(axes.get_window_extent().extents) * 72 / axes.figure.dpi
    best: tuple[int, Box, tuple[float, float]] | None = None
    for distance in DISTANCES:
        for angle in DIRECTIONS:
            way = np.array([np.cos(angle), np.sin(angle)])
            offset = way * (distance + half * np.abs(way))
            low, high = center + offset - half, center + offset + half
            box = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
            inside = (low >= extent[:2] - OUTSIDE).all() and (high <= extent[2:] + OUTSIDE).all()
            if not inside or any(_overlap(box, other) for other in taken):
                continue
            if _count(points, box, points[:, 2] + MARGIN):
                continue
            crossed = _count(lines, box, 0.5)
            if best is None or crossed < best[0]:
                best = crossed, box, (float(offset[0]), float(offset[1]))
    if best is None:
        return None
    taken.append(best[1])
    return best[2]


def _drawn(axes: Axes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where marks are, and closely spaced places on the lines between them."""
    points, lines = [np.empty((0, 3))], [np.empty((0, 2))]
    for line in axes.lines:
        places = _in_points(axes, np.column_stack(line.get_data()).astype(float))
        places = places[np.isfinite(places).all(axis=1)]
        if line.get_marker() not in (None, "None", ""):
            half = np.full(len(places), line.get_markersize() / 2)
            points.append(np.column_stack((places, half)))
        if line.get_linestyle() not in (None, "None", "") and len(places) > 1:
            shares = np.linspace(0, len(places) - 1, 400)
            along = [np.interp(shares, np.arange(len(places)), places[:, axis]) for axis in (0, 1)]
            lines.append(np.column_stack(along))
    return np.concatenate(points), np.concatenate(lines)


def _in_points(axes: Axes, places: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = axes.transData.transform(places) * 72 / axes.figure.dpi
    return found


def _overlap(one: Box, other: Box) -> bool:
    apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return not apart


def _count(places: NDArray[np.float64], box: Box, margin: float | NDArray[np.float64]) -> int:
    x, y = places[:, 0], places[:, 1]
    across = (x > box[0] - margin) & (x < box[2] + margin)
    return int((across & (y > box[1] - margin) & (y < box[3] + margin)).sum())
