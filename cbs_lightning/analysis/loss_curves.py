"""The loss of a run by a rule, in few enough points to plot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.results.result import Result, Run
from cbs_lightning.results.trajectory import Readings, Rule

POINTS = 200


@dataclass(frozen=True)
class LossCurve:
    """At most `POINTS` readings of a run, evenly spaced over the logarithm of its steps."""

    result: Result
    steps: NDArray[np.int64]
    loss: NDArray[np.float64]

    @property
    def sfo(self) -> NDArray[np.int64]:
        return self.steps * self.result.effective_batch_size


def loss_curve(run: Run, answer: Result) -> LossCurve:
    """The readings by the rule of the answer, including the first, the last, and that at K."""
    read = Readings.of(run.trajectory, Rule(answer.rule, answer.steps_per_epoch, answer.window))
    kept = np.arange(len(read.ends))
    if len(kept) > POINTS:
        spread = np.geomspace(1, len(kept), POINTS - 1).round().astype(int) - 1
        crossing = np.searchsorted(read.steps, answer.steps or read.steps[-1])
        kept = np.unique(np.append(spread, crossing))
    loss = np.array([read.reading(int(index)).loss for index in kept], np.float64)
    return LossCurve(answer, read.steps[kept], loss)
