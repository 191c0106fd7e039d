"""What a run recorded at every step, and when it met a threshold: pure functions of arrays."""

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1  # as a number of samples that were classified right


@dataclass(frozen=True)
class Trajectory:
    """One entry a step: the batch's mean loss, how many of it were classified right, its size."""

    loss: NDArray[np.float32]
    correct: NDArray[np.int32]
    size: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, steps: slice) -> "Trajectory":
        return Trajectory(self.loss[steps], self.correct[steps], self.size[steps])

    def __add__(self, other: Self) -> "Trajectory":
        return Trajectory(
            np.concatenate((self.loss, other.loss)),
            np.concatenate((self.correct, other.correct)),
            np.concatenate((self.size, other.size)),
        )

    @classmethod
    def empty(cls) -> "Trajectory":
        return cls(np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.int32))

    def digest(self) -> str:
        """The same for the same steps, bit for bit."""
        arrays = (self.loss.astype("<f4"), self.correct.astype("<i4"), self.size.astype("<i4"))
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def first_non_finite(self) -> int | None:
        """The step, counted from 1, whose loss is not a finite number."""
        bad = np.flatnonzero(~np.isfinite(self.loss))
        return int(bad[0]) + 1 if len(bad) else None


class RuleName(StrEnum):
    EPOCH = "epoch"
    WINDOW = "window"


@dataclass(frozen=True)
class Rule:
    """How a loss is read off a trajectory.

    `epoch`: the plain mean of the mini-batch losses of an epoch, at its last step. `window`: at
    every step, the sample-weighted mean over the fewest latest whole batches that total at least
    `window` samples; before that many were seen there is none.
    """

    name: RuleName
    steps_per_epoch: int
    window: int  # samples

    def spans(self, size: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and one-past-last index of the batches behind each reading, in order of time."""
        if self.name is RuleName.EPOCH:
            ends = np.arange(self.steps_per_epoch, len(size) + 1, self.steps_per_epoch)
            return ends - self.steps_per_epoch, ends
        seen = np.concatenate(([0], np.cumsum(size, dtype=np.int64)))
        ends = np.flatnonzero(seen >= self.window)
        starts = np.searchsorted(seen, seen[ends] - self.window, side="right") - 1
        return starts, ends

    def weights(self, size: NDArray[np.int32]) -> NDArray[np.float64]:
        if self.name is RuleName.EPOCH:
            return np.ones(len(size))
        return size.astype(np.float64)


@dataclass(frozen=True)
class Reading:
    """A trajectory read by a rule: at step `steps`, over the span the rule gives there."""

    steps: int
    samples: int  # since the start
    loss: float
    accuracy: float | None  # None: nobody counted what was classified right


@dataclass(frozen=True)
class Readings:
    """All readings of a trajectory by a rule, in order of time, up to a loss that is not finite.

    Differences of running sums carry their rounding, which is all that is left of `means` after a
    spike: they find candidates, and the exact sums of `reading` decide.
    """

    trajectory: Trajectory
    rule: Rule
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]  # as many steps were made
    means: NDArray[np.float64]
    rounding: NDArray[np.float64]

    @classmethod
    def of(cls, trajectory: Trajectory, rule: Rule) -> "Readings":
        last_finite = (trajectory.first_non_finite() or len(trajectory) + 1) - 1
        finite = trajectory[:last_finite]
        starts, ends = rule.spans(finite.size)
        weights = rule.weights(finite.size)
        total = np.concatenate(([0.0], np.cumsum(weights * finite.loss)))
        weight = np.concatenate(([0.0], np.cumsum(weights)))
        span_weight = weight[ends] - weight[starts]
        rounding = len(total) * np.finfo(np.float64).eps * total[ends] / span_weight
        means = (total[ends] - total[starts]) / span_weight
        return cls(trajectory, rule, starts, ends, means, rounding)

    def first_crossing(self, threshold: float, since: int = 0) -> Reading | None:
        """The first one after step `since` whose loss is at most `threshold`, if there is one."""
        candidates = np.flatnonzero((self.means - self.rounding <= threshold) & (self.ends > since))
        for index in candidates:
            reading = self.reading(int(index))
            if reading.loss <= threshold:
                return reading
        return None

    def reading(self, index: int) -> Reading:
        start, end = int(self.starts[index]), int(self.ends[index])
        return _reading(self.trajectory, self.rule, start, end)


def first_crossing(
    trajectory: Trajectory, rule: Rule, threshold: float, since: int = 0
) -> Reading | None:
    """The first reading after step `since` whose loss is at most `threshold`, if there is one."""
    return Readings.of(trajectory, rule).first_crossing(threshold, since)


def last_reading(trajectory: Trajectory, rule: Rule) -> Reading | None:
    """The latest reading; before the rule gives one, the mean over all steps so far."""
    if not len(trajectory):
        return None
    starts, ends = rule.spans(trajectory.size)
    if not len(ends):
        return _reading(trajectory, rule, 0, len(trajectory))
    return _reading(trajectory, rule, int(starts[-1]), int(ends[-1]))


def _reading(trajectory: Trajectory, rule: Rule, start: int, end: int) -> Reading:
    span = trajectory[start:end]
    weights = rule.weights(span.size)
    loss = span.loss.astype(np.float64)
    return Reading(
        steps=end,
        samples=int(trajectory.size[:end].sum(dtype=np.int64)),
        loss=_exact_sum(weights * loss) / float(weights.sum()),
        accuracy=_accuracy(span),
    )


def _accuracy(span: Trajectory) -> float | None:
    if (span.correct == UNKNOWN).any():
        return None
    return float(span.correct.sum(dtype=np.int64) / span.size.sum(dtype=np.int64))


def _exact_sum(values: NDArray[np.float64]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # not finite
        return math.nan
