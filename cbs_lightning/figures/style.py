"""One style for all figures, and how they are written."""

from collections.abc import Iterable
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
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
