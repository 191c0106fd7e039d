"""The time left for the runs of a sweep and for the sweep itself, in numbers that agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cbs_lightning.console import time_left as in_words
from cbs_lightning.results.result import UNFINISHED
from cbs_lightning.sweep.live.board import JobState, Phase

DOUBTFUL = 0.2  # share of a run that may be left although it was expected to have ended
REFUTED = 2.0  # times what its examples took, after which they say nothing of a run


@dataclass(frozen=True)
class TimeLeft:
    seconds: float
    at_most: bool  # to the end of a budget; else by what similar jobs took

    def __str__(self) -> str:
        return in_words(self.seconds, at_most=self.at_most)


def time_left(
    jobs: Sequence[JobState], workers: int
) -> tuple[dict[int, TimeLeft], TimeLeft | None]:
    """The time left for each unfinished job, by number, and for all of them together.

    A waiting job is expected to take as long as its examples: the finished jobs of its variant with
    the nearest batch size, or of all variants if its own has none. A running one is expected to
    take as many epochs as they did at its own speed, or more if its loss falls too slowly for that,
    and never to be nearly done. One that took twice as many, or has no example, takes at most the
    rest of its budget.

    The time for all is never less than that for one. If nothing is known about a job it is left
    out, and the time for all is None.
    """
    examples = [
        job
        for job in jobs
        if job.phase is Phase.FINISHED and not job.known and job.status not in UNFINISHED
    ]
    open_jobs = [job for job in jobs if job.phase is not Phase.FINISHED]
    found = {job.job: _left(job, _nearest(job, examples)) for job in open_jobs}
    left = {number: each for number, each in found.items() if each is not None}
    if len(left) < len(open_jobs):
        return left, None
    seconds = [each.seconds for each in left.values()]
    at_most = any(each.at_most for each in left.values())
    return left, TimeLeft(max([sum(seconds) / workers, *seconds]), at_most)


def _nearest(job: JobState, examples: Sequence[JobState]) -> list[JobState]:
    """The examples of a job; there are several if there are several seeds."""
    similar = [each for each in examples if each.variant == job.variant] or examples
    distances = [abs(math.log(each.batch_size / job.batch_size)) for each in similar]
    nearest = min(distances, default=None)
    return [each for each, far in zip(similar, distances, strict=True) if far == nearest]


def _left(job: JobState, examples: Sequence[JobState]) -> TimeLeft | None:
    seconds = fmean(each.seconds for each in examples) if examples else None
    if job.phase is Phase.WAITING:  # perhaps since its worker died
        return TimeLeft(seconds, at_most=False) if seconds is not None else None
    budget, left = job.seconds_left, None
    if (speed := job.seconds_per_step) is not None and (steps := _steps(job, examples)):
        left = _more_steps(job, steps)
        left = left * speed if left is not None else None
    elif seconds is not None:
        left = _rest(seconds, job.seconds)
    if left is not None:
        return TimeLeft(left if budget is None else min(left, budget), at_most=False)
    return TimeLeft(budget, at_most=True) if budget is not None else None


def _steps(job: JobState, examples: Sequence[JobState]) -> float | None:
    """As many as the epochs of the examples have, if that is known."""
    epochs = [each.steps / (each.steps_per_epoch or 1) for each in examples if each.steps]
    return fmean(epochs) * job.steps_per_epoch if epochs and job.steps_per_epoch else None


def _more_steps(job: JobState, steps: float) -> float | None:
    """How many more steps a job takes whose examples took so many; None if they say nothing of it.

    At the rate at which its loss has fallen, it may take more. That counts for more the more of the
    examples' steps it has made, and alone after them.
    """
    if job.share == 0:
        return _rest(steps, job.steps)
    if job.steps > REFUTED * steps:
        return None
    by_loss = job.steps / job.share
    expected = steps + min(1.0, job.steps / steps) * max(0.0, by_loss - steps)
    return max(expected - job.steps, DOUBTFUL * job.steps)


def _rest(expected: float, done: float) -> float | None:
    """What is left of what is expected; None if it may well be exceeded."""
    return expected - done if expected - done > DOUBTFUL * expected else None
