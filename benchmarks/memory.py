"""Memory of a run: its peak beside a plain loop's, and whether it grows with the steps.

Every measurement is a process of its own: `python -m benchmarks.memory <way> <data> <model> <b>`.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.moments import resident
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target

ROOT = Path(__file__).parents[1]
CELLS = [
    ("digits", "resnet20", 4),
    ("cifar10", "resnet20", 256),
    ("cifar10", "resnet20_authors", 2048),
]
STEPS = 4  # then memory has been as high as it gets
MANY = (2_000, 12_000)  # steps between which it must not grow
PEAK = Target("peak memory, ours / raw", 1.1, 1.1)
GROWTH = Target("growth of memory over 10,000 steps, MiB", 5, 1)


class FewSteps:
    """Guests that only count chunks."""

    every = 10**9

    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def between_steps(self) -> None:
        pass

    def after_chunk(self, steps: int, seconds: float) -> bool:
        self.left -= 1
        return self.left > 0


class ManySteps(FewSteps):
    """Notes the memory after so many steps."""

    def __init__(self) -> None:
        super().__init__(0)
        self.steps = 0
        self.resident: list[float] = []

    def after_chunk(self, steps: int, seconds: float) -> bool:
        self.steps += steps
        if self.steps >= MANY[len(self.resident)]:
            self.resident.append(resident("VmRSS"))
        return len(self.resident) < len(MANY)


def ours(data: str, model: str, batch_size: int) -> float:
    from benchmarks import ours
    from benchmarks.steps import Cell, overrides_of
    from cbs_lightning.data.loader import SAMPLES_PER_CHUNK

    cell = Cell(data, model, batch_size, "adam", 1)
    chunks = max(2, STEPS * min(batch_size, SAMPLES_PER_CHUNK) // SAMPLES_PER_CHUNK)
    ours.train(overrides_of(cell), ours.NETS[model], FewSteps(chunks))
    return resident("VmHWM")


def raw(data: str, model: str, batch_size: int) -> float:
    """With the same frameworks loaded, which a plain loop has no use for."""
    import hydra  # noqa: F401
    import torch

    from benchmarks.alternatives import Problem, Raw
    from benchmarks.steps import DATA, data_dir

    torch.set_num_threads(1)
    images = DATA[data].load(data_dir()).train
    Raw(Problem(images, model, batch_size, "adam")).seconds(STEPS)
    return resident("VmHWM")


def growth() -> list[float]:
    """On a net that computes next to nothing."""
    from benchmarks import ours

    guests = ManySteps()
    ours.train(["data=digits", "batch_size=4", "threads=1"], ours.HostingLinear, guests)
    return guests.resident


def measured(*arguments: Any) -> Any:
    command = [sys.executable, "-m", "benchmarks.memory", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def of_both(cell: tuple[str, str, int]) -> dict[str, float]:
    """At the same time, which takes half as long and no other memory."""
    with ThreadPoolExecutor() as pool:
        ways = {way: pool.submit(measured, way, *cell) for way in ("raw", "ours")}
        return {way: found.result() for way, found in ways.items()}


def run(report: Callable[[str], None]) -> Outcome:
    peaks, rows, ratios = {}, [], {}
    for cell in CELLS:
        name = "{} {} b={}".format(*cell)
        report(f"memory of {name}")
        found = of_both(cell)
        peaks[name] = found
        ratio = found["ours"] / found["raw"]
        ratios[name] = Spread.of([ratio])
        rows.append([name, f"{found['raw']:.0f}", f"{found['ours']:.0f}", f"{ratio:.2f}"])
    report("memory over 10,000 steps")
    before, after = measured("growth")
    grown = Spread.of([after - before])
    return Outcome(
        {"peaks": peaks, "growth": asdict(grown)},
        [Table("Peak memory of the process, MiB", ["", "raw", "ours", "ours / raw"], rows)],
        [Finding.of(PEAK, ratios), Finding.of(GROWTH, {"a linear net, b=4": grown})],
    )


def main() -> None:
    way, *cell = sys.argv[1:]
    if way == "growth":
        print(json.dumps(growth()))
    else:
        data, model, batch_size = cell
        measure = {"ours": ours, "raw": raw}[way]
        print(json.dumps(measure(data, model, int(batch_size))))


if __name__ == "__main__":
    main()
