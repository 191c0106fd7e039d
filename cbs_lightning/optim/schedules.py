"""Learning-rate schedules: factors of the learning rate, pure functions of the samples seen.

The samples are those of the steps before: the first step has `factor(0)`. A decay ends at its
horizon, and the learning rate stays as it is there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SHAPES = ("linear", "sqrt")


class Schedule(ABC):
    """What every schedule here derives from; any other class with this method will do as well.

    Example:
        >>> from cbs_lightning.optim.schedules import Cosine
        >>> schedule = Cosine(horizon_samples=1000)
        >>> [round(schedule.factor(samples), 3) for samples in (0, 250, 500, 1000, 2000)]
        [1.0, 0.854, 0.5, 0.0, 0.0]
    """

    @abstractmethod
    def factor(self, samples: int) -> float:
        """What the learning rate is multiplied by once so many samples were seen."""


@dataclass(frozen=True)
class Constant(Schedule):
    """It has a horizon without effect, so that it can be swept beside those that need one."""

    horizon_samples: int | None = None

    def factor(self, samples: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Decay(Schedule):
    """What has a horizon."""

    horizon_samples: int

    def __post_init__(self) -> None:
        valid = type(self.horizon_samples) is int and self.horizon_samples >= 1
        _require(valid, "horizon_samples", self.horizon_samples, "a whole number >= 1")


@dataclass(frozen=True)
class DecayTo(Decay):
    """From 1 to `final`, a share of the learning rate, along the heights 1 to 0 of a curve."""

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(_in_unit_interval(self.final), "final", self.final, "a number from 0 to 1")

    def factor(self, samples: int) -> float:
        height = self._height(min(samples, self.horizon_samples))
        return self.final + (1 - self.final) * height

    @abstractmethod
    def _height(self, samples: int) -> float:
        """Once so many samples of the horizon were seen."""


@dataclass(frozen=True)
class Cosine(DecayTo):
    """Half a cosine (Loshchilov and Hutter 2017, without restarts)."""

    def _height(self, samples: int) -> float:
        return (1 + math.cos(math.pi * samples / self.horizon_samples)) / 2


@dataclass(frozen=True)
class Linear(DecayTo):
    def _height(self, samples: int) -> float:
        return 1 - samples / self.horizon_samples


@dataclass(frozen=True)
class Step(Decay):
    """Times `gamma` at each milestone, a share of the horizon (He et al. 2016: 1/2 and 3/4)."""

    milestones: Sequence[float] = (0.5, 0.75)
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        marks = self.milestones
        valid = isinstance(marks, list | tuple) and all(map(_in_unit_interval, marks))
        valid = valid and len(marks) > 0 and list(marks) == sorted(set(marks)) and marks[0] > 0
        allowed = "a list of growing shares of the horizon, such as [0.5,0.75]"
        _require(valid, "milestones", marks, allowed)
        valid = _in_unit_interval(self.gamma) and self.gamma > 0
        _require(valid, "gamma", self.gamma, "a number above 0, at most 1")

    def factor(self, samples: int) -> float:
        passed = sum(samples >= round(mark * self.horizon_samples) for mark in self.milestones)
        return float(self.gamma**passed)


@dataclass(frozen=True)
class WSD(DecayTo):
    """Stable, then a decay over the last share `decay` of the horizon; warm-up is a key of its own.

    `shape` is that of the decay: `linear`, or `sqrt`, 1 - sqrt(x), which Hägele et al. (2024) found
    better than `linear`.
    """

    decay: float = 0.2
    shape: str = "sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = _in_unit_interval(self.decay) and self.decay > 0
        _require(valid, "decay", self.decay, "a number above 0, at most 1")
        _require(self.shape in SHAPES, "shape", self.shape, f"one of {', '.join(SHAPES)}")

    def _height(self, samples: int) -> float:
        length = max(1, round(self.decay * self.horizon_samples))
        decayed = max(0, samples - (self.horizon_samples - length)) / length
        return 1 - (decayed if self.shape == "linear" else math.sqrt(decayed))


def _in_unit_interval(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed}, not {value}")
