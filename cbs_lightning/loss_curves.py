"""The loss of a run on its way, as a rule reads it, in few enough points to be drawn."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.results import Request, Result, Run
from cbs_lightning.trajectory import Readings, Rule

POINTS = 200


@dataclass(frozen=True)
class LossCurve:
    """At most `POINTS` readings of a run, evenly spread over the logarithm of its steps."""

    result: Result
    steps: NDArray[np.int64]
    loss: NDArray[np.float64]

    @property
    def sfo(self) -> NDArray[np.int64]:
        return self.steps * self.result.effective_batch_size


def loss_curve(run: Run, answer: Result, request: Request) -> LossCurve:
    """The first and the last reading, and that at the threshold's crossing, are among them."""
    rule = Rule(request.rule, run.result.steps_per_epoch, request.window)
    read = Readings.of(run.trajectory, rule)
    steps, loss = read.ends, read.means
    if len(steps) > POINTS:
        spread = np.geomspace(1, len(steps), POINTS - 1).round().astype(int) - 1
        crossing = np.searchsorted(steps, answer.steps or steps[-1])
        kept = np.unique(np.append(spread, crossing))
        steps, loss = steps[kept], loss[kept]
    return LossCurve(answer, steps, loss)
