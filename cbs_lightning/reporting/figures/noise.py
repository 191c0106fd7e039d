"""What probes measured against the loss, and b* predicted from single runs beside b* measured."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
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
FAINT = 0.55  # of the gradient noise scale's lines, which are beside the point
NOTHING, ENDLESS = 1e-9, 1e15  # open ends, far outside of what is drawn
CROSS = 6  # points: to be seen around a prediction at the same place
LONGEST_NAME = 26  # characters of a variant below its place
ROOM_FOR_NAMES = 60  # characters that have room beside each other


def draw_noise(
    study: str, records: Mapping[str, NoiseRecord], found: list[Recommendation]
) -> Figure | None:
    """What probes measured, against loss, and b* predicted beside b* measured; None without any."""
    runs = {
        one.variant: [own for each in one.predictions if (own := records[each.config_hash]).probes]
        for one in found
    }
    shown = [one for one in found if runs[one.variant]]
    if not shown:
        return None
    with mpl.rc_context(STYLE):
        colors = colors_of((one.variant, one.optimizer) for one in shown)
        markers = markers_of((one.variant, one.optimizer) for one in shown)
        figure = Figure((FULL_WIDTH, 2 * PLOT_HEIGHT), layout="constrained")
        (by_loss, beside), (gains, scales) = figure.subplots(2, 2)
        by_loss.sharey(beside)
        for one in shown:
            look = {"color": colors[one.variant], "marker": markers[one.variant]}
            for record in runs[one.variant]:
                _draw_sizes(by_loss, record, **look)
                _draw_gains(gains, record, **look)
                _draw_scales(scales, record, **look)
        for place, one in enumerate(shown):
            _draw_variant(beside, place, one, colors[one.variant])
        drawn = list(chain.from_iterable(runs.values()))
        _set_sizes(by_loss, beside, shown, drawn)
        _set_values(gains, scales)
        for axes in (by_loss, gains, scales):
            axes.axvline(shown[0].threshold, color=GRAY, lw=0.8, ls=DASHED)
            _set_losses(axes)
        count = count_of(len(drawn), "run")
        what = "Noise level over loss (solid), B_simple (dotted)"
        by_loss.set_title(f"{shorten(study)}: probes of {count}\n{what}", loc="left")
        beside.set_title(f"b* to loss ≤ {shown[0].threshold:g}", loc="left")
        names = [
            key(shorten(c.variant), color=colors[c.variant], marker=markers[c.variant], ms=3.4)
            for c in shown
        ]
        add_legend(figure, (names, 5), (_keys(shown, drawn), 3))
    return figure


def _draw_sizes(axes: Axes, record: NoiseRecord, color: str, marker: str) -> None:
    """The noise level over the loss, which b* is predicted from, the gradient noise scale, and what
    branches say."""
    look: dict[str, Any] = {"color": color, "lw": 0.9}
    axes.plot(*_points(record, _relative_level), marker=marker, ms=2.4, **look)
    axes.plot(*_points(record, _b_simple), ls=":", alpha=FAINT, **look)
    for probe in record.probes:
        local, interval = probe.local_critical_batch, probe.local_critical_batch_interval
        if local is not None and probe.loss > 0:
            axes.plot(probe.loss, local, color=color, marker="_", ms=7, mew=1.6, ls="none")
            low, high = interval or (local, local)
            ends = [max(low, NOTHING), min(high, ENDLESS)]
            axes.plot([probe.loss, probe.loss], ends, alpha=FAINT, **look)


def _draw_gains(axes: Axes, record: NoiseRecord, color: str, marker: str) -> None:
    """a and c/b, by trial steps, or by the optimizer's own where it has no metric."""

    def gain(probe: Probe) -> float | None:
        return probe.a_own if probe.a_trial is None else probe.a_trial

    def loss(probe: Probe) -> float | None:
        c = probe.c_own if probe.c_trial is None else probe.c_trial
        return c / record.batch_size if c is not None else None

    axes.plot(*_points(record, gain), color=color, lw=0.9, marker=marker, ms=2.4)
    axes.plot(*_points(record, loss), color=color, lw=0.9, ls="--", alpha=FAINT)


def _draw_scales(axes: Axes, record: NoiseRecord, color: str, marker: str) -> None:
    look: dict[str, Any] = {"color": color, "lw": 0.9}
    axes.plot(*_points(record, _l1_scale), marker=marker, ms=2.4, **look)
    axes.plot(*_points(record, _b_simple), ls=":", alpha=FAINT, **look)


def _points(
    record: NoiseRecord, quantity: Callable[[Probe], float | None]
) -> tuple[list[float], list[float]]:
    found = [(p.loss, value) for p in record.probes if (value := quantity(p)) is not None]
    kept = [pair for pair in found if pair[0] > 0]
    return [loss for loss, _ in kept], [value for _, value in kept]


def _relative_level(probe: Probe) -> float | None:
    if probe.step_noise is None or probe.loss <= 0:
        return None
    level = probe.step_noise / 4 / probe.loss
    return level if level > 0 else None


def _b_simple(probe: Probe) -> float | None:
    return probe.b_simple


def _l1_scale(probe: Probe) -> float | None:
    return probe.l1_noise_scale


def _draw_variant(axes: Axes, place: int, one: Recommendation, color: str) -> None:
    """Measured at the left of the variant's place, predictions to the right of it."""
    line: dict[str, Any] = {"color": color, "solid_capstyle": "butt"}
    known = one.least_sfo is not None and len(one.batch_sizes) > 1
    left = place - SPREAD / 2
    if known and one.least_sfo is not None:
        if one.interval != (0.0, math.inf):
            low, high = one.interval
            axes.plot([left, left], [low or NOTHING, min(high, ENDLESS)], lw=4, alpha=0.35, **line)
        axes.plot(left, one.least_sfo.batch_size, color=color, marker="*", ms=7, zorder=4)
    places = np.linspace(place - SPREAD / 4, place + SPREAD / 2, len(one.predictions) + 1)[1:]
    for x, each in zip(places, one.predictions, strict=True):
        if each.critical_batch is not None:
            if each.interval is not None:
                axes.plot([x, x], each.interval, lw=0.9, **line)
            axes.plot(x, each.critical_batch, color=color, marker="D", ms=3.8, zorder=4)
        if each.b_simple is not None:
            axes.plot(x, each.b_simple, color=color, marker="x", ms=CROSS, ls="none")


def _set_sizes(
    by_loss: Axes, beside: Axes, shown: list[Recommendation], records: list[NoiseRecord]
) -> None:
    levels = chain.from_iterable(_points(record, _relative_level)[1] for record in records)
    sizes = [*_drawn_sizes(shown), *levels, *(record.batch_size for record in records)]
    by_loss.set_yscale("log", base=2)  # B_simple of single probes may leave it
    low, high = min(sizes) / ROOM, max(sizes) * ROOM**2
    by_loss.set_ylim(low, high)
    set_octaves(by_loss.yaxis, math.log2(low), math.log2(high), 0.0)
    by_loss.set_ylabel("Batch size")
    beside.set_xlim(-0.6, len(shown) - 0.4)
    names = [shorten(one.variant, LONGEST_NAME) for one in shown]
    crowded = max(map(len, names)) * len(names) > ROOM_FOR_NAMES
    turned: dict[str, Any] = {"rotation": 40, "ha": "right"} if crowded else {}
    beside.set_xticks(range(len(shown)), names, fontsize=6, **turned)
    beside.xaxis.set_minor_locator(NullLocator())


def _set_losses(axes: Axes) -> None:
    axes.set_xscale("log")
    losses = axes.get_xlim()
    set_round_ticks(axes.xaxis, *losses)
    axes.set_xlim(*reversed(losses))
    axes.set_xlabel("Training loss (falling to the right)")


def _set_values(gains: Axes, scales: Axes) -> None:
    """Gains may be below 0: linear there, and near it."""
    drawn = [abs(y) for line in gains.lines for y in np.asarray(line.get_ydata(), float) if y]
    own = sorted(y for y in drawn if math.isfinite(y))
    if own:
        near_0 = 10 ** math.floor(math.log10(own[len(own) // 10]))  # so that its tick is off 0's
        gains.set_yscale("symlog", linthresh=near_0)
    gains.axhline(0, color=GRAY, lw=0.6)
    gains.set_title("A step gains a (solid), of which noise takes c/b (dashed)", loc="left")
    gains.set_ylabel("Loss")
    scales.set_yscale("log")
    scales.set_title("ℓ₁ noise scale (solid), B_simple (dotted)", loc="left")
    scales.set_ylabel("Batch size")


def _drawn_sizes(shown: list[Recommendation]) -> Iterable[float]:
    for one in shown:
        for each in one.predictions:
            yield from (size for size in (each.critical_batch, each.b_simple) if size)
            yield from (end for end in each.interval or () if 0 < end < math.inf)
        if one.least_sfo is not None:
            yield one.least_sfo.batch_size


def _keys(shown: list[Recommendation], records: list[NoiseRecord]) -> list[Any]:
    """Of the marks; the titles tell the lines."""
    measured = any(one.least_sfo is not None and len(one.batch_sizes) > 1 for one in shown)
    handles = [
        key(f"b* predicted from one run, {percent(LEVEL)} interval", marker="D", ms=3.8, lw=0.9),
        key("B_simple over the whole run", ls="none", marker="x", ms=CROSS),
    ]
    if any(probe.local_critical_batch for record in records for probe in record.probes):
        label = "local critical batch size of branches"
        handles.append(key(label, ls="none", marker="_", ms=7, mew=1.6))
    if measured:
        handles.append(key("least SFO of those run", ls="none", marker="*", ms=7))
        handles.append(key(f"b* measured, {percent(LEVEL)} interval", lw=4, alpha=0.35))
    return handles
