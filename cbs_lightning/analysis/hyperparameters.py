"""Runs in which one hyperparameter varies alone: measured steps, and the theorem's bound."""

import json
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from cbs_lightning.optim.schedules import Constant
from cbs_lightning.results.result import Result, Status
from cbs_lightning.theory.theorem import AdamConstants, Constants, constants

NAMES = {"beta1": "β₁", "beta2": "β₂", "lr": "learning rate"}
THEOREM = {"sgd": "sgd", "momentum_ema": "momentum", "adam": "adam", "adam_monotone": "adam"}
THE_BOUND, THE_SUM = "the theorem's bound", "its sharper sum"
FEWEST_VALUES = 3
CONSTANT = f"{Constant.__module__}.{Constant.__qualname__}"
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
        return any(run.status is not Status.REACHED for run in self.at(value))

    def constants(self, value: float) -> Constants | None:
        """The theorem's constants with assumed values; None where it does not hold (β₁ = 0), or the
        settings are not those of its optimizer."""
        theirs = THEOREM.get(self.optimizer)
        settings: dict[str, Any] = self.base | {self.name: value}
        if theirs is None:
            return None
        with suppress(ValueError, ArithmeticError):
            return constants(
                theirs, **settings, **ASSUMED, **(ASSUMED_ADAM if theirs == "adam" else {})
            )
        return None

    def bounds(self, value: float) -> dict[str, float]:
        """Bounds on VI at the base's K: the theorem's, and for Adam the sharper sum."""
        steps, found = self.steps(self.base[self.name]), self.constants(value)
        if steps is None or found is None:
            return {}
        bounds = {THE_BOUND: found.vi_bound(steps, self.batch_size)}
        if isinstance(found, AdamConstants):
            bounds[THE_SUM] = found.vi_bound_sum(round(steps), self.batch_size)
        return {name: bound for name, bound in bounds.items() if math.isfinite(bound)}

    def assumption(self) -> str:
        text = "Bound with σ² = G = Dist = 1 assumed, not measured"
        if THEOREM[self.optimizer] == "adam":
            text += f"; d = {DIMENSION:,} coordinates alike: D = 1/d, M = 2/d, v$_*$ = 0.2/d"
        return text

    def describe(self) -> str:
        """A sentence that says where the measured steps and the bounds are least."""
        others = [f"{NAMES[name]} = {v:g}" for name, v in self.base.items() if name != self.name]
        text = ", ".join([self.optimizer, f"b = {self.batch_size}", *others])
        steps = {v: found for v in self.values if (found := self.steps(v)) is not None}
        if not steps:
            return f"{text}: no {NAMES[self.name]} reached the threshold."
        fewest, most = min(steps.values()), max(steps.values())
        text += f": fewest steps ({fewest:,.0f}) at {NAMES[self.name]} = {_places(steps, fewest)}"
        if any(run.steps == run.first_reading for v in self.values for run in self.at(v)):
            text += "; some with the rule's first reading, so that K may be smaller"
        if missed := [v for v in self.values if self.missed(v)]:
            text += f"; not reached at {', '.join(f'{v:g}' for v in missed)}"
        else:
            text += f", most ({most:,.0f}) at {_places(steps, most)}"
        for name in (THE_BOUND, THE_SUM):
            bounds = {v: all_[name] for v in self.values if name in (all_ := self.bounds(v))}
            if bounds:
                least = _places(bounds, min(bounds.values()))
                text += f"; {name}, constants assumed, is least at {least}"
        return f"{text}."


def _places(found: dict[float, float], wanted: float) -> str:
    return ", ".join(f"{value:g}" for value, number in found.items() if number == wanted)


def hyperparameter_panels(results: list[Result]) -> list[Panel]:
    """Find the hyperparameters that vary alone, over three or more values."""
    known = (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED)  # of one given up K is not known
    answered = [run for run in results if run.status in known]
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
    """Everything that must be the same for two runs to differ only in β₁, β₂ and lr."""
    betas = _betas(run)
    swept = ("betas", "momentum") if betas else ()
    settings = {"decoupled_weight_decay": False} | run.hyperparameters  # runs from before had none
    rest = {k: v for k, v in settings.items() if k not in swept}
    # What follows from b was not swept.
    later = {"scaling_rule": "none", "weight_decay_scaling": "none", "warmup_samples": 0}
    rate = {key: run.configuration.get(key, before) for key, before in later.items()}
    rate["scaling"] = run.lr_scaling
    added = [_scheduler(run), run.configuration.get("callbacks", {})]
    other = json.dumps([rest, rate, added], sort_keys=True, default=str)
    return run.optimizer, run.batch_size, run.data, run.model, other, len(betas)


def _scheduler(run: Result) -> Any:
    """The scheduler; None for a constant rate, as in runs from before there were schedulers."""
    own = run.configuration.get("scheduler")
    return None if isinstance(own, dict) and own.get("_target_") == CONSTANT else own


def _settings(run: Result) -> dict[str, float]:
    """The learning rate, and β₁ and β₂ if the optimizer has them."""
    return dict(zip(("beta1", "beta2"), _betas(run), strict=False)) | {"lr": run.lr or 0.0}


def _betas(run: Result) -> list[float]:
    """β₁ and β₂, or a momentum as β₁; empty if an optimizer uses that name for something else."""
    own = run.hyperparameters
    betas = own.get("betas", [own["momentum"]] if "momentum" in own else [])
    valid = isinstance(betas, list) and len(betas) <= 2 and all(map(_is_fraction, betas))
    return betas if valid else []


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _usual(values: list[float]) -> float:
    return Counter(values).most_common(1)[0][0]


def by_optimizer(panels: list[Panel]) -> dict[str, list[Panel]]:
    groups: dict[str, list[Panel]] = {}
    for panel in panels:
        groups.setdefault(f"{panel.optimizer}_b{panel.batch_size}", []).append(panel)
    return groups
