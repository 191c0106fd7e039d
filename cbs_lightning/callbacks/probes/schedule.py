"""When a run is probed, and how many of its steps each probe stands for."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cbs_lightning.results.trajectory import Readings, Rule, RuleName, Trajectory

READING_SAMPLES = 512  # of a loss to compare with levels, which are some 20 % apart


def reading_rule(data_size: int | None, stop: Rule) -> Rule:
    """How probes read the loss: over fewer samples than an epoch, so that short runs have some.

    `stop` is the rule by which the run ends.
    """
    windows = [READING_SAMPLES, data_size or READING_SAMPLES]
    if stop.name is not RuleName.EPOCH:
        windows.append(stop.window)
    return Rule(RuleName.WINDOW, stop.steps_per_epoch, min(windows))


@dataclass
class Descent:
    """The fall of a run's loss to its threshold, on which `number` probes are to be made.

    They are due at the middles of as many equal intervals of log loss between the first reading,
    which is a mean over the latest `window` samples, and the threshold. Where a step passes several
    at once, those that are left are spread over the rest of the way.
    """

    threshold: float
    window: int
    number: int
    first: float | None = None  # reading; None: there was none yet
    left: int = field(init=False)  # probes that are still to be made
    level: float | None = field(init=False, default=None)  # at which the next one is due
    steps: int = field(init=False, default=0)
    samples: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.left = self.number
        self._latest: deque[tuple[float, int]] = deque()  # losses and sizes of the latest steps
        self._total = 0  # samples of them

    @property
    def is_over(self) -> bool:
        """Whether no probe can become due any more."""
        return self.left == 0 or (self.first is not None and self.level is None)

    @property
    def reading(self) -> float | None:
        """The mean over the fewest latest steps that have `window` samples."""
        if self._total < self.window:
            return None
        return math.fsum(loss * size for loss, size in self._latest) / self._total

    def resume(self, trajectory: Trajectory) -> None:
        """Go on after these steps."""
        sizes = trajectory.size.tolist()
        self.steps, self.samples = len(sizes), sum(sizes)
        start, total = len(sizes), 0
        while start and total < self.window:
            start -= 1
            total += sizes[start]
        self._latest.extend(zip(trajectory.loss[start:].tolist(), sizes[start:], strict=True))
        self._total = total

    def add(self, loss: float, size: int) -> None:
        """Another step of the run."""
        self.steps += 1
        self.samples += size
        self._latest.append((loss, size))
        self._total += size
        while self._total - self._latest[0][1] >= self.window:
            self._total -= self._latest.popleft()[1]

    def is_due(self) -> bool:
        """Whether to probe after the latest step; the next probe is then due further down."""
        reading = self.reading
        if reading is None or self.is_over:
            return False
        if self.first is None:
            self.first = reading
            self.level = self._next(reading, self.number)
        if self.level is None or not reading <= self.level:
            return False
        self.left -= 1
        self.level = self._next(reading, self.left + 0.5)
        return True

    def shortfall(self, made: int, *, reached: bool) -> str:
        """Why fewer probes were made in a run, and what to do."""
        if self.first is None:
            why = f"the run ended before a first reading of its loss, over {self.window} samples"
            advice = "a smaller stop.window, or a longer run"
        elif self.left == 0:
            why, advice = "the others were left out", "see the lines above"
        elif not reached:
            why = f"the run ended above a loss of {self.threshold:g}"
            advice = "a larger budget, or a higher stop.loss"
        elif self.first <= self.threshold:
            why = f"the first reading of its loss, {self.first:.3g}, was below the threshold"
            advice = "a lower stop.loss, a smaller stop.window or batch_size"
        else:
            why = "the loss fell past several of their levels in one step"
            advice = "more noise.probes, a smaller stop.window or batch_size, a lower stop.loss"
        return f"{made} of {self.number} probes were made: {why}; what helps: {advice}"

    def _next(self, reading: float, intervals: float) -> float | None:
        """Below a reading, with so many equal intervals to the threshold; after the first reading
        it is half an interval away."""
        if not self.threshold < reading < math.inf:
            return None
        share = (1.0 if self.left < self.number else 0.5) / intervals
        return reading * float((self.threshold / reading) ** share)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "left": self.left, "level": self.level}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.left, self.level = state["first"], state["left"], state["level"]


def steps_stood_for(
    trajectory: Trajectory, rule: Rule, probed: Sequence[tuple[int, float]]
) -> list[int]:
    """The steps of the run that each probe, given by its step and loss, stands for.

    Two neighbours share the steps between them where the loss passes the geometric mean of theirs;
    the first has all before it, the last all after it.
    """
    if not probed:
        return []
    readings = Readings.of(trajectory, rule)
    edges = [0]
    for (step, loss), (next_step, next_loss) in pairwise(probed):
        between = (readings.ends > step) & (readings.ends <= next_step)
        below = readings.means <= math.sqrt(loss * next_loss)
        found = np.flatnonzero(between & below)
        edges.append(int(readings.ends[found[0]]) if len(found) else next_step)
    edges.append(len(trajectory))
    return [end - start for start, end in pairwise(edges)]
