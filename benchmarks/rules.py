"""How far the K of a stopping rule is from where the loss really crosses the threshold.

The truth has to be known for that: each run of a study becomes a smooth curve (a local quadratic
through its losses, centred, an epoch to either side), and trajectories are made of it by drawing
the losses' deviations from it anew, each from within an epoch of its place. No training.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from benchmarks.outcome import Outcome, Table
from cbs_lightning.results.result import Run
from cbs_lightning.results.store import read_study
from cbs_lightning.results.trajectory import Rule, RuleName, Trajectory, first_crossing

Floats = NDArray[np.float64]

LADDER = (1.0, 0.5, 0.2, 0.1)
SHARES = (1.0, 0.25)  # of the data set, for a window
DRAWS = 40
KNOTS = 600  # steps at which the smooth curve is computed
END_OF_LINE = "line, at its end"
COLUMNS = ["b", "window / n", "exact K", "window", "middle", END_OF_LINE]


@dataclass(frozen=True)
class Errors:
    """Of the K that one rule gives to the draws of several runs, as shares of the exact K."""

    bias: float
    scatter: float

    @classmethod
    def of(cls, values: list[float]) -> "Errors | None":
        return cls(fmean(values), pstdev(values)) if values else None


def smooth(loss: Floats, reach: int) -> Floats:
    """A curve through the losses: at each step the local quadratic over `reach` to either side."""
    steps = np.arange(len(loss))
    knots = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), KNOTS)).astype(int))
    values = []
    for knot in knots:
        near = slice(max(0, knot - reach), knot + reach + 1)
        away = (steps[near] - knot) / (reach + 1)
        weights = (1 - np.abs(away) ** 3) ** 3  # tricube
        degree = min(2, len(away) - 1)
        values.append(np.polyfit(away, loss[near], degree, w=np.sqrt(weights))[-1])
    lowest = loss.min()
    return np.exp(np.interp(steps, knots, np.log(np.maximum(values, lowest))))


def end_of_line(made: Trajectory, rule: Rule, threshold: float) -> int | None:
    """K by the line through the losses of the window (least squares), read at its latest step."""
    size, loss, step = made.size.astype(float), made.loss.astype(float), np.arange(len(made)) + 1.0
    starts, ends = rule.spans(made.size)

    def window(values: Floats) -> Floats:
        total = np.concatenate(([0.0], np.cumsum(size * values)))
        return np.asarray(total[ends] - total[starts])

    weight = window(np.ones(len(made)))
    middle, mean = window(step) / weight, window(loss) / weight
    variance = np.maximum(window(step**2) / weight - middle**2, 1e-9)
    slope = (window(step * loss) / weight - middle * mean) / variance
    met = np.flatnonzero(mean + slope * (ends - middle) <= threshold)
    return int(ends[met[0]]) if len(met) else None


def by_rule(made: Trajectory, rule: Rule, threshold: float) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name in (RuleName.WINDOW, RuleName.MIDDLE):
        crossing = first_crossing(made, replace(rule, name=name), threshold)
        found[str(name)] = crossing.steps if crossing else None
    return found | {END_OF_LINE: end_of_line(made, rule, threshold)}


def errors(
    run: Run, threshold: float, window: int, rng: np.random.Generator
) -> tuple[int, dict[str, list[float]]] | None:
    """The exact K of a run's smooth curve, and the errors of the rules on draws from it.

    None where the run did not go on for an epoch after it crossed the threshold.
    """
    loss = run.trajectory.loss.astype(np.float64)
    per_epoch = run.result.steps_per_epoch
    curve = smooth(loss, max(per_epoch, 4))
    met = np.flatnonzero(curve <= threshold)
    if not len(met) or met[0] + per_epoch >= len(loss):
        return None
    exact, scatter = int(met[0]) + 1, loss / curve
    rule = Rule(RuleName.WINDOW, per_epoch, window)
    found: dict[str, list[float]] = {}
    for _ in range(DRAWS):
        places = np.arange(len(loss)) + rng.integers(-per_epoch, per_epoch + 1, len(loss))
        drawn = curve * scatter[np.clip(places, 0, len(loss) - 1)]
        made = replace(run.trajectory, loss=drawn.astype(np.float32))
        for name, steps in by_rule(made, rule, threshold).items():
            if steps is not None:
                found.setdefault(name, []).append(steps / exact - 1)
    return exact, found


def measure(runs: list[Run]) -> Iterator[tuple[float, float, int, float, dict[str, Errors]]]:
    """Threshold, share of the data in the window, batch size, mean exact K, and errors by rule."""
    rng = np.random.default_rng(0)
    for threshold in LADDER:
        for share in SHARES:
            for b, seeds in groupby(runs, lambda run: run.result.batch_size):
                each = [
                    found
                    for run in seeds
                    if (found := errors(run, threshold, round(share * run.result.data_size), rng))
                ]
                if each:
                    joined = {
                        name: Errors.of([one for _, own in each for one in own.get(name, [])])
                        for name in COLUMNS[3:]
                    }
                    of_rules = {name: own for name, own in joined.items() if own is not None}
                    yield threshold, share, b, fmean(exact for exact, _ in each), of_rules


def run(report: Callable[[str], None], study: Path) -> Outcome:
    runs = sorted(read_study(study)[0], key=lambda run: (run.result.variant, run.result.batch_size))
    tables, numbers = [], {}
    for variant, same in groupby(runs, lambda run: run.result.variant):
        report(f"rules: {study.name}, {variant}")
        rows = list(measure(list(same)))
        for threshold, own in groupby(rows, lambda row: row[0]):
            title = f"{study.name}, {variant}, loss <= {threshold:g}: error of K, and its scatter"
            cells = [
                [str(b), f"{share:g}", f"{exact:,.0f}", *(_cell(found.get(n)) for n in COLUMNS[3:])]
                for _, share, b, exact, found in own
            ]
            tables.append(Table(title, COLUMNS, cells))
        numbers[variant] = [
            {"threshold": threshold, "window_share": share, "batch_size": b, "steps": exact}
            | {name: vars(one) for name, one in found.items()}
            for threshold, share, b, exact, found in rows
        ]
    return Outcome(numbers, tables, [])


def _cell(found: Errors | None) -> str:
    return f"{found.bias:+.0%} ± {found.scatter:.0%}" if found else ""
