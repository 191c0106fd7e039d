"""What probes measured against the loss, and b* predicted from single runs beside b* measured."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from cbs_lightning.analysis.recommendation import LEVEL, Recommendation, percent
from cbs_lightning.console import count_of
from cbs_lightning.noise.record import NoiseRecord, Probe
from cbs_lightning.reporting.colors import colors_of
from cbs_lightning.reporting.figures.style import (
    DASHED,
    FULL_WIDTH,
    GRAY,
    PLOT_HEIGHT,
    STYLE,
    add_legend,
    key,
    markers_of,
    set_octaves,
    set_round_ticks,
    shorten,
)

ROOM = 1.6  # factor by which the axis of batch sizes goes beyond what is drawn
SPREAD = 0.5  # of a variant's place, over which its predictions lie side by side
LONGEST_NAME = 22  # characters of a variant below its place


def draw_noise(
    study: str, records: Mapping[str, NoiseRecord], found: list[Recommendation]
) -> Figure | None:
    """Batch sizes that probes name, against loss and beside the measured ones; None without any."""
    shown = [one for one in found if any(each.critical_batch for each in one.predictions)]
    runs = {one.variant: [records[each.config_hash] for each in one.predictions] for one in shown}
    if not shown:
        return None
    with mpl.rc_context(STYLE):
        colors = colors_of((one.variant, one.optimizer) for one in shown)
        markers = markers_of((one.variant, one.optimizer) for one in shown)
        figure = Figure((FULL_WIDTH, PLOT_HEIGHT), layout="constrained")
        by_loss, beside = figure.subplots(1, 2, sharey=True)
        for one in shown:
            for record in runs[one.variant]:
                _draw_run(by_loss, record, colors[one.variant], markers[one.variant])
        for place, one in enumerate(shown):
            _draw_variant(beside, place, one, colors[one.variant])
        _set_axes(by_loss, beside, shown)
        by_loss.axvline(shown[0].threshold, color=GRAY, lw=0.8, ls=DASHED)
        count = count_of(sum(len(own) for own in runs.values()), "run")
        by_loss.set_title(f"{shorten(study)}: probes of {count}", loc="left")
        beside.set_title(f"b* to loss ≤ {shown[0].threshold:g}", loc="left")
        names = [
            key(shorten(c.variant), color=colors[c.variant], marker=markers[c.variant], ms=3.4)
            for c in shown
        ]
        add_legend(figure, (names, 5), (_keys(shown), 3))
    return figure


def _draw_run(axes: Axes, record: NoiseRecord, color: str, marker: str) -> None:
    """The noise level over the loss, which b* is predicted from, and the gradient noise scale."""
    for quantity, look in ((_relative_level, "-"), (_b_simple, ":")):
        points = [(p.loss, value) for p in record.probes if (value := quantity(p)) and p.loss > 0]
        if points:
            dots: dict[str, Any] = {"marker": marker, "ms": 2.4} if look == "-" else {}
            axes.plot(*zip(*points, strict=True), color=color, ls=look, lw=0.9, **dots)


def _relative_level(probe: Probe) -> float | None:
    if probe.eta is None or probe.preconditioned_noise_trace is None or probe.loss <= 0:
        return None
    level = probe.eta * probe.preconditioned_noise_trace / 4 / probe.loss
    return level if level > 0 else None


def _b_simple(probe: Probe) -> float | None:
    return probe.b_simple


def _draw_variant(axes: Axes, place: int, one: Recommendation, color: str) -> None:
    """Measured at the left of the variant's place, predictions to the right of it."""
    line: dict[str, Any] = {"color": color, "solid_capstyle": "butt"}
    known = one.least_sfo is not None and len(one.batch_sizes) > 1
    left = place - SPREAD / 2
    if known and one.least_sfo is not None:
        if one.interval != (0.0, math.inf):
            low, high = one.interval
            axes.plot([left, left], [low or 1e-9, min(high, 1e15)], lw=4, alpha=0.35, **line)
        axes.plot(left, one.least_sfo.batch_size, color=color, marker="*", ms=7, zorder=4)
    places = np.linspace(place - SPREAD / 4, place + SPREAD / 2, len(one.predictions) + 1)[1:]
    for x, each in zip(places, one.predictions, strict=True):
        if each.critical_batch is not None and each.interval is not None:
            axes.plot([x, x], each.interval, lw=0.9, **line)
            axes.plot(x, each.critical_batch, color=color, marker="D", ms=3.8, zorder=4)
        if each.b_simple is not None:
            axes.plot(x, each.b_simple, color=color, marker="x", ms=4, ls="none")


def _set_axes(by_loss: Axes, beside: Axes, shown: list[Recommendation]) -> None:
    sizes = [*_drawn_sizes(shown)]
    by_loss.set_yscale("log", base=2)  # B_simple of single probes may leave it
    low, high = min(sizes) / ROOM, max(sizes) * ROOM**2
    by_loss.set_ylim(low, high)
    set_octaves(by_loss.yaxis, math.log2(low), math.log2(high), 0.0)
    by_loss.set_xscale("log")
    losses = by_loss.get_xlim()
    set_round_ticks(by_loss.xaxis, *losses)
    by_loss.set_xlim(*reversed(losses))
    by_loss.set_xlabel("Training loss (falling to the right)")
    by_loss.set_ylabel("Batch size")
    beside.set_xlim(-0.6, len(shown) - 0.4)
    beside.set_xticks(
        range(len(shown)),
        [shorten(one.variant, LONGEST_NAME) for one in shown],
        rotation=40 if len(shown) > 2 else 0,
        ha="right" if len(shown) > 2 else "center",
        fontsize=6,
    )
    beside.xaxis.set_minor_locator(NullLocator())


def _drawn_sizes(shown: list[Recommendation]) -> Iterable[float]:
    for one in shown:
        for each in one.predictions:
            yield from (size for size in (each.critical_batch, each.b_simple) if size)
            yield from (end for end in each.interval or () if 0 < end < math.inf)
        if one.least_sfo is not None:
            yield one.least_sfo.batch_size


def _keys(shown: list[Recommendation]) -> list[Any]:
    measured = any(one.least_sfo is not None and len(one.batch_sizes) > 1 for one in shown)
    handles = [
        key("noise level over loss, by loss", marker="o", ms=2.4, lw=0.9),
        key("gradient noise scale B_simple, by loss", ls=":", lw=0.9),
        key("the same over the run", ls="none", marker="x", ms=4),
        key(f"b* predicted from one run, {percent(LEVEL)} interval", marker="D", ms=3.8, lw=0.9),
    ]
    if measured:
        handles.append(key("least SFO of those run", ls="none", marker="*", ms=7))
        handles.append(key(f"b* measured, {percent(LEVEL)} interval", lw=4, alpha=0.35))
    return handles
