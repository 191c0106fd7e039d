"""What the runs of a curve leave open, and which run would help most."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cbs_lightning.analysis.advice import Advice
from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.console import count_of
from cbs_lightning.fit.measurements import FEWEST_SIZES
from cbs_lightning.results.result import Result, Status
from cbs_lightning.results.trajectory import RuleName


def find_caveats(curve: Curve) -> list[str]:
    """Sentences about what the runs leave open, the most important first."""
    least = curve.best
    if least is None:
        return [*_nothing_reached(curve), *_budgets(curve)]
    review = _Review(curve, least)
    return [
        *review.edges(),
        *review.too_soon(),
        *review.same_epochs(),
        *review.first_reading(),
        *review.ties(),
        *review.too_few(),
        *review.unreached(),
        *_budgets(curve),
        *review.limits(),
    ]


def next_batch_size(curve: Curve) -> tuple[int | None, str]:
    """The batch size to run next, and how: beyond an edge with the smallest SFO, where runs stopped
    too soon, or in a gap."""
    least = curve.best
    if least is None or len(curve.points) == 1:
        return None, ""
    review = _Review(curve, least)
    if review.at_smallest:
        return least.batch_size // 2, ""
    if review.at_largest:
        return 2 * least.batch_size, ""
    following = next(iter(curve.stopped_too_soon), None)
    if following is None:
        return review.in_a_gap(), ""
    exhausted = review.exhausted_too_soon().get(following, [])
    return following, f" with a larger {review.advice.budget(exhausted)}" if exhausted else ""


def _nothing_reached(curve: Curve) -> list[str]:
    tried = ", ".join(str(point.batch_size) for point in curve.points)
    if any(point.reached for point in curve.points):
        return [f"at no batch size did all seeds reach {curve.threshold:g} (b = {tried})."]
    advice = Advice(curve.runs)
    diverged = sorted({run.batch_size for run in curve.runs if run.status is Status.DIVERGED})
    whole = [run for run in curve.runs if run.status is not Status.DIVERGED]
    if not whole:
        why = f"more training will not help, {advice.lower_lr} may"
        return [f"every run diverged (b = {tried}): {why}."]
    found = [f"no run reached {curve.threshold:g} (b = {tried})."]
    if diverged:
        found.append(f"Diverged at b = {_list(diverged)}.")
    read = [run for run in whole if run.steps_answered >= run.first_reading]
    losses = [(run.loss, run.batch_size) for run in read if run.loss is not None]
    if all(run.status is Status.ABANDONED for run in whole):
        return [*found, "The search abandoned these runs: others took fewer gradients."]
    if not read:
        what = "finished an epoch"
        if curve.rule is not RuleName.EPOCH:
            what = f"saw {count_of(curve.request.window, 'sample')}"
        reason = f"so rule {curve.rule} has no loss to compare"
        return [*found, f"No run {what}, {reason}; raise {advice.budget(whole)}."]
    if losses:
        loss, batch_size = min(losses)
        found.append(f"The closest was {loss:.3g} at b = {batch_size}.")
    more = f"a larger {advice.budget(whole)} takes more training"
    return [*found, f"{advice.looser_threshold} is answered at once; {more}."]


def _budgets(curve: Curve) -> list[str]:
    """Which runs had which budget, if not all had the same."""
    sizes: dict[str, set[int]] = {}
    for point in curve.points:
        for run in (*point.reached, *point.missed):
            sizes.setdefault(run.budget or "unknown", set()).add(point.batch_size)
    if len(sizes) < 2:
        return []
    budgets = [f"{budget} at b = {_list(own)}" for budget, own in sizes.items()]
    return [f"Not all runs had the same budget: {'; '.join(budgets)}."]


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


@dataclass(frozen=True)
class _Review:
    """What a curve leaves open: one method per kind of caveat."""

    curve: Curve
    least: BatchSizePoint

    @property
    def advice(self) -> Advice:
        return Advice(self.curve.runs)

    @property
    def _sizes(self) -> list[int]:
        return [point.batch_size for point in self.curve.distinct_points]

    @property
    def at_smallest(self) -> bool:
        several = len(self.curve.points) > 1
        return several and self._sizes[0] == self.least.batch_size > 1

    @property
    def at_largest(self) -> bool:
        inside = self.least.effective_batch_size < self.least.runs[0].data_size
        return len(self._sizes) > 1 and inside and self._sizes[-1] == self.least.batch_size

    def edges(self) -> list[str]:
        if self.at_smallest:
            return [f"b = {self.least.batch_size} is the smallest tried: b* may be smaller still."]
        if self.at_largest:
            return [f"b = {self.least.batch_size} is the largest tried: b* may be larger still."]
        return []

    def exhausted_too_soon(self) -> dict[int, list[Result]]:
        """Those of them whose budget ended: one that a search gave up trains on without more."""
        too_soon = self.curve.stopped_too_soon
        return {
            point.batch_size: [run for run in point.missed if run.status is Status.EXHAUSTED]
            for point in self.curve.points
            if point.batch_size in too_soon and not point.abandoned
        }

    def too_soon(self) -> list[str]:
        return [
            f"b = {size} stopped at an SFO of {spent:,}, too soon to tell."
            for size, spent in self.curve.stopped_too_soon.items()
        ]

    def same_epochs(self) -> list[str]:
        """Batch sizes that rule epoch cannot tell apart, since it rounds K up to whole epochs."""
        if self.curve.rule is not RuleName.EPOCH:
            return []
        epochs = [point for point in self.curve.points if point.epochs == self.least.epochs]
        if len(epochs) < 2:
            return []
        sizes = ", ".join(str(point.batch_size) for point in epochs)
        took = count_of(round(self.least.epochs or 0), "epoch")
        return [
            f"b = {sizes} all took {took}; rule epoch cannot tell them apart, "
            f"{self.advice.rule('middle')} can, without training."
        ]

    def first_reading(self) -> list[str]:
        sizes = [point.batch_size for point in self.curve.points if point.at_first_reading]
        if not sizes or not self.least.at_first_reading:
            return []
        cure = self.advice.smaller_window
        if self.curve.rule is RuleName.EPOCH:
            cure = f"{self.advice.rule('window')} with {cure}"
        return [
            f"b = {', '.join(map(str, sizes))} met the threshold at the rule's first reading, so "
            f"K may be smaller there; {cure} would show it."
        ]

    def ties(self) -> list[str]:
        ties = [
            point.batch_size
            for point in self.curve.distinct_points
            if point.all_reached and point.sfo == self.least.sfo
        ]
        return [f"The same SFO: b = {', '.join(map(str, ties))}."] if len(ties) > 1 else []

    def too_few(self) -> list[str]:
        complete = sum(point.all_reached for point in self.curve.distinct_points)
        if complete >= FEWEST_SIZES:
            return []
        return [f"Only {count_of(complete, 'batch size')} reached it: too few for a curve."]

    def unreached(self) -> list[str]:
        return [
            *self._where("Diverged", lambda run: run.status is Status.DIVERGED),
            *self._where("Not reached", lambda run: run.status is Status.EXHAUSTED),
            *self.abandoned(),
        ]

    def abandoned(self) -> list[str]:
        """Runs given up by a search, with their SFO by then, the least of several seeds."""
        places = [
            f"{point.batch_size} (SFO > {min(run.sfo_exceeded for run in point.abandoned):,})"
            for point in self.curve.points
            if point.abandoned
        ]
        return [f"Abandoned by the search at b = {', '.join(places)}."] if places else []

    def _where(self, what: str, happened: Callable[[Result], bool]) -> list[str]:
        places = []
        for point in self.curve.unreached:
            count = sum(map(happened, point.missed))
            some = f" ({count} of {len(point.runs)} seeds)" if count < len(point.runs) else ""
            if count:
                places.append(f"{point.batch_size}{some}")
        return [f"{what} at b = {', '.join(places)}."] if places else []

    def limits(self) -> list[str]:
        found = []
        points = self.curve.points
        if sliced := ", ".join(str(point.batch_size) for point in points if point.sliced):
            found.append(f"In slices, whose statistics BatchNorm used: b = {sliced}.")
        if whole := [p for p in points if p.effective_batch_size < p.batch_size]:
            sizes = ", ".join(str(point.batch_size) for point in whole)
            found.append(f"b = {sizes}: the whole data set, {whole[0].effective_batch_size:,}.")
        if not self.curve.is_repeated:
            known = len(self.curve.seeds) == 1 and self.curve.seeds[0] is not None
            once = "Only one seed." if known else "Each batch size was run only once."
            found.append(f"{once} {self.advice.more_seeds}")
        return found

    def in_a_gap(self) -> int | None:
        """The middle of the wider gap beside the least SFO, if it is more than an octave."""
        sizes = self._sizes
        place = sizes.index(self.least.batch_size)
        gaps = []
        for i, j in ((place - 1, place), (place, place + 1)):
            if i >= 0 and j < len(sizes) and sizes[j] > 2 * sizes[i]:
                gaps.append((sizes[j] / sizes[i], round(math.sqrt(sizes[i] * sizes[j]))))
        return max(gaps)[1] if gaps else None
