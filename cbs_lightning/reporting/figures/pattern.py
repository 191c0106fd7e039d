"""Which cells of the paper's studies reached the threshold, in the paper and here."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.reporting.colors import color_of
from cbs_lightning.reporting.figures.style import GRAY, key
from cbs_lightning.reporting.paper import PaperCell

ROW_HEIGHT = 0.14  # inches
REACHED: dict[str, Any] = {"marker": "o", "ms": 3.6}
MISSED: dict[str, Any] = {"marker": "x", "ms": 3.8, "mew": 1.1}
OPEN: dict[str, Any] = {"marker": "_", "ms": 3.6, "mec": "#999999", "mew": 0.7}


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
