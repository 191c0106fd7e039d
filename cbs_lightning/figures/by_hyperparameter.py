"""Hyperparameters close to one: measured steps, and the theorem's bound, against β₁, β₂ and lr."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
from cbs_lightning.figures.style import DASHED, STYLE, colors_of, set_plain_log
from cbs_lightning.results import Result, Status
from cbs_lightning.theory import AdamConstants, Constants, constants

PANEL_WIDTH, HEIGHT = 2.7, 4.6  # inches
NAMES = {"beta1": "β₁", "beta2": "β₂", "lr": "learning rate"}
FEWEST_VALUES = 3
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

    def bound(self, value: float) -> float | None:
        """On VI at the base's K, by the sharper sum where there is one."""
        steps = self.steps(self.base[self.name])
        if steps is None or "beta1" not in self.base:
            return None
        found = _constants(self.base | {self.name: value})
        if isinstance(found, AdamConstants):
            return found.vi_bound_sum(round(steps), self.batch_size)
        return found.vi_bound(steps, self.batch_size)

    def describe(self) -> str:
        """Where the measured steps and the bound are least."""
        steps = {v: found for v in self.values if (found := self.steps(v)) is not None}
        bounds = {v: found for v in self.values if (found := self.bound(v)) is not None}
        others = [f"{NAMES[name]} = {v:g}" for name, v in self.base.items() if name != self.name]
        told = f"{self.optimizer}, b = {self.batch_size}, {', '.join(others)}"
        if not steps:
            return f"{told}: no {NAMES[self.name]} reached the threshold."
        fewest, most = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
        told += (
            f": fewest steps at {NAMES[self.name]} = {fewest:g} ({steps[fewest]:,.0f}; most at "
            f"{most:g}, {steps[most]:,.0f})"
        )
        if bounds:
            least = min(bounds, key=bounds.__getitem__)
            told += f"; the bound, its constants assumed, is least at {least:g}"
        return f"{told}."


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
        title = f"{study}: {panels[0].optimizer}, b = {panels[0].batch_size}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        figure.legend(handles=_handles(panels), loc="outside upper right", ncols=4)
        figure.text(0.01, 0.01, _assumption(panels[0]), fontsize=7)
    return figure


def by_optimizer(panels: list[Panel]) -> dict[str, list[Panel]]:
    groups: dict[str, list[Panel]] = {}
    for panel in panels:
        groups.setdefault(f"{panel.optimizer}_b{panel.batch_size}", []).append(panel)
    return groups


def _assumption(panel: Panel) -> str:
    text = "Bound with σ² = G = Dist = 1 assumed, not measured"
    if "beta2" in panel.base:
        text += f"; d = {DIMENSION:,} coordinates alike: D = 1/d, M = 2/d, v$_*$ = 0.2/d"
    return text


def hyperparameter_panels(results: list[Result]) -> list[Panel]:
    answered = [run for run in results if run.status is Status.REACHED or run.status in MISSED]
    panels = []
    for optimizer, size in sorted({(run.optimizer, run.batch_size) for run in answered}):
        runs = [run for run in answered if (run.optimizer, run.batch_size) == (optimizer, size)]
        names = list(_settings(runs[0]))
        base = {name: _usual([_settings(run)[name] for run in runs]) for name in names}
        for name in names:
            others = [other for other in names if other != name]
            alone = tuple(run for run in runs if all(_settings(run)[o] == base[o] for o in others))
            panel = Panel(optimizer, size, name, base, alone)
            if len(panel.values) >= FEWEST_VALUES:
                panels.append(panel)
    return panels


def _settings(run: Result) -> dict[str, float]:
    """β₁ and β₂ where the optimizer has them, and the learning rate."""
    own = run.hyperparameters
    betas = own.get("betas") or ([own["momentum"]] if own.get("momentum") else [])
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
        if any(run.status in MISSED for run in panel.at(value)):
            top = axes.get_xaxis_transform()
            axes.plot(place(value), 0.97, "x", color=color, ms=5, mew=1.4, transform=top)
    if medians:
        axes.plot(*zip(*medians, strict=True), color=color, marker="o", ms=4)
    if every:
        set_plain_log(axes, min(every), max(every))


def _draw_bound(axes: Axes, panel: Panel, color: str) -> None:
    steps = panel.steps(panel.base[panel.name])
    if steps is None or "beta1" not in panel.base:
        axes.text(0.5, 0.5, "no bound", ha="center", transform=axes.transAxes, color="#555555")
        return
    low, high = panel.values[0], panel.values[-1]
    if panel.name == "lr":
        values = np.geomspace(low, high, 200)
    else:
        values = 1 - np.geomspace(1 - low, 1 - high, 200)
    place = _place(panel.name)
    found = [_constants(panel.base | {panel.name: float(value)}) for value in values]
    bounds = [c.vi_bound(steps, panel.batch_size) for c in found]
    axes.plot(place(values), bounds, color=color)
    sharper = [
        c.vi_bound_sum(round(steps), panel.batch_size)
        for c in found
        if isinstance(c, AdamConstants)
    ]
    if sharper:
        axes.plot(place(values), sharper, color=color, ls=DASHED, lw=1.1)
    set_plain_log(axes, min(bounds + sharper), max(bounds + sharper))


def _constants(settings: dict[str, Any]) -> Constants:
    if "beta2" in settings:
        return constants("adam", **settings, **ASSUMED, **ASSUMED_ADAM)
    return constants("momentum", **settings, **ASSUMED)


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
    if any(run.status in MISSED for panel in panels for run in panel.runs):
        handles.append(Line2D([], [], ls="none", marker="x", label="not reached", **gray))
    handles.append(Line2D([], [], label="bound of Theorem 3.1", **gray))
    if any("beta2" in panel.base for panel in panels):
        handles.append(Line2D([], [], ls=DASHED, lw=1.1, label="its sharper sum", **gray))
    return handles
