"""Finds the batch size with the least K·b in a few runs: where to run next, and when to stop.

K falls with b and K·b has one minimum in log b, so a batch size is the best one as soon as one run
on either side of it took more gradients. Everything is a function of the runs so far, in whatever
order they were made and by whom.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean, median

from scipy.special import ndtr

from cbs_lightning.beliefs import Beliefs, beliefs
from cbs_lightning.measurements import measurements

QUARTER = 0.25  # of the batch sizes in a gap lie below the one to run: larger ones cost more
SCOUTS = 2  # runs at a time before one has reached the threshold: each may cost its whole budget
DOUBT = 0.1  # that a neighbour is the better one: with more, another seed is run


@dataclass(frozen=True)
class Trial:
    """What a run of a search found: K, or how far it got in vain."""

    batch_size: int  # effective
    seed: int
    steps: int | None  # K; None: not reached
    steps_run: int  # that were looked at
    loss: float | None  # by the rule, at K or at the end

    @property
    def sfo(self) -> int | None:
        return None if self.steps is None else self.steps * self.batch_size

    @property
    def spent(self) -> int:
        """The gradients that it cost."""
        return self.steps_run * self.batch_size


@dataclass(frozen=True)
class Proposal:
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Verdict:
    """What is known of b*. `interval` has batch sizes that took more gradients for its ends, or 0
    or infinity where there is none on that side; None while nothing was reached."""

    known: bool
    batch_size: int | None  # the best so far
    interval: tuple[float, float] | None
    told: str


@dataclass(frozen=True)
class Search:
    """Finds the batch size with the least K·b among `batch_sizes`, effective ones in rising order.

    b* is known when batch sizes within so many `octaves`, or the next ones if those are further,
    took more gradients or were abandoned. With several seeds, others than the first are run where
    one run leaves a doubt. Of equal ones the larger batch size is the better one.
    """

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    octaves: float = 1.0
    give_up: float = 1.5  # times the least SFO so far, beyond which a run is abandoned

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not sizes or list(sizes) != sorted({*sizes}) or sizes[0] < 1:
            raise ValueError(f"batch_sizes must be positive and rise, not {list(sizes)}")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise ValueError(f"seeds must be distinct, not {list(self.seeds)}")
        if not self.octaves > 0:
            raise ValueError(f"octaves must be positive, not {self.octaves:g}")
        if not self.give_up > 1:
            raise ValueError(f"give_up must be above 1, not {self.give_up:g}")

    def most_sfo(self, trials: Iterable[Trial]) -> float | None:
        """Beyond which a run is abandoned; None: nothing was reached yet."""
        return self._standing(trials).most_sfo

    def propose(self, trials: Iterable[Trial], count: int) -> list[Proposal]:
        """At most so many runs to be made at the same time, the most useful first; none where b*
        is known, or is out of reach."""
        now = self._standing(trials)
        if now.most_sfo is None:
            return now.scouts(count)
        found: list[Proposal] = []
        while len(found) < count and (proposal := now.next_run()) is not None:
            found.append(proposal)
            now = self._standing([*now.trials, now.imagined(proposal)])
        return found

    def verdict(self, trials: Iterable[Trial]) -> Verdict:
        now = self._standing(trials)
        best = now.best
        ended = now.next_run() is None
        if best is None or not best.complete:
            return Verdict(False, None, None, now.why_unknown(ended))
        low, high = now.neighbours
        interval = (
            0.0 if low is None else float(low.batch_size),
            math.inf if high is None else float(high.batch_size),
        )
        return Verdict(ended, best.batch_size, interval, now.what_is_known(ended))

    def _standing(self, trials: Iterable[Trial]) -> "_Standing":
        counted = (t for t in trials if t.batch_size in self.batch_sizes and t.seed in self.seeds)
        return _Standing(self, sorted(counted, key=lambda t: (t.batch_size, t.seed, t.steps_run)))


@dataclass(frozen=True)
class _Point:
    """The trials of one batch size, at least one."""

    place: int  # among the batch sizes
    trials: tuple[Trial, ...]

    @property
    def batch_size(self) -> int:
        return self.trials[0].batch_size

    @property
    def reached(self) -> list[int]:
        """The SFO of those that did."""
        return [trial.sfo for trial in self.trials if trial.sfo is not None]

    @property
    def complete(self) -> bool:
        return len(self.reached) == len(self.trials)

    @property
    def rank(self) -> tuple[float, float, int]:
        """The least is the best: all seeds reached, the fewest gradients, and the larger of two
        alike; where no run reached the threshold, the lowest loss at the end of the budget."""
        missed = 1 - len(self.reached) / len(self.trials)
        losses = [math.inf if t.loss is None else t.loss for t in self.trials]
        return missed, median(self.reached) if self.reached else fmean(losses), -self.batch_size

    def log_sfo(self, at_least: float) -> float:
        """The mean; of a run in vain what it spent, or what is given if that is more."""
        return fmean(math.log(t.sfo or max(t.spent, at_least)) for t in self.trials)


@dataclass(frozen=True)
class _Standing:
    """What the trials of a search say."""

    search: Search
    trials: Sequence[Trial]

    @cached_property
    def points(self) -> list[_Point]:
        sizes = self.search.batch_sizes
        return [
            _Point(sizes.index(size), tuple(same))
            for size, same in groupby(self.trials, lambda trial: trial.batch_size)
        ]

    @cached_property
    def best(self) -> _Point | None:
        return min(self.points, key=lambda point: point.rank, default=None)

    @cached_property
    def most_sfo(self) -> float | None:
        reached = [sfo for point in self.points for sfo in point.reached]
        return self.search.give_up * min(reached) if reached else None

    @cached_property
    def neighbours(self) -> tuple[_Point | None, _Point | None]:
        """Of the best one, the next that were run; all that were run are worse."""
        assert self.best is not None
        at = self.points.index(self.best)
        return (
            self.points[at - 1] if at > 0 else None,
            self.points[at + 1] if at + 1 < len(self.points) else None,
        )

    @cached_property
    def beliefs(self) -> Beliefs:
        reached = [trial for trial in self.trials if trial.steps is not None]
        missed = [(trial.batch_size, trial.steps_run) for trial in self.trials if not trial.steps]
        data = measurements(
            [trial.batch_size for trial in reached],
            [trial.steps or 0 for trial in reached],
            missed,
        )
        return beliefs(data, self.search.batch_sizes)

    def next_run(self) -> Proposal | None:
        """The one that tells most; None where b* is known, or is out of reach."""
        if self.most_sfo is None:
            return next(iter(self.scouts(1)), None)
        below, above = self._between()
        if not below and not above:
            return self._replicate(self.most_sfo)
        shrinks = self._shrinkage(self.most_sfo)
        place = max([*below, *above], key=lambda i: (shrinks[i], i))
        return Proposal(self.search.batch_sizes[place], self.search.seeds[0])

    def scouts(self, count: int) -> list[Proposal]:
        """While nothing was reached: where reaching is likely and cheap, a quarter into the widest
        gap that may hold b*."""
        sizes, found = self.search.batch_sizes, list[int]()
        gaps = self._between() if self.best else [list(range(len(sizes)))]
        while len(found) < min(count, SCOUTS) and (widest := max(gaps, key=len)):
            place = round(QUARTER * (len(widest) - 1))
            found.append(widest[place])
            gaps = [
                *(gap for gap in gaps if gap is not widest),
                widest[:place],
                widest[place + 1 :],
            ]
        return [Proposal(sizes[place], self.search.seeds[0]) for place in found]

    def _between(self) -> list[list[int]]:
        """The places, not run, between the best and its neighbours, where these are too far."""
        assert self.best is not None
        place, (low, high) = self.best.place, self.neighbours
        below = range(low.place + 1 if low else 0, place)
        above = range(place + 1, high.place if high else len(self.search.batch_sizes))
        return [
            [] if low and self._near(low) else list(below),
            [] if high and self._near(high) else list(above),
        ]

    def _near(self, neighbour: _Point) -> bool:
        assert self.best is not None
        distance = abs(math.log2(neighbour.batch_size / self.best.batch_size))
        return self.most_sfo is not None and distance <= self.search.octaves

    def _shrinkage(self, most: float) -> list[float]:
        """At every place, by how many octaves a run is expected to narrow the interval of b* for
        each gradient it takes. It becomes one end where it is worse than the best, and makes the
        best one end where it is better."""
        assert self.best is not None
        at = [math.log2(size) for size in self.search.batch_sizes]
        low, high = self.neighbours
        first = at[low.place] if low else at[0] - 1
        last = at[high.place] if high else at[-1] + 1
        middle = at[self.best.place]
        better = self.beliefs.chance_below(median(self.best.reached))
        costs = self.beliefs.cost(most)
        return [
            ((1 - p) * (last - x) + p * (middle - first)) / cost
            if x > middle
            else ((1 - p) * (x - first) + p * (last - middle)) / cost
            for x, p, cost in zip(at, better, costs, strict=True)
        ]

    def _replicate(self, most: float) -> Proposal | None:
        """Another seed, where that lessens most, per gradient, the doubt about the best one."""
        best = self.best
        assert best is not None
        doubted = [near for near in self.neighbours if near and self._doubt(best, near) > DOUBT]
        useful = [best, *doubted] if doubted or len(best.trials) == 1 else []
        useful = [point for point in useful if self._seeds_left(point)]
        if not useful:
            return None

        def lessens(point: _Point) -> float:
            runs = len(point.trials)
            return 1 / (runs * (runs + 1)) / min(math.exp(point.log_sfo(most)), most)

        point = max(useful, key=lambda point: (lessens(point), point.batch_size))
        return Proposal(point.batch_size, self._seeds_left(point)[0])

    def _doubt(self, best: _Point, neighbour: _Point) -> float:
        """How likely it is by the noise that the neighbour is the better one."""
        most = self.most_sfo or math.inf
        error = self.beliefs.noise * math.sqrt(1 / len(best.trials) + 1 / len(neighbour.trials))
        return float(ndtr((best.log_sfo(most) - neighbour.log_sfo(most)) / error))

    def _seeds_left(self, point: _Point) -> list[int]:
        run = {trial.seed for trial in point.trials}
        return [seed for seed in self.search.seeds if seed not in run]

    def imagined(self, proposal: Proposal) -> Trial:
        """What the run will find, as far as that can be told."""
        assert self.most_sfo is not None
        b, seed = proposal.batch_size, proposal.seed
        sfo = self.beliefs.median_sfo(self.search.batch_sizes.index(b))
        if sfo > self.most_sfo:
            return Trial(b, seed, None, math.ceil(self.most_sfo / b), None)
        steps = max(1, round(sfo / b))
        return Trial(b, seed, steps, steps, None)

    def why_unknown(self, ended: bool) -> str:
        if self.best is None:
            return "Nothing was run yet."
        if self.most_sfo is not None:
            return "At no batch size did all seeds reach the threshold."
        tried = ", ".join(str(point.batch_size) for point in self.points)
        text = f"No run reached the threshold (b = {tried})"
        loss = self.best.rank[1]
        if math.isfinite(loss):
            text += f"; b = {self.best.batch_size} came nearest, with a loss of {loss:.3g}"
        if ended and len(self.points) < len(self.search.batch_sizes):
            text += ", and the others are further off"
        return f"{text}."

    def what_is_known(self, ended: bool) -> str:
        assert self.best is not None
        low, high = self.neighbours
        b, beside = self.best.batch_size, [str(p.batch_size) for p in (low, high) if p]
        if not ended:
            others = f"; b = {' and '.join(beside)} did worse" if beside else ""
            return f"b = {b} is the best so far{others}."
        if len(self.search.batch_sizes) == 1:
            return f"b = {b} is the only batch size in the range."
        text = f"b* = {b}: b = {' and '.join(beside)} did worse."
        if low is None:
            return f"{text} It is the smallest in the range: b* may be smaller still."
        if high is None:
            return f"{text} It is the largest in the range: b* may be larger still."
        return text
