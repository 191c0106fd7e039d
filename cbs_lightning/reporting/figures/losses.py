"""Loss against SFO for every batch size of one variant."""

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from cbs_lightning.analysis.loss_curves import LossCurve
from cbs_lightning.reporting.colors import color_of
from cbs_lightning.reporting.figures.style import (
    DASHED,
    GRAY,
    PLOT_HEIGHT,
    STYLE,
    WIDTH,
    add_legend,
    key,
    set_plain_log,
    set_round_ticks,
    shorten,
)
from cbs_lightning.results.result import seeds_of_cells

MOST_KEYS = 16
LEAST_WHITE, LEAST_BRIGHT = (
    0.45,
    0.65,
)  # in the lightest shade: share of white, mean of its channels
MOST_ABOVE = 1e4  # times the threshold: a spike would leave no room for anything else


def draw_losses(study: str, curves: list[LossCurve]) -> Figure:
    """Draw all runs of one variant, larger batches darker; a dot marks K."""
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, PLOT_HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        first = curves[0].result
        sizes = sorted({curve.result.batch_size for curve in curves})
        shades = _shades(color_of(first.optimizer), len(sizes))
        colors = [shades[sizes.index(curve.result.batch_size)] for curve in curves]
        lines = [np.column_stack((curve.sfo, curve.loss)) for curve in curves]
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=0.9, alpha=0.9))
        reached = [
            (result.sfo, result.loss, color)
            for result, color in zip((curve.result for curve in curves), colors, strict=True)
            if result.sfo is not None and result.loss is not None
        ]
        if reached:
            places, losses_met, own_colors = zip(*reached, strict=True)
            axes.scatter(places, losses_met, c=own_colors, s=11, lw=0, zorder=4)
        axes.axhline(first.threshold, color=GRAY, lw=0.8, ls=DASHED)
        losses = np.concatenate([curve.loss for curve in curves])
        spent = np.concatenate([curve.sfo for curve in curves])
        axes.set_xscale("log")
        axes.set_xlim(spent.min() / 1.2, spent.max() * 1.2)
        set_round_ticks(axes.xaxis, *axes.get_xlim())
        positive = losses[losses > 0]  # a loss of 0 has no place on this axis
        low, high = positive.min(initial=first.threshold), positive.max(initial=first.threshold)
        set_plain_log(axes, float(low), float(min(high, MOST_ABOVE * first.threshold)))
        axes.set_xlabel("SFO: steps so far times b")
        axes.set_ylabel(f"Training loss, rule {first.rule}")
        seeds = seeds_of_cells((c.result.batch_size, c.result.seed) for c in curves)
        axes.set_title(f"{shorten(f'{study}: {first.variant}', 44)}, {seeds}", loc="left")
        shown = range(0, len(sizes), 1 + (len(sizes) - 1) // MOST_KEYS)
        handles = [key(f"b = {sizes[i]}", color=shades[i]) for i in shown]
        handles.append(key(f"threshold {first.threshold:g}", lw=0.8, ls=DASHED))
        if reached:
            handles.append(key("reached", ls="none", marker="o", ms=3.4))
        add_legend(figure, (handles, 4))
    return figure


def _shades(color: str, count: int) -> list[tuple[float, float, float, float]]:
    """Shades of one optimizer's colour, from light to nearly black, evenly apart in brightness."""
    pure = np.array(to_rgb(color))
    white = max(LEAST_WHITE, (LEAST_BRIGHT - pure.mean()) / (1 - pure.mean()))
    shades = [white + (1 - white) * pure, pure, 0.25 * pure]
    brightness = np.array([shade.mean() for shade in shades])
    places = (brightness[0] - brightness) / (brightness[0] - brightness[-1])
    scale = LinearSegmentedColormap.from_list("shades", list(zip(places, shades, strict=True)))
    return [scale(place) for place in np.linspace(0, 1, count)]
