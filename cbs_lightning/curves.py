"""Measured curves: steps and SFO against batch size, one curve per variant."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from cbs_lightning.results import Result, Status
from cbs_lightning.trajectory import RuleName

MISSED = (Status.EXHAUSTED, Status.DIVERGED, Status.ABANDONED)


@dataclass(frozen=True)
class Point:
    """The runs of a curve with one batch size, a run a seed."""

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
    def all_reached(self) -> bool:
        return bool(self.reached) and not self.missed

    @property
    def sliced(self) -> bool:
        """Whether a batch was worked in slices, whose statistics BatchNorm then saw."""
        return any(
            run.micro_batch_size is not None and run.micro_batch_size < run.effective_batch_size
            for run in self.runs
        )

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


@dataclass(frozen=True)
class Curve:
    """The runs of one variant at one threshold and rule, by batch size."""

    variant: str
    optimizer: str
    threshold: float
    rule: RuleName
    points: tuple[Point, ...]

    @property
    def best(self) -> Point | None:
        """The measured critical batch size: the least median SFO where all seeds reached."""
        complete = [point for point in self.points if point.all_reached]
        return min(complete, key=lambda point: point.sfo or 0, default=None)

    @property
    def unreached(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.missed)

    @property
    def seeds(self) -> tuple[int, ...]:
        runs = [run for point in self.points for run in (*point.reached, *point.missed)]
        return tuple(sorted({run.seed for run in runs}))

    def best_of_seed(self, seed: int) -> int | None:
        """The batch size with the least SFO among the runs of one seed."""
        runs = [run for point in self.points for run in point.reached if run.seed == seed]
        return min(runs, key=lambda run: run.sfo or 0).batch_size if runs else None


def curves(results: Iterable[Result]) -> list[Curve]:
    """Group results into curves; those without an answer to their request are left out."""

    def curve_key(run: Result) -> tuple[str, float, str]:
        return run.variant, run.threshold, run.rule

    answered = [run for run in results if run.status is not None]
    found = []
    for _, group in groupby(sorted(answered, key=curve_key), curve_key):
        runs = sorted(group, key=lambda run: (run.batch_size, run.seed))
        points = tuple(
            Point(batch_size, tuple(same))
            for batch_size, same in groupby(runs, lambda run: run.batch_size)
        )
        first = runs[0]
        found.append(Curve(first.variant, first.optimizer, first.threshold, first.rule, points))
    return found


def plain_answer(curve: Curve) -> str:
    """What the measurement says about the critical batch size, and what it does not."""
    best = curve.best
    if best is None or best.steps is None or best.sfo is None:
        tried = ", ".join(str(point.batch_size) for point in curve.points)
        some = any(point.reached for point in curve.points)
        what = "at no batch size did all seeds reach" if some else "no run reached"
        return f"{curve.variant}: {what} {curve.threshold:g} (b = {tried})."
    sentences = [
        f"{curve.variant}: fewest gradient evaluations at b = {best.batch_size}: "
        f"{best.steps:,.0f} steps, SFO {best.sfo:,.0f}"
    ]
    if len(curve.seeds) == 1:
        sentences[0] += f" (seed {curve.seeds[0]} only, so no interval)."
    else:
        bests = [b for seed in curve.seeds if (b := curve.best_of_seed(seed)) is not None]
        sentences[0] += f" (median of {len(curve.seeds)} seeds; single seeds say {_span(bests)})."
    sizes = [point.batch_size for point in curve.points]
    if len(sizes) > 1 and best.batch_size == sizes[0]:
        sentences.append("That is the smallest batch size tried: b* may be smaller still.")
    elif len(sizes) > 1 and best.batch_size == sizes[-1]:
        sentences.append("That is the largest batch size tried: b* may be larger still.")
    if curve.unreached:
        missed = ", ".join(str(point.batch_size) for point in curve.unreached)
        sentences.append(f"Not reached at b = {missed}.")
    if sliced := ", ".join(str(point.batch_size) for point in curve.points if point.sliced):
        sentences.append(f"In slices, which any BatchNorm saw instead of batches: b = {sliced}.")
    return " ".join(sentences)


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low} to {high}" if low < high else str(low)
