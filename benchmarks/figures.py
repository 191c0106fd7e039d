"""How long `make figures` and `make report` take on studies of made-up runs, and how much memory:
`python -m benchmarks.figures`."""

import resource
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
MODULES = ("cbs_lightning.figures", "cbs_lightning.report")
TARGET = Target("slope of the time of figures and report over runs", 1.0, 1.0)


def make_runs(study: Path, count: int) -> None:
    """Over five optimizers and ten batch sizes, with as many seeds as it takes."""
    cells = ((name, b, seed) for seed in range(count) for name, b in product(OPTIMIZERS, SIZES))
    for name, batch_size, seed in islice(cells, count):
        epochs = 5 + OPTIMIZERS.index(name) + batch_size // 16 + 20 // batch_size + seed % 3
        make_run(study, name, batch_size, epochs, seed=seed, falling=True)


def seconds(module: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        make_runs(Path(directory) / "many", count)
        started = time.perf_counter()
        command = [sys.executable, "-m", module, directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started


def run(tell: Callable[[str], None]) -> Outcome:
    numbers, rows, slopes = {}, [], {}
    for module in MODULES:
        found = []
        for count in COUNTS:
            tell(f"{module} of {count} runs")
            found.append(seconds(module, count))
        # Between the two largest: a few runs take no time beside starting Python.
        steep = log(found[-1] / found[-2]) / log(COUNTS[-1] / COUNTS[-2])
        slopes[module] = Spread.of([steep])
        numbers[module] = {"seconds": dict(zip(COUNTS, found, strict=True)), "slope": steep}
        rows.append([module, *(f"{value:.1f}" for value in found), f"{steep:.2f}"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # of the largest
    columns = ["seconds", *(f"{count:,} runs" for count in COUNTS), "slope, 100 to 1,000"]
    title = f"Figures and report of many runs; at most {peak:.2f} GiB"
    return Outcome(
        {**numbers, "peak_gib": peak},
        [Table(title, columns, rows)],
        [Finding.of(TARGET, slopes)],
    )
