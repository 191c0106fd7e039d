"""Hyperparameters close to one: measured steps, and the theorem's bound, against β₁, β₂ and lr."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from cbs_lightning.curves import MISSED
from cbs_lightning.figures.style import DASHED, STYLE, colors_of, draw_band, set_plain_log
from cbs_lightning.results import Result, Status
from cbs_lightning.theory import AdamConstants, Constants, constants
from cbs_lightning.wording import count_of

PANEL_WIDTH, HEIGHT = 2.7, 4.6  # inches
NAMES = {"beta1": "β₁", "beta2": "β₂", "lr": "learning rate"}
THEOREM = {"sgd": "sgd", "momentum_ema": "momentum", "adam": "adam", "adam_monotone": "adam"}
THE_BOUND, THE_SUM = "the theorem's bound", "its sharper sum"
FEWEST_VALUES = 3
BAND = 0.1  # of the axes' height, for what was not reached
# Not measured: all coordinates alike, in a net of 272,474 parameters.
DIMENSION = 272_474
ASSUMED: dict[str, Any] = {"sigma2": 1.0, "G": 1.0, "dist": 1.0}
ASSUMED_ADAM: dict[str, Any] = {
    "d": DIMENSION,
    "D": 1 / DIMENSION,
    "M": 2 / DIMENSION,
    "v_star": 0.2 / DIMENSION,
}


@dataclass(frozen=True)
class Panel:
    """The runs of one optimizer and batch size in which one hyperparameter varies alone."""

    optimizer: str
    batch_size: int
    name: str
    base: dict[str, float]  # what the others, and this one elsewhere, are
    runs: tuple[Result, ...]

    @property
    def values(self) -> list[float]:
        return sorted({_settings(run)[self.name] for run in self.runs})

    def at(self, value: float) -> list[Result]:
        return [run for run in self.runs if _settings(run)[self.name] == value]

    def steps(self, value: float) -> float | None:
        """The median over the seeds that reached the threshold."""
        reached = [run.steps for run in self.at(value) if run.steps is not None]
        return median(reached) if reached else None

    def missed(self, value: float) -> bool:
        return any(run.status in MISSED for run in self.at(value))

    def constants(self, value: float) -> Constants | None:
        """The theorem's with assumed values; None for what it is not about, such as β₁ = 0."""
        theirs = THEOREM.get(self.optimizer)
        settings: dict[str, Any] = self.base | {self.name: value}
        if theirs is None or settings.get("beta1") == 0:
            return None
        return constants(
            theirs, **settings, **ASSUMED, **(ASSUMED_ADAM if theirs == "adam" else {})
        )

    def bounds(self, value: float) -> dict[str, float]:
        """On VI at the base's K: the theorem's, and for Adam the sharper sum."""
        steps, found = self.steps(self.base[self.name]), self.constants(value)
        if steps is None or found is None:
            return {}
        bounds = {THE_BOUND: found.vi_bound(steps, self.batch_size)}
        if isinstance(found, AdamConstants):
            bounds[THE_SUM] = found.vi_bound_sum(round(steps), self.batch_size)
        return bounds

    def describe(self) -> str:
        """Where the measured steps and the bounds are least."""
        others = [f"{NAMES[name]} = {v:g}" for name, v in self.base.items() if name != self.name]
        told = ", ".join([self.optimizer, f"b = {self.batch_size}", *others])
        steps = {v: found for v in self.values if (found := self.steps(v)) is not None}
        if not steps:
            return f"{told}: no {NAMES[self.name]} reached the threshold."
        fewest, most = min(steps.values()), max(steps.values())
        told += f": fewest steps ({fewest:,.0f}) at {NAMES[self.name]} = {_places(steps, fewest)}"
        if any(run.steps == run.first_reading for v in self.values for run in self.at(v)):
            told += "; some with the rule's first reading, so that K may be smaller"
        if missed := [v for v in self.values if self.missed(v)]:
            told += f"; not reached at {', '.join(f'{v:g}' for v in missed)}"
        else:
            told += f", most ({most:,.0f}) at {_places(steps, most)}"
        for name in (THE_BOUND, THE_SUM):
            bounds = {v: all_[name] for v in self.values if name in (all_ := self.bounds(v))}
            if bounds:
                least = _places(bounds, min(bounds.values()))
                told += f"; {name}, constants assumed, is least at {least}"
        return f"{told}."


def _places(found: dict[float, float], wanted: float) -> str:
    return ", ".join(f"{value:g}" for value, number in found.items() if number == wanted)


def draw_by_hyperparameter(study: str, panels: list[Panel]) -> Figure:
    """All panels of one optimizer side by side: what was measured above, the bound below."""
    with mpl.rc_context(STYLE):
        width = max(2, len(panels)) * PANEL_WIDTH
        layout = ConstrainedLayoutEngine(rect=(0, 0.04, 1, 0.96))
        figure = Figure((width, HEIGHT), layout=layout)
        color = colors_of(panel.optimizer for panel in panels)[panels[0].optimizer]
        grid = figure.subplots(2, len(panels), squeeze=False)
        for (upper, lower), panel in zip(grid.T, panels, strict=True):
            _draw_measured(upper, panel, color)
            _draw_bound(lower, panel, color)
            for axes in (upper, lower):
                _set_axis(axes, panel)
        threshold = panels[0].runs[0].threshold
        grid[0, 0].set_ylabel(f"Steps K to loss ≤ {threshold:g}")
        grid[1, 0].set_ylabel("Bound on VI(K, θ)")
        seeds = {run.seed for panel in panels for run in panel.runs}
        title = f"{study}: {panels[0].optimizer}, b = {panels[0].batch_size}, "
        title += f"rule {panels[0].runs[0].rule}, {count_of(len(seeds), 'seed')}"
        grid[0, 0].set_title(title, loc="left", fontsize=9)
        figure.legend(handles=_handles(panels), loc="outside upper right", ncols=4)
        if any(panel.constants(value) for panel in panels for value in panel.values):
            figure.text(0.01, 0.01, _assumption(panels[0]), fontsize=7)
    return figure


def by_optimizer(panels: list[Panel]) -> dict[str, list[Panel]]:
    groups: dict[str, list[Panel]] = {}
    for panel in panels:
        groups.setdefault(f"{panel.optimizer}_b{panel.batch_size}", []).append(panel)
    return groups


def _assumption(panel: Panel) -> str:
    text = "Bound with σ² = G = Dist = 1 assumed, not measured"
    if THEOREM[panel.optimizer] == "adam":
        text += f"; d = {DIMENSION:,} coordinates alike: D = 1/d, M = 2/d, v$_*$ = 0.2/d"
    return text


def hyperparameter_panels(results: list[Result]) -> list[Panel]:
    answered = [run for run in results if run.status is Status.REACHED or run.status in MISSED]
    panels = []
    for key, group in groupby(sorted(answered, key=_alike), _alike):
        runs = list(group)
        names = list(_settings(runs[0]))
        base = {name: _usual([_settings(run)[name] for run in runs]) for name in names}
        for name in names:
            others = [other for other in names if other != name]
            alone = tuple(run for run in runs if all(_settings(run)[o] == base[o] for o in others))
            panel = Panel(str(key[0]), int(key[1]), name, base, alone)
            if len(panel.values) >= FEWEST_VALUES:
                panels.append(panel)
    return panels


def _alike(run: Result) -> tuple[str | int, ...]:
    """All that must be the same for two runs to differ in β₁, β₂ and lr alone."""
    rest = {k: v for k, v in run.hyperparameters.items() if k not in ("betas", "momentum")}
    other = json.dumps(rest, sort_keys=True, default=str)
    return run.optimizer, run.batch_size, run.data, run.model, other, len(_settings(run))


def _settings(run: Result) -> dict[str, float]:
    """β₁ and β₂ where the optimizer has them, and the learning rate."""
    own = run.hyperparameters
    betas = own.get("betas", [own["momentum"]] if "momentum" in own else [])
    return dict(zip(("beta1", "beta2"), betas, strict=False)) | {"lr": run.lr}


def _usual(values: list[float]) -> float:
    return Counter(values).most_common(1)[0][0]


def _place(name: str) -> Callable[[Any], Any]:
    """Betas are drawn by their distance to one."""
    return (lambda value: value) if name == "lr" else (lambda value: 1 - np.asarray(value))


def _draw_measured(axes: Axes, panel: Panel, color: str) -> None:
    place = _place(panel.name)
    medians, every = [], []
    for value in panel.values:
        steps = [run.steps for run in panel.at(value) if run.steps is not None]
        every += steps
        if (middle := panel.steps(value)) is not None:
            axes.scatter([place(value)] * len(steps), steps, s=10, color=color, alpha=0.5, lw=0)
            medians.append((place(value), middle))
    if medians:
        axes.plot(*zip(*medians, strict=True), color=color, marker="o", ms=4)
    missed = [value for value in panel.values if panel.missed(value)]
    set_plain_log(axes, min(every, default=1), max(every, default=2), BAND if missed else 0.0)
    if missed:
        draw_band(axes, BAND)
    for value in missed:
        top = axes.get_xaxis_transform()
        axes.plot(place(value), 1 - BAND / 2, "x", color=color, ms=5, mew=1.4, transform=top)


def _draw_bound(axes: Axes, panel: Panel, color: str) -> None:
    low, high = panel.values[0], panel.values[-1]
    if panel.name == "lr":
        values = np.geomspace(low, high, 100)
    else:
        values = 1 - np.geomspace(1 - low, 1 - high, 100)
    found = [(value, bounds) for value in values if (bounds := panel.bounds(float(value)))]
    if not found:
        axes.text(0.5, 0.5, "no bound", ha="center", transform=axes.transAxes, color="#555555")
        return
    place = _place(panel.name)
    places = [float(place(value)) for value, _ in found]
    for name in found[0][1]:
        style: dict[str, Any] = {"ls": DASHED, "lw": 1.1} if name == THE_SUM else {}
        axes.plot(places, [bounds[name] for _, bounds in found], color=color, **style)
    every = [bound for _, bounds in found for bound in bounds.values()]
    set_plain_log(axes, min(every), max(every))


def _set_axis(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log")
    place = _place(panel.name)
    axes.xaxis.set_major_locator(FixedLocator([float(place(value)) for value in panel.values]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in panel.values]))
    axes.tick_params(axis="x", labelsize=7.5, rotation=45)
    if panel.name != "lr":
        axes.invert_xaxis()
    others = ", ".join(
        f"{NAMES[name]} = {value:g}" for name, value in panel.base.items() if name != panel.name
    )
    axes.set_xlabel(f"{NAMES[panel.name]}   ({others})", fontsize=8)


def _handles(panels: list[Panel]) -> list[Line2D]:
    gray: dict[str, Any] = {"color": "#555555"}
    handles = [Line2D([], [], marker="o", ms=4, label="steps, median", **gray)]
    if any(panel.missed(value) for panel in panels for value in panel.values):
        handles.append(Line2D([], [], ls="none", marker="x", label="not reached", **gray))
    drawn = {name for panel in panels for value in panel.values for name in panel.bounds(value)}
    if THE_BOUND in drawn:
        handles.append(Line2D([], [], label=THE_BOUND, **gray))
    if THE_SUM in drawn:
        handles.append(Line2D([], [], ls=DASHED, lw=1.1, label=THE_SUM, **gray))
    return handles
