"""Search for the batch size with the least K·b: which run to make next, and when to stop.

A batch size is the best as soon as a worse one was found on either side of it. `section` says
which batch size to run next, `replication` where to run another seed. Everything is a function of
the runs so far: their order and their purpose do not matter.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.replication import Replication
from cbs_lightning.search.section import Section
from cbs_lightning.search.trials import (
    BatchSizeTrials,
    Bracket,
    Cell,
    Proposal,
    Trial,
    group_by_batch_size,
    is_whole,
    least_sfo,
    seeds_left,
)

__all__ = ["Prediction", "Proposal", "Search", "Trial", "Verdict"]

SCOUTS = 2  # concurrent runs until one reaches the threshold: each may use its whole budget


@dataclass(frozen=True)
class Verdict:
    """What the runs so far say about b*.

    Attributes:
        known: whether the search has ended with an answer.
        batch_size: the best batch size so far; None until all runs of one reached the threshold.
        interval: the nearest batch sizes that did worse, below and above; 0 or infinity on a side
            without one, None if `batch_size` is.
        summary: the same in one or two sentences.
    """

    known: bool
    batch_size: int | None
    interval: tuple[float, float] | None
    summary: str


@dataclass(frozen=True)
class Search:
    """Find the batch size with the least K·b in as few gradients as possible.

    A search has no state: pass all trials so far to each method. Trials with other batch sizes or
    seeds are ignored. b* is known when a batch size on either side of it, within `octaves` or next
    to it in `batch_sizes`, did worse: it took more gradients or missed the threshold. Where those
    on a side are hardly worse, the search also looks further out. At an edge of the range one side
    is enough. On a tie the larger batch size wins.

    Args:
        batch_sizes: effective batch sizes to choose from, ascending.
        seeds: the first is run at every batch size tried; the others only at the best one and at
            those that may be better.
        octaves: how close to b* the worse batch sizes must be, in factors of two.
        give_up: a run is abandoned beyond this multiple of the least median SFO so far.
        failed: (batch size, seed) of runs that crashed; they are not proposed.
        predicted: what is known about b* before the first run: where the search begins, and how
            closely it looks there. A wrong one costs some runs.

    Raises:
        ValueError: an argument is out of range.

    Propose runs, add their trials, and repeat until nothing is proposed:

    >>> search = Search(batch_sizes=(4, 8, 16, 32, 64))
    >>> search.propose([], count=1)
    [Proposal(batch_size=8, seed=0)]
    >>> trials = [Trial(batch_size=8, seed=0, steps=400, steps_run=400, loss=0.2)]
    >>> search.verdict(trials).summary
    'b = 8 is the best so far.'
    >>> search.sfo_limit(trials)
    4000.0
    >>> steps = {4: 900, 8: 400, 16: 150, 32: 90, 64: 60}  # what training would find
    >>> while proposals := search.propose(trials, count=2):
    ...     for run in proposals:
    ...         k = steps[run.batch_size]
    ...         trials.append(Trial(run.batch_size, run.seed, k, k, loss=0.2))
    >>> verdict = search.verdict(trials)
    >>> verdict.known, verdict.batch_size, verdict.interval
    (True, 16, (8.0, 32.0))
    >>> verdict.summary
    'least K·b at b = 16; b = 8, 32 did no better.'
    """

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    octaves: float = 1.0
    give_up: float = 1.25
    failed: frozenset[Cell] = frozenset()
    predicted: Prediction | None = None

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not all(is_whole(size) for size in sizes):
            raise ValueError(f"batch_sizes must be whole numbers, not {list(sizes)}")
        if not all(is_whole(seed) for seed in self.seeds):
            raise ValueError(f"seeds must be whole numbers, not {list(self.seeds)}")
        if not isinstance(self.predicted, Prediction | None):
            raise ValueError(f"predicted must be a Prediction, not {self.predicted!r}")
        if not sizes or list(sizes) != sorted({*sizes}) or sizes[0] < 1:
            raise ValueError(f"batch_sizes must be positive and rise, not {list(sizes)}")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise ValueError(f"seeds must be distinct, not {list(self.seeds)}")
        if not self.octaves > 0:
            raise ValueError(f"octaves must be positive, not {self.octaves:g}")
        if not self.give_up > 1:
            raise ValueError(f"give_up must be above 1, not {self.give_up:g}")

    def sfo_limit(self, trials: Iterable[Trial]) -> float | None:
        """SFO beyond which a run is abandoned; None if no run has reached the threshold yet.

        It falls with better batch sizes, and rises again if further seeds of the best need more.
        """
        least = least_sfo(self._asked_for(trials))
        return None if least is None else self.give_up * least

    def limit_applies(self, seed: int) -> bool:
        """Whether runs with this seed are abandoned at `sfo_limit`.

        Only those with the first seed are: the others serve a median, which needs whole runs.
        """
        return seed == self.seeds[0]

    def propose(self, trials: Iterable[Trial], count: int) -> list[Proposal]:
        """Up to `count` runs to make concurrently, the most useful first.

        Empty if b* is known, or if no batch size left could reach the threshold.
        """
        relevant = self._relevant(trials)
        most = count if self.sfo_limit(relevant) is not None else min(count, SCOUTS)
        found: list[Proposal] = []
        while len(found) < most and (proposal := self._next_run(relevant)):
            found.append(proposal)
            relevant.append(self._expected(proposal, relevant))
        return found

    def verdict(self, trials: Iterable[Trial]) -> Verdict:
        """What the trials say about b*; final once `propose` returns nothing."""
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
        summary = self._describe_best(bracket, tried, ended)
        return Verdict(ended, bracket.best.batch_size, interval, summary)

    def _asked_for(self, trials: Iterable[Trial]) -> list[Trial]:
        return [t for t in trials if t.batch_size in self.batch_sizes and t.seed in self.seeds]

    def _relevant(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those that tell: a run that was abandoned too soon, by today's limit, is to go on."""
        found = self._asked_for(trials)
        limit = self.sfo_limit(found)
        return [t for t in found if not t.abandoned or limit is None or t.spent > limit]

    @cached_property
    def _runnable(self) -> tuple[int, ...]:
        """Batch sizes that did not fail with every seed."""
        cells = set(product(self.batch_sizes, self.seeds)) - self.failed
        return tuple(sorted({b for b, _ in cells}))

    def _next_run(self, relevant: list[Trial]) -> Proposal | None:
        tried = group_by_batch_size(relevant)
        section = Section(self._runnable, tried, self.octaves, self.predicted)
        if (b := section.next_batch_size()) is not None:
            return Proposal(b, seeds_left(b, self.seeds, self.failed)[0])
        if self.sfo_limit(relevant) is None:
            return None
        return Replication(tried, self.seeds, self.failed).next_run()

    def _expected(self, proposal: Proposal, relevant: list[Trial]) -> Trial:
        """Likely outcome of a run, for choosing others to make at the same time: as before with
        another seed, else worse than the best so far."""
        b, seed = proposal.batch_size, proposal.seed
        if before := [trial for trial in relevant if trial.batch_size == b]:
            return replace(before[0], seed=seed)
        limit = self.sfo_limit(relevant)
        steps = 1 if limit is None else math.ceil(limit / b)
        return Trial(b, seed, None, steps, None if relevant else 0.0)

    def _describe_unreached(
        self, tried: list[BatchSizeTrials], bracket: Bracket, ended: bool
    ) -> str:
        text = f"No run reached the threshold (b = {_list_sizes(tried)})"
        if math.isfinite(loss := bracket.best.loss):
            text += f"; b = {bracket.best.batch_size} came nearest, with a loss of {loss:.3g}"
        if ended and len(tried) < len(self._runnable):
            text += ", and the others are further off"
        return f"{text}."

    def _describe_best(self, bracket: Bracket, tried: list[BatchSizeTrials], ended: bool) -> str:
        b, worse = bracket.best.batch_size, _list_sizes(bracket.ends)
        if not ended:
            beside = f"; b = {worse} did no better" if worse else ""
            return f"b = {b} is the best so far{beside}."
        if not worse:
            rest = "" if len(self.batch_sizes) == 1 else " that could be run"
            return f"b = {b} is the only batch size in the range{rest}."
        text = f"least K·b at b = {b}; b = {worse} did no better.{self._describe_doubt(tried)}"
        if bracket.low is None:
            return f"{text} It is the smallest in the range: b* may be smaller still."
        if bracket.high is None:
            return f"{text} It is the largest in the range: b* may be larger still."
        return text

    def _describe_doubt(self, tried: list[BatchSizeTrials]) -> str:
        """Which batch sizes may be the best, given how much seeds differ."""
        alike = Replication(tried, self.seeds, self.failed).as_good_as_best()
        if len(alike) == 1:
            return ""
        text = f" The best may be any from b = {alike[0]} to {alike[-1]}"
        if self._runnable[0] < alike[0] == tried[0].batch_size:
            text += ", or a smaller one"
        if self._runnable[-1] > alike[-1] == tried[-1].batch_size:
            text += ", or a larger one"
        return f"{text}."


def _list_sizes(tried: list[BatchSizeTrials]) -> str:
    return ", ".join(str(group.batch_size) for group in tried)
