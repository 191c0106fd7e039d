"""The paper's times and training accuracies beside those measured here."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.figures.style import (
    HOLLOW,
    STYLE,
    WIDTH,
    add_legend,
    key,
    markers_of,
    note,
    set_batch_sizes,
    set_plain_log,
    shorten,
)
from cbs_lightning.reporting.tables import Row

PANEL_HEIGHT = 1.7  # inches


def draw_beside_paper(study: str, rows: list[Row], seconds_caveat: str = "") -> Figure:
    """Draw every cell that reached the threshold: the paper's hollow, those run here filled.

    `seconds_caveat` says why the seconds measured here cannot be compared: then no line joins them.
    """
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, 2 * PANEL_HEIGHT + 0.3), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        variants = list(dict.fromkeys(row.variant for row in rows))
        colors = colors_of((variant, variant) for variant in variants)
        markers = markers_of((variant, variant) for variant in variants)
        times, accuracies = [], []
        for variant in variants:
            own = [row for row in rows if row.variant == variant]
            color, marker = colors[variant], markers[variant]
            paper = [(row.batch_size, row.paper) for row in own if row.paper and row.paper.reached]
            here = [row for row in own if row.steps is not None]
            theirs = [(b, cell.seconds, cell.accuracy) for b, cell in paper]
            ours = [(row.batch_size, row.seconds, row.accuracy) for row in here]
            for found, hollow in ((theirs, True), (ours, False)):
                seconds = [(b, t) for b, t, _ in found]
                joined = hollow or not seconds_caveat
                times += _draw(upper, seconds, color, marker, hollow, joined=joined)
                shares = [(b, a and 100 * a) for b, _, a in found]
                accuracies += _draw(lower, shares, color, marker, hollow)
        for axes in (upper, lower):
            set_batch_sizes(axes, {row.batch_size for row in rows})
        set_plain_log(upper, min(times), max(times))
        upper.set_ylabel("Training time (s)")
        lower.set_ylabel("Training accuracy (%)")
        lower.set_xlabel("Batch size b")
        upper.set_title(f"{shorten(study)}: beside the paper's tables", loc="left")
        handles = [key(shorten(v), color=colors[v], marker=markers[v], ms=3.8) for v in variants]
        sources = [
            key("here", marker="o", ms=3.8),
            key("the paper, on a V100 GPU", marker="o", ls=":", lw=0.8, **HOLLOW),
        ]
        notes = [note(f"Times here are {seconds_caveat}")] if seconds_caveat else []
        add_legend(figure, (handles, 3), (sources, 3), (notes, 1))
    return figure


def _draw(
    axes: Axes,
    found: list[tuple[int, float | None]],
    color: str,
    marker: str,
    hollow: bool,
    *,
    joined: bool = True,
) -> list[float]:
    """Draw one curve; return its values."""
    known = [(size, value) for size, value in found if value is not None]
    if not known:
        return []
    look = {"ls": ":", "lw": 0.8, **HOLLOW} if hollow else {"ms": 3.8, "zorder": 3}
    look |= {} if joined else {"ls": "none"}
    axes.plot(*zip(*known, strict=True), color=color, marker=marker, **look)
    return [value for _, value in known]
