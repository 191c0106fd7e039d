"""Time per step: this project's path against other ways to train the same, in turns."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks import ours
from benchmarks.alternatives import ALTERNATIVES, Problem
from benchmarks.images import CIFAR10Shaped
from cbs_lightning.data import Digits, Images
from cbs_lightning.threads import cores

BATCH_SIZES = (4, 32, 256, 2048)
SECONDS_PER_TURN = 0.2  # of each alternative, but at least a step
SECONDS_PER_CELL = 7.0
ROUNDS = (3, 15)  # at least and at most
DATA = {
    "digits": ["data=digits"],
    "cifar10": [
        "data=cifar10",
        f"data._target_={CIFAR10Shaped.__module__}.{CIFAR10Shaped.__qualname__}",
    ],
}


@dataclass(frozen=True)
class Cell:
    data: str
    model: str
    batch_size: int
    optimizer: str
    threads: int

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.data} {self.model} b={self.batch_size} {self.optimizer}, {threads}"


@dataclass
class Times:
    """Seconds per step of each way to train, one entry a round; all of a round are neighbours."""

    cell: Cell
    of: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds_per_step: float) -> None:
        self.of.setdefault(name, []).append(seconds_per_step)

    @property
    def rounds(self) -> int:
        return len(self.of["ours"])

    def ratio(self, above: str, below: str) -> "Ratio":
        pairs = zip(self.of[above], self.of[below], strict=True)
        return Ratio.of([a / b for a, b in pairs])


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float  # quartiles
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> "Ratio":
        low, median, high = statistics.quantiles(ratios, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def cells(*, every: bool) -> list[Cell]:
    """Of all combinations each batch size, net and data set with either optimizer and thread
    count, but not with all four pairs of those unless `every` one is wanted."""
    pairs = [("adam", 1), ("sgd", cores()), ("sgd", 1), ("adam", cores())]
    return [
        Cell(data, model, batch_size, optimizer, threads)
        for data in DATA
        for model in ours.HOSTS
        for batch_size in BATCH_SIZES
        for optimizer, threads in dict.fromkeys(pairs if every else pairs[:2])
        # Minutes: a step of it takes as long as 2,000 of the smallest.
        if every or (data, model, batch_size, threads) != ("cifar10", "resnet20", 2048, 1)
    ]


def measure(cell: Cell, images: Images, *, seconds: float = SECONDS_PER_CELL) -> Times:
    problem = Problem(images, cell.model, cell.batch_size, cell.optimizer)
    alternatives = {name: make(problem) for name, make in ALTERNATIVES.items()}
    times = Times(cell)
    started = time.monotonic()

    def turn(steps: int, ours_seconds: float) -> bool:
        nonlocal started
        per_step = ours_seconds / steps
        many = max(1, round(SECONDS_PER_TURN / per_step))
        found = {name: other.seconds(many) / many for name, other in alternatives.items()}
        if not times.of and warm_up:
            warm_up.pop()
            started = time.monotonic()
            return True
        for name, value in {"ours": per_step, **found}.items():
            times.add(name, value)
        least, most = ROUNDS
        spent = time.monotonic() - started
        return times.rounds < least or (times.rounds < most and spent < seconds)

    warm_up = [None]  # a first round that does not count
    overrides = [*DATA[cell.data], f"optimizer={cell.optimizer}", f"threads={cell.threads}"]
    ours.train([*overrides, f"batch_size={cell.batch_size}"], cell.model, turn)
    return times
