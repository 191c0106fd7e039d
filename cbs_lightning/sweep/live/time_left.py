"""How long a sweep still takes, by what its finished jobs took."""

import math
from collections.abc import Sequence
from statistics import fmean

from cbs_lightning.results.result import UNFINISHED
from cbs_lightning.sweep.live.board import JobState, Phase


def sweep_seconds_left(jobs: Sequence[JobState], workers: int) -> float | None:
    """About; None where nothing is known to tell it by.

    A job takes as long as the finished ones of its variant with the nearest batch size, or of all
    variants where its own has none. A running one that has taken longer already, or has no such
    example, takes at most the rest of its budget.
    """
    examples = [job for job in jobs if _is_example(job)]
    expected: dict[tuple[str, int], float | None] = {}
    left = []
    for job in jobs:
        if job.phase is Phase.FINISHED:
            continue
        kind = (job.variant, job.batch_size)
        if kind not in expected:
            expected[kind] = _expected_seconds(*kind, examples)
        seconds = _seconds_left(job, expected[kind])
        if seconds is None:
            return None
        left.append(seconds)
    return max(sum(left) / workers, *left) if left else 0.0


def _is_example(job: JobState) -> bool:
    return job.phase is Phase.FINISHED and not job.known and job.status not in UNFINISHED


def _expected_seconds(variant: str, batch_size: int, examples: Sequence[JobState]) -> float | None:
    """The mean of the nearest examples, which may be several seeds'."""
    similar = [example for example in examples if example.variant == variant] or examples
    if not similar:
        return None
    distances = [abs(math.log(example.batch_size / batch_size)) for example in similar]
    nearest = min(distances)
    return fmean(
        example.seconds
        for example, distance in zip(similar, distances, strict=True)
        if distance == nearest
    )


def _seconds_left(job: JobState, expected: float | None) -> float | None:
    if job.phase is Phase.WAITING:
        return expected
    rest = expected - job.seconds if expected is not None else None
    if rest is None or rest <= 0:
        return job.seconds_left
    return min(rest, job.seconds_left) if job.seconds_left is not None else rest
