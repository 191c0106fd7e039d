"""The losses that a run recorded, and when they met a threshold: pure functions of arrays."""

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
    """One entry per step: the batch's mean loss, how many samples were classified correctly, its
    size."""

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
        """A digest that is the same only for the same steps, bit for bit."""
        arrays = (self.loss.astype("<f4"), self.correct.astype("<i4"), self.size.astype("<i4"))
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def first_non_finite(self) -> int | None:
        """The step, counted from 1, whose loss is not a finite number."""
        bad = np.flatnonzero(~np.isfinite(self.loss))
        return int(bad[0]) + 1 if len(bad) else None


class RuleName(StrEnum):
    EPOCH = "epoch"
    WINDOW = "window"
    MIDDLE = "middle"


@dataclass(frozen=True)
class Rule:
    """How a loss is read off a trajectory.

    `epoch`: the plain mean of the mini-batch losses of an epoch, at its last step. `window`: at
    every step, the sample-weighted mean over the fewest latest whole batches that total at least
    `window` samples; before that many were seen there is none. `middle`: the same means, each at
    the middle step of its window, which is where a falling loss has them.
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

    def first_needed(self, size: NDArray[np.int32], since: int) -> int:
        """The first index of the batches behind any reading after step `since`."""
        if self.name is RuleName.EPOCH:
            return since // self.steps_per_epoch * self.steps_per_epoch
        back = 1
        while back < since and size[since - back : since].sum(dtype=np.int64) < self.window:
            back *= 2
        return max(0, since - back)

    def steps(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step that each reading is at, given the spans."""
        return (starts + ends + 2) // 2 if self.name is RuleName.MIDDLE else ends

    def window_steps(self, batch_size: int) -> int:
        return -(-self.window // batch_size)

    def steps_ahead(self, batch_size: int) -> int:
        """How many steps after K the rule looks at; a short last batch of an epoch adds one."""
        return (self.window_steps(batch_size) - 1) // 2 if self.name is RuleName.MIDDLE else 0

    def weights(self, size: NDArray[np.int32]) -> NDArray[np.float64]:
        if self.name is RuleName.EPOCH:
            return np.ones(len(size))
        return size.astype(np.float64)


@dataclass(frozen=True)
class Reading:
    """A loss read from a trajectory by a rule: at step `steps`, over the rule's span."""

    steps: int
    samples: int  # since the start
    loss: float
    accuracy: float | None  # None: nobody counted what was classified right


@dataclass(frozen=True)
class Readings:
    """The readings of a trajectory by a rule, in order of time, up to a loss that is not finite.

    Differences of running sums carry their rounding, which is all that is left of `means` after a
    spike: they find candidates, and the exact sums of `reading` decide.
    """

    trajectory: Trajectory
    rule: Rule
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]  # as many steps had been made when it could be read
    steps: NDArray[np.int64]  # that it is at
    means: NDArray[np.float64]
    rounding: NDArray[np.float64]

    @classmethod
    def of(cls, trajectory: Trajectory, rule: Rule, since: int = 0) -> "Readings":
        """All of them, or at least those after step `since`."""
        first = rule.first_needed(trajectory.size, since)
        latest = trajectory[first:]
        finite = latest[: (latest.first_non_finite() or len(latest) + 1) - 1]
        starts, ends = rule.spans(finite.size)
        weights = rule.weights(finite.size)
        total = np.concatenate(([0.0], np.cumsum(weights * finite.loss)))
        weight = np.concatenate(([0.0], np.cumsum(weights)))
        span_weight = weight[ends] - weight[starts]
        rounding = len(total) * np.finfo(np.float64).eps * total[ends] / span_weight
        means = (total[ends] - total[starts]) / span_weight
        starts, ends = starts + first, ends + first
        return cls(trajectory, rule, starts, ends, rule.steps(starts, ends), means, rounding)

    def first_crossing(self, threshold: float, since: int = 0) -> Reading | None:
        """The first one read after step `since` whose loss is at most `threshold`, if any."""
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
    """The first reading made after step `since` whose loss is at most `threshold`, if any."""
    return Readings.of(trajectory, rule, since).first_crossing(threshold, since)


def last_reading(trajectory: Trajectory, rule: Rule) -> Reading | None:
    """The latest reading; before the rule gives one, the mean over all steps so far."""
    if not len(trajectory):
        return None
    first = rule.first_needed(trajectory.size, len(trajectory) - 1)
    starts, ends = rule.spans(trajectory.size[first:])
    if rule.name is RuleName.EPOCH and first and not len(ends):  # the epoch has only begun
        return _reading(trajectory, rule, first - rule.steps_per_epoch, first)
    if not len(ends):
        return _reading(trajectory, rule, 0, len(trajectory))
    return _reading(trajectory, rule, int(starts[-1]) + first, int(ends[-1]) + first)


def _reading(trajectory: Trajectory, rule: Rule, start: int, end: int) -> Reading:
    span = trajectory[start:end]
    weights = rule.weights(span.size)
    loss = span.loss.astype(np.float64)
    steps = int(rule.steps(np.array(start), np.array(end)))
    return Reading(
        steps=steps,
        samples=int(trajectory.size[:steps].sum(dtype=np.int64)),
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
