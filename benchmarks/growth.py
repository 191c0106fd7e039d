"""How the time per step grows with the batch size: slopes in log-log, where 1 is linear.

The plain loop's slope tells what of it is the machine's.
"""

from collections.abc import Callable
from itertools import pairwise
from math import log

import numpy as np
import torch

from benchmarks import ours
from benchmarks.alternatives import Problem, Raw
from benchmarks.images import DIGITS, PICTURES
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.steps import BATCH_SIZES, DATA, Cell, data_dir, overrides_of
from cbs_lightning.data import Images
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


def chunks_of(cell: Cell) -> int:
    """To be measured after a first one, for which the system hands out memory."""
    return max(1, CHUNKS * SAMPLES_PER_CHUNK // max(cell.batch_size, SAMPLES_PER_CHUNK))


def seconds_per_step(cell: Cell) -> float:
    guests = Fastest(chunks_of(cell))
    ours.train(overrides_of(cell), ours.NETS[cell.model], guests)
    return min(guests.seconds[1:])


def raw_seconds_per_step(cell: Cell, images: Images) -> float:
    loop = Raw(Problem(images, cell.model, cell.batch_size, cell.optimizer))
    steps = max(1, SAMPLES_PER_CHUNK // cell.batch_size)
    seconds = [loop.seconds(steps) / steps for _ in range(1 + chunks_of(cell))]
    return min(seconds[1:])


def slope(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run(report: Callable[[str], None]) -> Outcome:
    torch.set_num_threads(1)
    numbers, rows, slopes = {}, [], {}
    for data, model in PROBLEMS:
        name = f"{data} {model}"
        report(f"time per step over b: {name}")
        images = DATA[data].load(data_dir()).train
        cells = [Cell(data, model, b, "adam", 1) for b in BATCH_SIZES]
        seconds = [seconds_per_step(cell) for cell in cells]
        raw = [raw_seconds_per_step(cell, images) for cell in cells]
        sizes = [min(b, SAMPLES[data]) for b in BATCH_SIZES]
        slopes[name], raw_slope = slope(sizes, seconds), slope(sizes, raw)
        points = list(zip(sizes, seconds, strict=True))
        parts = [log(after / before) / log(b / a) for (a, before), (b, after) in pairwise(points)]
        numbers[name] = {
            "seconds_per_step": dict(points),
            "slope": slopes[name],
            "parts": parts,
            "raw": {"seconds_per_step": dict(zip(sizes, raw, strict=True)), "slope": raw_slope},
        }
        milliseconds = [f"{1000 * value:.4g}" for value in seconds]
        texts = [f"{value:.2f}" for value in (slopes[name], parts[-1], raw_slope)]
        rows.append([name, *milliseconds, *texts])
    columns = [
        "1 thread, Adam",
        *(f"b={b}, ms" for b in BATCH_SIZES),
        "slope",
        "last part",
        "raw's slope",
    ]
    found = {name: Spread.of([value]) for name, value in slopes.items()}
    return Outcome(numbers, [Table("Time per step", columns, rows)], [Finding.of(TARGET, found)])
