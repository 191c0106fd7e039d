"""The time left for the runs of a sweep and for the sweep itself, in numbers that agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cbs_lightning.console import time_left as in_words
from cbs_lightning.results.result import UNFINISHED
from cbs_lightning.sweep.live.board import JobState, Phase


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

    The time for all is never less than that for one. A job is expected to take as long as the
    finished jobs of its variant with the nearest batch size, or of all variants if its own has
    none. A running job that has already taken longer, or has no such example, takes at most the
    rest of its budget. If nothing is known about a job it is left out, and the time for all is
    None.
    """
    examples = [
        job
        for job in jobs
        if job.phase is Phase.FINISHED and not job.known and job.status not in UNFINISHED
    ]
    open_jobs = [job for job in jobs if job.phase is not Phase.FINISHED]
    kinds = {(job.variant, job.batch_size) for job in open_jobs}
    expected = {kind: _expected_seconds(*kind, examples) for kind in kinds}
    found = {job.job: _left(job, expected[job.variant, job.batch_size]) for job in open_jobs}
    left = {number: each for number, each in found.items() if each is not None}
    if len(left) < len(open_jobs):
        return left, None
    seconds = [each.seconds for each in left.values()]
    at_most = bool(left) and all(each.at_most for each in left.values())
    return left, TimeLeft(max([sum(seconds) / workers, *seconds]), at_most)


def _expected_seconds(variant: str, batch_size: int, examples: Sequence[JobState]) -> float | None:
    """The mean over the nearest examples, of which there are several if there are several seeds."""
    similar = [job for job in examples if job.variant == variant] or examples
    distances = [abs(math.log(job.batch_size / batch_size)) for job in similar]
    nearest = min(distances, default=None)
    seconds = [job.seconds for job, far in zip(similar, distances, strict=True) if far == nearest]
    return fmean(seconds) if seconds else None


def _left(job: JobState, expected: float | None) -> TimeLeft | None:
    if job.phase is Phase.WAITING:  # perhaps since its worker died
        return TimeLeft(expected, at_most=False) if expected is not None else None
    budget = job.seconds_left
    if expected is not None and expected > job.seconds:
        rest = expected - job.seconds
        return TimeLeft(rest if budget is None else min(rest, budget), at_most=False)
    return TimeLeft(budget, at_most=True) if budget is not None else None
