"""How the time per step grows with the batch size: slopes in log-log, where 1 is linear."""

from collections.abc import Callable
from itertools import pairwise
from math import log

import numpy as np

from benchmarks import ours
from benchmarks.images import DIGITS, PICTURES
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.steps import BATCH_SIZES, Cell, overrides_of
from cbs_lightning.data.loader import SAMPLES_PER_CHUNK

PROBLEMS = [("digits", "resnet20"), ("cifar10", "resnet20")]
CHUNKS = 3  # of which the fastest counts: others may use the machine
SAMPLES = {"digits": DIGITS, "cifar10": PICTURES}
TARGET = Target("slope of time per step over b", 1.1, 1.0)


class Fastest:
    """Guests that note the time per step of so many chunks and a first one."""

    every = 10**9

    def __init__(self, chunks: int) -> None:
        self.left = chunks
        self.seconds: list[float] = []

    def between_steps(self) -> None:
        pass

    def after_chunk(self, steps: int, seconds: float) -> bool:
        self.seconds.append(seconds / steps)
        return len(self.seconds) <= self.left


def seconds_per_step(cell: Cell) -> float:
    chunks = CHUNKS * SAMPLES_PER_CHUNK // max(cell.batch_size, SAMPLES_PER_CHUNK)
    guests = Fastest(0 if cell.is_huge else max(1, chunks))
    ours.train(overrides_of(cell), ours.NETS[cell.model], guests)
    return min(guests.seconds[1:] or guests.seconds)


def slope(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run(tell: Callable[[str], None]) -> Outcome:
    numbers, rows, slopes = {}, [], {}
    for data, model in PROBLEMS:
        name = f"{data} {model}"
        tell(f"time per step over b: {name}")
        seconds = [seconds_per_step(Cell(data, model, b, "adam", 1)) for b in BATCH_SIZES]
        sizes = [min(b, SAMPLES[data]) for b in BATCH_SIZES]
        slopes[name] = slope(sizes, seconds)
        points = list(zip(sizes, seconds, strict=True))
        parts = [log(after / before) / log(b / a) for (a, before), (b, after) in pairwise(points)]
        numbers[name] = {"seconds_per_step": dict(points), "slope": slopes[name], "parts": parts}
        milliseconds = [f"{1000 * value:.4g}" for value in seconds]
        rows.append([name, *milliseconds, f"{slopes[name]:.2f}", f"{parts[-1]:.2f}"])
    columns = ["1 thread, Adam", *(f"b={b}, ms" for b in BATCH_SIZES), "slope", "last part"]
    found = {name: Spread.of([value]) for name, value in slopes.items()}
    return Outcome(numbers, [Table("Time per step", columns, rows)], [Finding.of(TARGET, found)])
