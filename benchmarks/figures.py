"""How long `make figures` takes on studies of made-up runs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice, product
from math import log
from pathlib import Path

from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from tests.studies import make_run

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "amsgrad")
SIZES = [2**exponent for exponent in range(10)]
COUNTS = (10, 100, 1000)
TARGET = Target("slope of the time of figures over runs", 1.0, 1.0)


def make_runs(study: Path, count: int) -> None:
    """Over five optimizers and ten batch sizes, with as many seeds as it takes."""
    cells = ((name, b, seed) for seed in range(count) for name, b in product(OPTIMIZERS, SIZES))
    for name, batch_size, seed in islice(cells, count):
        epochs = 5 + OPTIMIZERS.index(name) + batch_size // 16 + 20 // batch_size + seed % 3
        make_run(study, name, batch_size, epochs, seed=seed, falling=True)


def seconds(count: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        make_runs(Path(directory) / "many", count)
        started = time.perf_counter()
        command = [sys.executable, "-m", "cbs_lightning.reporting.figures", directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started


def run(report: Callable[[str], None]) -> Outcome:
    found = []
    for count in COUNTS:
        report(f"figures of {count} runs")
        found.append(seconds(count))
    # Between the two largest: a few runs take no time beside starting Python.
    slope = log(found[-1] / found[-2]) / log(COUNTS[-1] / COUNTS[-2])
    columns = [*(f"{count:,} runs" for count in COUNTS), "slope, 100 to 1,000"]
    row = [*(f"{value:.1f} s" for value in found), f"{slope:.2f}"]
    return Outcome(
        {"seconds": dict(zip(COUNTS, found, strict=True)), "slope": slope},
        [Table("make figures", columns, [row])],
        [Finding.of(TARGET, {"100 to 1,000 runs": Spread.of([slope])})],
    )
