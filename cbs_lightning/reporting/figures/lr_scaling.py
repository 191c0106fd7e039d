"""How much of b* is due to a fixed learning rate: SFO with fixed, scaled and tuned rates."""

from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cbs_lightning.analysis.curves import Curve, seeds_of
from cbs_lightning.analysis.lr_comparison import LrComparison, lr_of
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.reporting.colors import color_of
from cbs_lightning.reporting.figures.style import (
    GRAY,
    PLOT_HEIGHT,
    STYLE,
    UNREACHED_ROW,
    WIDTH,
    add_legend,
    draw_band,
    draw_unreached,
    key,
    set_batch_sizes,
    set_plain_log,
    shorten,
)

NAMES = {
    Scaling.NONE: "fixed",
    Scaling.SQRT: "sqrt",
    Scaling.LINEAR: "linear",
    Scaling.TUNED: "tuned",
}
LEAST_ROW, RATES_HEIGHT = 0.14, 1.15  # inches
TRIED = "#BBBBBB"
LIGHTER = 0.35  # of white in what is scaled by a rule


def draw_lr_scaling(study: str, compared: LrComparison) -> Figure:
    """Draw SFO against batch size on top, b* of each curve below, and then the learning rates."""
    curves = compared.curves
    looks = _looks(color_of(compared.optimizer))
    with mpl.rc_context(STYLE):
        heights = [PLOT_HEIGHT, LEAST_ROW * (len(curves) + 1), RATES_HEIGHT]
        figure = Figure((WIDTH, sum(heights)), layout="constrained")
        upper, middle, lower = figure.subplots(3, height_ratios=heights)
        sizes = {point.batch_size for curve in curves.values() for point in curve.points}
        for axes in (upper, middle, lower):
            set_batch_sizes(axes, sizes)
            axes.tick_params(labelbottom=axes is lower)
        _set_values(upper, list(curves.values()))
        for scaling, curve in curves.items():
            _draw_sfo(upper, curve, looks[scaling])
        _draw_unreached(upper, compared, looks)
        _draw_least(middle, compared, looks)
        _draw_rates(lower, compared, looks)
        first = next(iter(curves.values()))
        upper.set_ylabel(f"SFO complexity K·b to loss ≤ {first.threshold:g}")
        lower.set_ylabel("Learning rate")
        lower.set_xlabel("Batch size b")
        seeds = seeds_of(curves.values())
        name = shorten(f"{study}: {compared.variant}", 36)
        upper.set_title(f"{name}, rule {first.rule}, {seeds}", loc="left")
        names = [_name(scaling, curve, looks[scaling]) for scaling, curve in curves.items()]
        add_legend(figure, (names, 1), (_keys(compared), 2))
    return figure


def _looks(color: str) -> dict[Scaling, dict[str, Any]]:
    """Gray for fixed rates, the optimizer's own colour for tuned ones."""
    red, green, blue = (part + LIGHTER * (1 - part) for part in to_rgb(color))
    light = to_hex((red, green, blue))
    return {
        Scaling.NONE: {"color": GRAY, "marker": "o", "ls": "-"},
        Scaling.SQRT: {"color": light, "marker": "s", "ls": (0, (3, 1.5))},
        Scaling.LINEAR: {"color": light, "marker": "^", "ls": (0, (1, 1.2))},
        Scaling.TUNED: {"color": color, "marker": "P", "ls": "-", "lw": 1.8},
    }


def _draw_sfo(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    reached = [(point, point.sfo) for point in curve.points if point.sfo is not None]
    if not reached:
        return
    sizes = [point.batch_size for point, _ in reached]
    axes.plot(sizes, [sfo for _, sfo in reached], ms=3.8, zorder=3, **look)
    for point, _ in reached:
        if len(point.reached) > 1:
            spent = [run.sfo or 0 for run in point.reached]
            axes.vlines(point.batch_size, min(spent), max(spent), color=look["color"], lw=0.9)


def _draw_least(axes: Axes, compared: LrComparison, looks: dict[Scaling, dict[str, Any]]) -> None:
    """Draw b* in one row per curve, because several may be at the same batch size."""
    names = [NAMES[scaling] for scaling in compared.curves]
    for row, (scaling, curve) in enumerate(compared.curves.items()):
        if curve.best is not None:
            color = looks[scaling]["color"]
            face = "white" if curve.best_at_edge else color
            axes.plot(curve.best.batch_size, row, marker="*", ms=8, color=color, mfc=face)
    axes.set_yticks(range(len(names)), names, fontsize=6.5)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("b*")


def _draw_rates(axes: Axes, compared: LrComparison, looks: dict[Scaling, dict[str, Any]]) -> None:
    rates_by_scaling = {
        scaling: {point.batch_size: lr_of(point) for point in curve.points}
        for scaling, curve in compared.curves.items()
    }
    rates = [lr for own in rates_by_scaling.values() for lr in own.values()]
    if compared.tuned is not None:
        tried = [(b, lr) for b, own in compared.tuned.tried.items() for lr in own]
        sizes, others = zip(*tried, strict=True)
        axes.scatter(sizes, others, s=6, color=TRIED, lw=0, zorder=1)
        rates += others
        rates_by_scaling[Scaling.TUNED] = compared.tuned.best_rates
    for scaling, own in rates_by_scaling.items():
        axes.plot(list(own), list(own.values()), ms=3.2, zorder=3, **looks[scaling])
    set_plain_log(axes, min(rates), max(rates))


def _draw_unreached(
    axes: Axes, compared: LrComparison, looks: dict[Scaling, dict[str, Any]]
) -> None:
    missed = [(s, curve) for s, curve in compared.curves.items() if curve.unreached]
    if missed:
        draw_band(axes, UNREACHED_ROW * len(missed) + 0.01)
    for row, (scaling, curve) in enumerate(missed):
        sizes = [point.batch_size for point in curve.unreached]
        color = looks[scaling]["color"]
        draw_unreached(axes, sizes, row, color, NAMES[scaling], fontsize=5.5)


def _set_values(axes: Axes, curves: list[Curve]) -> None:
    spent = [
        run.sfo for curve in curves for point in curve.points for run in point.reached if run.sfo
    ]
    rows = sum(bool(curve.unreached) for curve in curves)
    set_plain_log(axes, min(spent, default=1), max(spent, default=2), UNREACHED_ROW * rows)


def _name(scaling: Scaling, curve: Curve, look: dict[str, Any]) -> Line2D:
    least = curve.best
    note = f"least at b = {least.batch_size}, K·b = {least.sfo:,.0f}" if least else "not reached"
    return key(f"{NAMES[scaling]}: {note}", ms=3.8, **look)


def _keys(compared: LrComparison) -> list[Line2D]:
    curves = compared.curves.values()
    handles = []
    if any(curve.best and not curve.best_at_edge for curve in curves):
        handles.append(key("least SFO", ls="none", marker="*", ms=8))
    if any(curve.best_at_edge for curve in curves):
        handles.append(key("at the edge of those run", ls="none", marker="*", ms=8, mfc="white"))
    if compared.tuned is not None:
        handles.append(key("tried in tuning", ls="none", marker="o", ms=2.4, color=TRIED))
    if any(curve.unreached for curve in curves):
        handles.append(key("threshold not reached", ls="none", marker="x", ms=4.5))
    if any(curve.is_repeated for curve in curves):
        handles.append(key("median and range of runs", marker="|", ms=8, ls="none", mew=0.9))
    return handles
