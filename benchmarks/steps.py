"""Time per step: this project's path against other ways to train the same, in turns."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import ours
from benchmarks.alternatives import ALTERNATIVES, FINELY, Problem, memory_as_usual
from benchmarks.images import EvenCIFAR10, EvenDigits
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from cbs_lightning.data import Images
from cbs_lightning.training.resources.threads import cores

BATCH_SIZES = (4, 32, 256, 2048)
PASSES = 3  # over all cells: a machine is slow for seconds at a time, and where memory lies matters
SECONDS_PER_CELL = 2.0  # in a pass, or as long as the least number of rounds takes
ROUNDS = (2, 10)  # at least and at most, in a pass
SAMPLES_BETWEEN_TURNS = 64
DATA = {"digits": EvenDigits, "cifar10": EvenCIFAR10}
RATIOS = ("ours/raw", "ours/floor", "lightning/ours", "authors/ours")
TARGETS: list[tuple[str, Callable[["Cell"], bool], Target]] = [
    ("ours/raw", lambda cell: cell.batch_size == 4, Target("ours / raw, b = 4", 1.10, 1.03)),
    ("ours/raw", lambda cell: cell.batch_size >= 32, Target("ours / raw, b >= 32", 1.05, 1.02)),
    (
        "ours/floor",
        lambda cell: cell.batch_size >= 256,
        Target("ours / floor, b >= 256", 1.15, 1.08),
    ),
    (
        "lightning/ours",
        lambda cell: cell.batch_size == 4,
        Target("lightning / ours, b = 4", 1.15, 1.4, at_least=True),
    ),
    (
        "authors/ours",
        lambda cell: cell.batch_size >= 256 and cell.data == "cifar10",
        Target("authors / ours, b >= 256, CIFAR-10", 1.35, 2, at_least=True),
    ),
]


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

    @property
    def is_long(self) -> bool:
        """A round of it takes many seconds."""
        return self.batch_size == 4 or (self.data, self.model) == ("cifar10", "resnet20")

    @property
    def is_huge(self) -> bool:
        """A step of it takes as long as thousands of others: fewer are made."""
        return (self.data, self.model, self.batch_size) == ("cifar10", "resnet20", 2048)


def cells(*, every: bool) -> Iterator[Cell]:
    """All combinations, or a balanced quarter: each batch size with each optimizer and number of
    threads on some net and data, but for the one that takes minutes."""
    pairs = [("adam", 1), ("sgd", cores()), ("sgd", 1), ("adam", cores())]
    problems = [(data, model) for data in DATA for model in ours.NETS]
    for row, batch_size in enumerate(BATCH_SIZES):
        for column, (data, model) in enumerate(problems):
            shift = row + column
            for optimizer, threads in pairs if every else [pairs[shift % len(pairs)]]:
                cell = Cell(data, model, batch_size, optimizer, threads)
                if every or not cell.is_huge:
                    yield cell


@dataclass
class Times:
    """Seconds per step of each way to train, one entry a round; all of a round are neighbours."""

    cell: Cell
    of: dict[str, list[float]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return len(self.of.get("ours", ()))

    def add(self, other: "Times") -> None:
        for name, seconds in other.of.items():
            self.of.setdefault(name, []).extend(seconds)

    def ratio(self, name: str) -> Spread | None:
        """Such as ours/raw, if both were measured."""
        above, _, below = name.partition("/")
        if above not in self.of or below not in self.of:
            return None
        return Spread.of(a / b for a, b in zip(self.of[above], self.of[below], strict=True))

    def numbers(self) -> dict[str, Any]:
        found = {name: ratio for name in RATIOS if (ratio := self.ratio(name))}
        return {
            **asdict(self.cell),
            "rounds": self.rounds,
            "seconds_per_step": {name: asdict(Spread.of(of)) for name, of in self.of.items()},
            "ratios": {name: asdict(ratio) for name, ratio in found.items()},
        }


class Rounds:
    """The guests of a run. A round is a chunk of the run, and some steps of all the others.

    What is compared to a few per cent takes its turn every few steps, the rest once a round.
    """

    def __init__(self, cell: Cell, images: Images) -> None:
        problem = Problem(images, cell.model, cell.batch_size, cell.optimizer)
        wanted = [name for name in ALTERNATIVES if name != "lightning" or cell.batch_size <= 32]
        self._others = {name: ALTERNATIVES[name](problem) for name in wanted}
        self.times = Times(cell)
        self.every = max(1, SAMPLES_BETWEEN_TURNS // cell.batch_size)
        self._threads = cell.threads
        self._least = 1 if cell.is_long else ROUNDS[0]
        self._warm = False
        self._started = time.monotonic()
        self._seconds = dict.fromkeys(self._others, 0.0)
        self._steps = dict.fromkeys(self._others, 0)

    def between_steps(self) -> None:
        if self._warm:
            with threads(self._threads):
                self._let(FINELY, max(1, self.every // 4))

    def after_chunk(self, steps: int, seconds: float) -> bool:
        if self._warm:
            self.between_steps()
            with threads(self._threads):
                with memory_as_usual():
                    self._let([n for n in self._others if n not in FINELY], max(1, steps // 8))
                self._others["raw"].seconds(1)  # takes the memory back that these have given away
            self.times.of.setdefault("ours", []).append(seconds / steps)
            for name in self._others:
                per_step = self._seconds[name] / self._steps[name]
                self.times.of.setdefault(name, []).append(per_step)
        else:  # the first chunk does not count, nor do the others' first steps
            with threads(self._threads):
                self._let(list(self._others), 1)
            self._warm, self._started = True, time.monotonic()
        self._seconds = dict.fromkeys(self._others, 0.0)
        self._steps = dict.fromkeys(self._others, 0)
        spent = time.monotonic() - self._started
        enough = self.times.rounds >= ROUNDS[1] or spent > SECONDS_PER_CELL
        return not (enough and self.times.rounds >= self._least)

    def _let(self, names: list[str], steps: int) -> None:
        for name in names:
            self._seconds[name] += self._others[name].seconds(steps)
            self._steps[name] += steps


@contextmanager
def threads(count: int) -> Iterator[None]:
    """While inside, torch has so many. Setting them at all empties the cache of oneDNN."""
    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    yield
    if before != count:
        torch.set_num_threads(before)


def data_dir() -> Path:
    return Path(os.environ.get("CBS_DATA_DIR", "data"))


def overrides_of(cell: Cell) -> list[str]:
    """Where all cores are its, a run chooses its threads itself, as it does for a user."""
    data = DATA[cell.data]
    return [
        f"data={cell.data}",
        f"data._target_={data.__module__}.{data.__qualname__}",
        f"optimizer={cell.optimizer}",
        f"batch_size={cell.batch_size}",
        f"threads={cell.threads if cell.threads < cores() else 'null'}",
    ]


def measure(cell: Cell, images: Images) -> Times:
    rounds = Rounds(cell, images)
    ours.train(overrides_of(cell), ours.NETS[cell.model], rounds)
    return rounds.times


def run(report: Callable[[str], None], *, every: bool) -> Outcome:
    images = {name: data.load(data_dir()).train for name, data in DATA.items()}
    wanted = list(cells(every=every)) * PASSES
    times: dict[Cell, Times] = {}
    for number, cell in enumerate(wanted, 1):
        report(f"{number} of {len(wanted)}: {cell}")
        times.setdefault(cell, Times(cell)).add(measure(cell, images[cell.data]))
    found = list(times.values())
    return Outcome([times.numbers() for times in found], [_table(found)], _findings(found))


def _table(found: list[Times]) -> Table:
    columns = ["", "raw, ms", *RATIOS, "rounds"]
    rows = []
    for times in found:
        milliseconds = f"{1000 * median(times.of['raw']):.4g}"
        ratios = [str(times.ratio(name) or "") for name in RATIOS]
        rows.append([str(times.cell), milliseconds, *ratios, str(times.rounds)])
    return Table("Time per step: medians and quartiles of the rounds", columns, rows)


def _findings(found: list[Times]) -> list[Finding]:
    findings = []
    for name, concerns, target in TARGETS:
        ratios = {
            str(times.cell): ratio
            for times in found
            if concerns(times.cell) and (ratio := times.ratio(name))
        }
        findings.append(Finding.of(target, ratios))
    return findings
