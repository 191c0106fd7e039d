"""Finds the batch size with the least K·b in a few runs: where to run next, and when to stop.

K falls with b and K·b has one minimum in log b, so a batch size is the best one as soon as one on
either side of it did worse. Everything is a function of the runs so far, in whatever order they
were made and for whatever purpose.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from cbs_lightning.search.narrowing import Narrowing
from cbs_lightning.search.trials import (
    BatchSizeTrials,
    Bracket,
    Cell,
    Proposal,
    Trial,
    group_by_batch_size,
    seeds_left,
)

__all__ = ["Proposal", "Search", "Trial", "Verdict"]

QUARTER = 0.25  # of the batch sizes in a gap lie below the one to run: larger ones cost more
SCOUTS = 2  # runs at a time before one has reached the threshold: each may cost its whole budget


@dataclass(frozen=True)
class Verdict:
    """What is known of b*. `interval` has batch sizes that did worse for its ends, 0 or infinity
    where there is none on that side; None while no batch size is the best."""

    known: bool
    batch_size: int | None  # the best so far
    interval: tuple[float, float] | None
    summary: str


@dataclass(frozen=True)
class Search:
    """Finds the batch size with the least K·b among `batch_sizes`, effective ones in rising order.

    b* is known when others within so many `octaves`, or the next ones where those are further, did
    worse: they took more gradients, or never reached the threshold. With several seeds, others than
    the first are run where one leaves a doubt. Of equal batch sizes the larger is the better. Runs
    that `failed`, by batch size and seed, would fail again, and are not proposed.
    """

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    octaves: float = 1.0
    give_up: float = 1.5  # times the least SFO so far, beyond which a run is abandoned
    failed: frozenset[Cell] = frozenset()

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

    def sfo_limit(self, trials: Iterable[Trial]) -> float | None:
        """Beyond which a run is abandoned; None: nothing was reached yet."""
        reached = [trial.sfo for trial in self._relevant(trials) if trial.sfo is not None]
        return self.give_up * min(reached) if reached else None

    def limit_applies(self, seed: int) -> bool:
        """Whether runs with that seed are abandoned at all. Others than the first are run where a
        batch size may be the best, whose median takes them whole."""
        return seed == self.seeds[0]

    def propose(self, trials: Iterable[Trial], count: int) -> list[Proposal]:
        """At most so many runs to be made at the same time, the most useful first; none where b*
        is known or out of reach."""
        relevant = self._relevant(trials)
        narrowing = self._narrowing(relevant)
        if narrowing is None:
            return self._scouts(group_by_batch_size(relevant))[:count]
        found: list[Proposal] = []
        while len(found) < count and narrowing and (proposal := narrowing.next_run()):
            found.append(proposal)
            relevant.append(narrowing.predict(proposal))
            narrowing = self._narrowing(relevant)
        return found

    def verdict(self, trials: Iterable[Trial]) -> Verdict:
        relevant = self._relevant(trials)
        ended = not self.propose(relevant, 1)
        tried = group_by_batch_size(relevant)
        if not tried:
            summary = "Every run failed." if ended else "Nothing was run yet."
            return Verdict(False, None, None, summary)
        bracket = Bracket.of(tried)
        if not bracket.best.reached:
            return Verdict(False, None, None, self._describe_unreached(tried, bracket, ended))
        if not bracket.best.complete:
            summary = "At no batch size did all seeds reach the threshold."
            return Verdict(False, None, None, summary)
        interval = (
            float(bracket.low.batch_size) if bracket.low else 0.0,
            float(bracket.high.batch_size) if bracket.high else math.inf,
        )
        return Verdict(
            ended, bracket.best.batch_size, interval, self._describe_best(bracket, ended)
        )

    def _relevant(self, trials: Iterable[Trial]) -> list[Trial]:
        return [t for t in trials if t.batch_size in self.batch_sizes and t.seed in self.seeds]

    @cached_property
    def _runnable(self) -> tuple[int, ...]:
        """The batch sizes but those whose runs failed with every seed."""
        cells = set(product(self.batch_sizes, self.seeds)) - self.failed
        return tuple(sorted({b for b, _ in cells}))

    def _narrowing(self, relevant: list[Trial]) -> Narrowing | None:
        """None: nothing was reached yet."""
        limit = self.sfo_limit(relevant)
        if limit is None:
            return None
        tried = group_by_batch_size(relevant)
        return Narrowing(self._runnable, self.seeds, self.octaves, limit, tried, self.failed)

    def _scouts(self, tried: list[BatchSizeTrials]) -> list[Proposal]:
        """While nothing was reached, where that is likely and cheap: a quarter into the widest gap
        that may hold b*."""
        gaps = self._gaps(tried)
        found: list[int] = []
        while len(found) < SCOUTS and (widest := max(gaps, key=len, default=[])):
            place = round(QUARTER * (len(widest) - 1))
            found.append(widest[place])
            gaps.remove(widest)
            gaps += [widest[:place], widest[place + 1 :]]
        return [Proposal(b, seeds_left(b, self.seeds, self.failed)[0]) for b in found]

    def _gaps(self, tried: list[BatchSizeTrials]) -> list[list[int]]:
        """Batch sizes not run, between those that were. The lowest loss tells beside which of them
        b* lies, unless there is none since all diverged."""
        if tried and math.isfinite((bracket := Bracket.of(tried)).best.loss):
            return bracket.untried(self._runnable, octaves=0)
        gaps: list[list[int]] = [[]]
        for b in self._runnable:
            if any(group.batch_size == b for group in tried):
                gaps.append([])
            else:
                gaps[-1].append(b)
        return gaps

    def _describe_unreached(
        self, tried: list[BatchSizeTrials], bracket: Bracket, ended: bool
    ) -> str:
        text = f"No run reached the threshold (b = {_list_sizes(tried)})"
        if math.isfinite(loss := bracket.best.loss):
            text += f"; b = {bracket.best.batch_size} came nearest, with a loss of {loss:.3g}"
        if ended and len(tried) < len(self._runnable):
            text += ", and the others are further off"
        return f"{text}."

    def _describe_best(self, bracket: Bracket, ended: bool) -> str:
        b, worse = bracket.best.batch_size, _list_sizes(bracket.ends)
        if not ended:
            beside = f"; b = {worse} did no better" if worse else ""
            return f"b = {b} is the best so far{beside}."
        if not worse:
            rest = "" if len(self.batch_sizes) == 1 else " that could be run"
            return f"b = {b} is the only batch size in the range{rest}."
        text = f"b* = {b}: b = {worse} did no better."
        if bracket.low is None:
            return f"{text} It is the smallest in the range: b* may be smaller still."
        if bracket.high is None:
            return f"{text} It is the largest in the range: b* may be larger still."
        return text


def _list_sizes(tried: list[BatchSizeTrials]) -> str:
    return ", ".join(str(group.batch_size) for group in tried)
