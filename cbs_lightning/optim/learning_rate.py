"""The learning rate: how it moves with the batch size, how it warms up and follows a schedule."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.optim.schedules import Constant, Schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Scaling(StrEnum):
    """How the learning rate moves with the batch size."""

    NONE = "none"
    SQRT = "sqrt"
    LINEAR = "linear"
    TUNED = "tuned"  # the best of those that a sweep tries at each batch size


class RateSchedule:
    """What the learning rate of each step is multiplied by: a linear warm-up, times a schedule.

    It is a function of the samples seen alone, so that a run that goes on does so exactly.

    Args:
        warmup_samples: samples of linear warm-up; 0: none.
        schedule: any object with `factor(samples)`, as in `cbs_lightning.optim.schedules`.

    Example:
        >>> from cbs_lightning.optim.learning_rate import RateSchedule
        >>> from cbs_lightning.optim.schedules import Linear
        >>> rates = RateSchedule(warmup_samples=200, schedule=Linear(horizon_samples=400))
        >>> rates.factors([100, 100, 100, 100, 100]).tolist()
        [0.5, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, warmup_samples: int = 0, schedule: Schedule | None = None) -> None:
        self.warmup_samples = warmup_samples
        self.schedule = schedule if schedule is not None else Constant()

    @property
    def is_constant(self) -> bool:
        return not self.warmup_samples and isinstance(self.schedule, Constant)

    def factor(self, seen: int, size: int) -> float:
        """Of the step on a batch of `size` samples, after `seen` samples were seen."""
        factor = self.schedule.factor(seen)
        if seen < self.warmup_samples:
            factor *= min(1.0, (seen + size) / self.warmup_samples)
        return factor

    def factors(self, sizes: Iterable[int], seen: int = 0) -> NDArray[np.float64]:
        """Of consecutive steps on batches of these sizes, after `seen` samples were seen."""
        found = []
        for size in sizes:
            found.append(self.factor(seen, int(size)))
            seen += int(size)
        return np.array(found, np.float64)


def rates_of(optimizer: "Optimizer") -> list[float]:
    """The learning rate of each parameter group."""
    return [group["lr"] for group in optimizer.param_groups]


def set_rates(optimizer: "Optimizer", rates: Iterable[float], factor: float = 1.0) -> None:
    """Give the parameter groups these learning rates, times `factor`."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
