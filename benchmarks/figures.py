"""How long `make figures` and `make report` take on a study of many made-up runs, and how much
memory: `python -m benchmarks.figures [runs]`."""

import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path

from tests.studies import make_run

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "amsgrad")
SIZES = [2**exponent for exponent in range(10)]


def make_runs(study: Path, count: int) -> None:
    """Over five optimizers and ten batch sizes, with as many seeds as it takes."""
    cells = ((name, b, seed) for seed in range(count) for name, b in product(OPTIMIZERS, SIZES))
    for name, batch_size, seed in islice(cells, count):
        epochs = 5 + OPTIMIZERS.index(name) + batch_size // 16 + 20 // batch_size + seed % 3
        make_run(study, name, batch_size, epochs, seed=seed, falling=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as directory:
        make_runs(Path(directory) / "many", count)
        for module in ("cbs_lightning.figures", "cbs_lightning.report"):
            started = time.perf_counter()
            command = [sys.executable, "-m", module, directory]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            # of the largest process so far
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            print(f"{module}: {count:,} runs, {seconds:.1f} s, at most {peak:.2f} GiB")


if __name__ == "__main__":
    main()
