"""One style for all figures, and how they are written."""

from collections.abc import Iterable
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from cbs_lightning.storage import write_atomically

# Okabe and Ito's colours, which the colour-blind can tell apart; one per optimizer, everywhere.
COLORS = {
    "sgd": "#0072B2",
    "momentum": "#D55E00",
    "adam": "#009E73",
    "momentum_ema": "#E69F00",
    "amsgrad": "#56B4E9",
    "adam_monotone": "#CC79A7",
    "adamw": "#000000",
}
OTHER_COLORS = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#661100")  # Paul Tol's
MARKERS = "osD^vPhX"
DASHED = (0, (4, 3))
HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markersize": 6, "markeredgewidth": 1.3}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,  # embedded TrueType
    "savefig.dpi": 200,
}
UNDATED = {"png": ["Software"], "pdf": ["CreationDate", "Producer", "Creator"]}  # left out
WIDTH, PLOT_HEIGHT, LEGEND_ROW_HEIGHT = 5.4, 3.3, 0.19  # inches
UNREACHED_ROW = 0.04  # of the axes' height, at their top


def markers_of(variants: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By variant, given pairs of variant and optimizer: those of one optimizer share its colour."""
    numbers: dict[str, count[int]] = {}
    return {
        variant: MARKERS[next(numbers.setdefault(optimizer, count())) % len(MARKERS)]
        for variant, optimizer in variants
    }


def colors_of(optimizers: Iterable[str]) -> dict[str, str]:
    """By optimizer; those that have no colour of their own take the others in turn."""
    others = sorted(set(optimizers) - COLORS.keys())
    return COLORS | dict(zip(others, cycle(OTHER_COLORS), strict=False))


def set_octaves(axis: mpl.axis.Axis, low: float, high: float, margin: float) -> None:
    exponents = np.arange(np.ceil(low - margin), np.floor(high + margin) + 1)
    exponents = exponents[:: 1 + len(exponents) // 13]
    axis.set_major_locator(FixedLocator(list(2.0**exponents)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"$2^{{{round(np.log2(x))}}}$"))


def draw_band(axes: Axes, height: float) -> None:
    """The gray at the top edge where what was not reached stands; a share of the axes' height."""
    box: dict[str, Any] = {"facecolor": "#EFEFEF", "lw": 0, "zorder": 0}
    axes.add_patch(Rectangle((0, 1 - height), 1, height, transform=axes.transAxes, **box))


def set_plain_log(axes: Axes, low: float, high: float, band: float = 0.0) -> None:
    """A logarithmic y axis with a few round numbers, also where it spans less than a decade.

    `band`: the share of its height that stays free at the top."""
    axes.set_yscale("log")
    margin = 0.12 * max(np.log(high / low), 0.3)
    low, high = low * np.exp(-margin), high * np.exp(margin)
    axes.set_ylim(low, high * (high / low) ** (band / (1 - band)))
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [d * 10.0**e for e in range(-6, 10) for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) <= 6:
            break
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def write_figure(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and PDF; the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for form, undated in UNDATED.items():
        picture = BytesIO()
        with mpl.rc_context(STYLE):
            figure.savefig(picture, format=form, metadata=dict.fromkeys(undated))
        paths.append(stem.with_suffix(f".{form}"))
        write_atomically(paths[-1], picture.getvalue())
    return paths
