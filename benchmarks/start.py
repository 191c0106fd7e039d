"""How long it takes to the first step, and from a sweep's run to its next one's, and whether memory
grows with the runs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.moments import ENDED, FIRST_STEP, Moment, read
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target

ROOT = Path(__file__).parents[1]
IMPORTS = "import torch, torchvision, lightning, hydra"
TELL = f"from benchmarks.moments import tell; tell({FIRST_STEP!r})"
ONE_STEP = ["model._target_=benchmarks.timed_model.Timed", "stop.max_steps=1"]
START = Target("first step / imports alone", 1.25, 1.25)
BETWEEN = Target("from a run's end to the next one's first step, s", 0.3, 0.15)
GROWTH = Target("growth of memory over 60 runs, MiB", 20, 5)


def start(repeats: int = 3) -> dict[str, float]:
    """A run to its first step, beside a process that imports the frameworks alone: medians."""
    commands = {"imports": ["-c", f"{IMPORTS}; {TELL}"], "run": ["train.py", *ONE_STEP]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):  # in turns, since a machine's speed changes
        for name, command in commands.items():
            started, moments = told_by(command)
            seconds[name].append(moments[0].at - started)
            cpu_seconds[name].append(moments[0].cpu_seconds)
    return {
        "imports_seconds": median(seconds["imports"]),
        "start_seconds": median(seconds["run"]),
        "start_ratio": median(seconds["run"]) / median(seconds["imports"]),
        "imports_cpu_seconds": median(cpu_seconds["imports"]),
        "start_cpu_seconds": median(cpu_seconds["run"]),
        "start_cpu_ratio": median(cpu_seconds["run"]) / median(cpu_seconds["imports"]),
    }


def further_runs(runs: int = 100) -> dict[str, float]:
    """Of a sweep in one process: from a run's last step to the end of the next one's first."""
    started, moments = told_by(["train.py", "-m", *ONE_STEP, "jobs=1", f"seed=range({runs})"])
    first_steps = [moment for moment in moments if moment.what == FIRST_STEP]
    ends = [moment for moment in moments if moment.what == ENDED]
    between = [b.at - a.at for a, b in zip(ends, first_steps[1:], strict=False)]
    resident = [end.resident for end in ends]
    fifth = max(1, runs // 5)
    return {
        "sweep_start_seconds": first_steps[0].at - started,
        "between_runs_seconds": median(between),
        "between_first_runs_seconds": median(between[:fifth]),
        "between_last_runs_seconds": median(between[-fifth:]),
        # Of medians, since it goes up and down with the garbage that waits to be collected.
        "memory_growth_mib": median(resident[-fifth:]) - median(resident[fifth : 2 * fifth]),
    }


def told_by(command: list[str]) -> tuple[float, list[Moment]]:
    """When a process of Python was started, and what it told."""
    with tempfile.TemporaryDirectory() as directory:
        output = [f"output_dir={directory}"] if command[0] == "train.py" else []
        started = time.time()
        done = subprocess.run(
            [sys.executable, *command, *output],
            cwd=ROOT,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        )
    return started, read(done.stdout)


def run(tell: Callable[[str], None]) -> Outcome:
    tell("to the first step, beside imports alone")
    started = start()
    tell("100 runs in one process")
    further = further_runs()
    rows = [[name, f"{value:.3g}"] for name, value in (started | further).items()]
    found = {
        START: started["start_ratio"],
        BETWEEN: further["between_runs_seconds"],
        GROWTH: further["memory_growth_mib"],
    }
    findings = [Finding.of(target, {"": Spread.of([value])}) for target, value in found.items()]
    return Outcome(started | further, [Table("Start", ["", "median"], rows)], findings)
