"""Measured curves: steps and SFO against batch size, one curve per variant."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import median

from cbs_lightning.fit.comparison import Comparison, compare_measurements
from cbs_lightning.fit.measurements import FEWEST_SIZES, Measurements, measurements
from cbs_lightning.results.result import (
    UNFINISHED,
    Request,
    Result,
    Status,
    seed_order,
    seeds_of_cells,
)
from cbs_lightning.results.trajectory import RuleName

FEWEST = FEWEST_SIZES  # batch sizes that a curve is drawn through
FEWEST_AGAINST = 5  # batch sizes that reached the threshold, for no formula to fit them
NO_FORMULA = 0.1  # probability of the formulas below which none is said to fit
MISSED = (Status.EXHAUSTED, Status.DIVERGED, Status.ABANDONED)


@dataclass(frozen=True)
class BatchSizePoint:
    """The runs of a curve with one batch size, one run per seed; its numbers are medians."""

    batch_size: int
    runs: tuple[Result, ...]

    @property
    def reached(self) -> tuple[Result, ...]:
        return tuple(run for run in self.runs if run.status is Status.REACHED)

    @property
    def missed(self) -> tuple[Result, ...]:
        """Runs that are known not to have reached it; an unfinished one is not known to."""
        return tuple(run for run in self.runs if run.status in MISSED)

    @property
    def abandoned(self) -> tuple[Result, ...]:
        """Those of them that a search gave up: what they would have needed is not known."""
        return tuple(run for run in self.missed if run.status is Status.ABANDONED)

    @property
    def all_reached(self) -> bool:
        return bool(self.reached) and not self.missed

    @property
    def sliced(self) -> bool:
        return any(run.sliced for run in self.runs)

    @property
    def steps(self) -> float | None:
        """The median over the seeds that reached the threshold."""
        return median(run.steps or 0 for run in self.reached) if self.reached else None

    @property
    def sfo(self) -> float | None:
        return median(run.sfo or 0 for run in self.reached) if self.reached else None

    @property
    def seconds(self) -> float | None:
        return median(run.seconds for run in self.reached) if self.reached else None

    @property
    def effective_batch_size(self) -> int:
        return self.runs[0].effective_batch_size

    @property
    def epochs(self) -> float | None:
        return self.steps / self.runs[0].steps_per_epoch if self.steps is not None else None

    @property
    def at_first_reading(self) -> bool:
        """Whether a run met the threshold as soon as the rule gives a reading at all."""
        return any(run.steps == run.first_reading for run in self.reached)


@dataclass(frozen=True)
class Curve:
    """The runs of one variant at one threshold, rule and window, by batch size.

    >>> from cbs_lightning.analysis.example import example_results
    >>> (curve,) = curves(example_results())
    >>> curve.variant, curve.threshold, [point.batch_size for point in curve.points]
    ('adam', 0.1, [4, 8, 16, 32, 64, 128, 256])
    >>> curve.best.batch_size, curve.best.sfo
    (16, 4320)
    >>> print(f"fitted b* = {curve.comparison.critical_batch:.0f}")
    fitted b* = 12
    """

    variant: str
    optimizer: str
    threshold: float
    rule: RuleName
    points: tuple[BatchSizePoint, ...]

    @property
    def runs(self) -> tuple[Result, ...]:
        return tuple(run for point in self.points for run in point.runs)

    @property
    def data_size(self) -> int:
        return self.points[0].runs[0].data_size

    @property
    def request(self) -> Request:
        """What the runs answer."""
        return request_of(self.points[0].runs[0])

    @property
    def distinct_points(self) -> tuple[BatchSizePoint, ...]:
        """The points, without those that are the whole data set as a smaller batch size is."""
        points = {point.effective_batch_size: point for point in reversed(self.points)}
        return tuple(sorted(points.values(), key=lambda point: point.batch_size))

    @property
    def best(self) -> BatchSizePoint | None:
        """The measured critical batch size: the least median SFO where all seeds reached.

        Of equal ones the largest, which takes the fewest steps.
        """
        complete = [point for point in self.distinct_points if point.all_reached]
        return min(complete, key=lambda p: (p.sfo or 0, -p.batch_size), default=None)

    @property
    def best_at_edge(self) -> bool:
        """Whether that is the smallest or the largest of several: b* may lie beyond."""
        sizes = [point.batch_size for point in self.distinct_points]
        best = self.best.batch_size if self.best is not None else None
        return len(sizes) > 1 and best in (sizes[0], sizes[-1])

    @property
    def stopped_too_soon(self) -> dict[int, int]:
        """Batch sizes whose runs ended before the least SFO, and at what SFO: b* may be there."""
        least = (self.best.sfo if self.best is not None else None) or 0
        found = {}
        for point in self.points:
            missed = [run for run in point.missed if run.status is not Status.DIVERGED]
            spent = [run.sfo_exceeded for run in missed]
            if spent and min(spent) <= least:
                found[point.batch_size] = min(spent)
        return found

    @property
    def fastest(self) -> BatchSizePoint | None:
        """The least median of measured seconds where all seeds reached."""
        complete = [point for point in self.distinct_points if point.all_reached]
        return min(complete, key=lambda point: point.seconds or math.inf, default=None)

    @property
    def unreached(self) -> tuple[BatchSizePoint, ...]:
        """Where a run did not reach the threshold and was not given up by a search."""
        return tuple(point for point in self.points if len(point.missed) > len(point.abandoned))

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Those of its finished runs; None stands for all runs that had none."""
        known = [run for run in self.runs if run.status not in UNFINISHED]
        return tuple(sorted({run.seed for run in known}, key=seed_order))

    @property
    def is_repeated(self) -> bool:
        """Whether a batch size was run more than once, so that the scatter of K shows."""
        return any(len(point.reached) + len(point.missed) > 1 for point in self.points)

    def measurements(self) -> Measurements:
        """What the forms are fitted to; b is the effective one, at most the whole data set.

        A seed's runs of the whole data set are one measurement, whatever b they were asked for.
        """
        reached = _distinct(run for point in self.points for run in point.reached)
        missed = _distinct(run for point in self.points for run in point.missed)
        return measurements(
            [run.effective_batch_size for run in reached],
            [run.steps or 0 for run in reached],
            [(run.effective_batch_size, run.steps_exceeded) for run in missed],
            [run.rounded_to for run in reached] or 1,
        )

    @property
    def is_fitted(self) -> bool:
        """Whether enough batch sizes reached the threshold for a curve through them."""
        return len({run.effective_batch_size for p in self.points for run in p.reached}) >= FEWEST

    @property
    def refutes_formulas(self) -> bool:
        """Whether the runs speak against every formula, which have a prior probability of 0.35."""
        found = self.comparison
        return found.data.distinct >= FEWEST_AGAINST and found.formula_probability < NO_FORMULA

    @cached_property
    def comparison(self) -> Comparison:
        """The forms fitted to this curve, the best first; fitted when first asked for."""
        return compare_measurements(self.measurements())


def curves(results: Iterable[Result]) -> list[Curve]:
    """Group results into curves, one per variant, threshold, rule and window.

    Args:
        results: In any order. Those without a status, whose losses end before an answer, are left
            out.

    Returns:
        The curves, by variant, threshold, rule and window.

    >>> from cbs_lightning.analysis.example import example_results
    >>> [(curve.variant, len(curve.points)) for curve in curves(example_results())]
    [('adam', 7)]
    """

    def curve_key(run: Result) -> tuple[str, float, str, int]:
        asked = request_of(run)
        return run.variant, asked.threshold, asked.rule, asked.window

    answered = [run for run in results if run.status is not None]
    found = []
    for _, group in groupby(sorted(answered, key=curve_key), curve_key):
        runs = sorted(group, key=lambda run: (run.batch_size, seed_order(run.seed)))
        points = tuple(
            BatchSizePoint(batch_size, tuple(same))
            for batch_size, same in groupby(runs, lambda run: run.batch_size)
        )
        first = runs[0]
        found.append(Curve(first.variant, first.optimizer, first.threshold, first.rule, points))
    return found


def seeds_of(shown: Iterable[Curve]) -> str:
    """How the runs of curves were seeded."""
    runs = [run for curve in shown for run in curve.runs if run.status not in UNFINISHED]
    return seeds_of_cells(((run.variant, run.batch_size), run.seed) for run in runs)


def _distinct(runs: Iterable[Result]) -> list[Result]:
    """The first run for each seed and effective batch size; every run without a seed."""
    found: dict[tuple[int, int | str], Result] = {}
    for number, run in enumerate(runs):
        seed = f"unseeded {number}" if run.seed is None else run.seed
        found.setdefault((run.effective_batch_size, seed), run)
    return list(found.values())


def request_of(run: Result) -> Request:
    """The request that a result answers; rule `epoch` has no window, so the data size stands in."""
    window = run.data_size if run.rule is RuleName.EPOCH else run.window
    return Request(run.threshold, run.rule, window)
