"""What it brings, and costs, to keep large blocks of freed memory for the next step.

Every measurement is a process of its own, `python -m benchmarks.pages <way> <net> <b>`, since
memory that one has kept serves it whatever it is told afterwards. The two ways take turns: one
process at a time, then two at a time, as a sweep has them. Random images of CIFAR-10's shape, one
thread.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.moments import resident
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target

ROOT = Path(__file__).parents[1]
CELLS = [("resnet20_authors", 4096), ("resnet20", 1024)]
AT_A_TIME = (1, 2)
ROUNDS = 3
STEPS = 3  # timed, after two that are not
WAYS = {"kept": True, "given back": False}
TARGET = Target("processor time of a step, large blocks kept / given back", 1.02, 0.9)


def measure(way: str, model: str, batch_size: int) -> dict[str, float]:
    """Of a process that trains the net: seconds of processor and page faults a step, peak MiB."""
    from benchmarks.alternatives import Floor, Problem
    from cbs_lightning.data import Images
    from cbs_lightning.training.resources.allocator import freed_memory_kept

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pixels = torch.randint(256, (batch_size, 32, 32, 3), dtype=torch.uint8)
    images = Images(pixels, torch.randint(10, (batch_size,)))
    with freed_memory_kept(large_blocks=WAYS[way]):
        loop = Floor(Problem(images, model, batch_size, "adam"))
        loop.seconds(2)
        faults, seconds = _faults(), []
        for _ in range(STEPS):
            started = time.process_time()
            loop.seconds(1)
            seconds.append(time.process_time() - started)
        faults = _faults() - faults
        peak = resident("VmHWM")
    return {"seconds": median(seconds), "faults": faults / STEPS, "peak": peak}


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measured(way: str, cell: tuple[str, int], at_a_time: int) -> dict[str, float]:
    """The mean of so many processes at a time."""
    command = [sys.executable, "-m", "benchmarks.pages", way, *map(str, cell)]

    def one(_: int) -> dict[str, float]:
        done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(one, range(at_a_time)))
    return {name: mean(each[name] for each in found) for name in found[0]}


def run(report: Callable[[str], None]) -> Outcome:
    numbers: dict[str, Any] = {}
    rows, ratios = [], {}
    for cell in CELLS:
        for at_a_time in AT_A_TIME:
            name = f"{cell[0]} b={cell[1]}, {at_a_time} at a time"
            report(f"pages, {name}")
            rounds = [{way: measured(way, cell, at_a_time) for way in WAYS} for _ in range(ROUNDS)]
            numbers[name] = rounds
            ratios[name] = Spread.of(
                each["kept"]["seconds"] / each["given back"]["seconds"] for each in rounds
            )
            rows.append([name, str(ratios[name]), *_medians(rounds)])
    columns = ["", "kept / given back", "s a step", "", "faults a step", "", "peak MiB", ""]
    heading = ["", "", *3 * ["kept", "given back"]]
    title = "Large blocks of freed memory, kept or given back: processor time, page faults, memory"
    return Outcome(numbers, [Table(title, columns, [heading, *rows])], [Finding.of(TARGET, ratios)])


def _medians(rounds: list[dict[str, dict[str, float]]]) -> list[str]:
    forms = {"seconds": ".3g", "faults": ",.0f", "peak": ",.0f"}
    return [
        format(median(each[way][what] for each in rounds), form)
        for what, form in forms.items()
        for way in WAYS
    ]


def main() -> None:
    way, model, batch_size = sys.argv[1:]
    print(json.dumps(measure(way, model, int(batch_size))))


if __name__ == "__main__":
    main()
