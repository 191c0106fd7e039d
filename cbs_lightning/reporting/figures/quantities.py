"""The quantities plotted against batch size: steps, SFO and seconds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.results.result import Result


@dataclass(frozen=True)
class Quantity:
    """What is drawn, whose least is marked, and how much of it a step is where theory says that.

    `bound` is what a run that did not reach the threshold has cost.
    """

    title: str
    value: Callable[[BatchSizePoint | Result], float | None]
    bound: Callable[[Result], float]
    marked: Callable[[Curve], BatchSizePoint | None]
    mark_label: str
    per_step: Callable[[Floats], Floats] | None = None
    caveat: str = ""  # why the points of a curve cannot be compared


def _of_several(curve: Curve, point: BatchSizePoint | None) -> BatchSizePoint | None:
    """The point, unless it is the only one: a single batch size is not a minimum."""
    return point if len(curve.points) > 1 else None


QUANTITIES = {
    "sfo": Quantity(
        "SFO complexity K·b",
        lambda item: item.sfo,
        lambda run: run.sfo_exceeded,
        lambda curve: _of_several(curve, curve.best),
        "least SFO",
        lambda sizes: sizes,
    ),
    "steps": Quantity(
        "Steps K",
        lambda item: item.steps,
        lambda run: run.steps_exceeded,
        lambda curve: _of_several(curve, curve.best),
        "least SFO",
        np.ones_like,
    ),
    "seconds": Quantity(
        "Seconds of training",
        lambda item: item.seconds,
        lambda run: run.seconds,
        lambda curve: _of_several(curve, curve.fastest),
        "fastest of those run",
    ),
}
