"""How long it takes to the first step, and from a sweep's run to its next one's, and whether memory
grows with the runs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.moments import ENDED, FIRST_STEP, Moment, read
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target

ROOT = Path(__file__).parents[1]
IMPORTS = "import torch, torchvision, lightning, hydra"
PRINT_MOMENT = f"from benchmarks.moments import print_moment; print_moment({FIRST_STEP!r})"
ONE_STEP = ["model._target_=benchmarks.timed_model.Timed", "stop.max_steps=1"]
START = Target("first step / imports alone", 1.25, 1.25)
BETWEEN = Target("from a run's end to the next one's first step, s", 0.3, 0.15)
GROWTH = Target("growth of memory over 60 runs, MiB", 20, 5)


def start(repeats: int = 3) -> dict[str, Spread]:
    """A run to its first step, beside a process that imports the frameworks alone."""
    commands = {"imports": ["-c", f"{IMPORTS}; {PRINT_MOMENT}"], "run": ["train.py", *ONE_STEP]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):  # in turns, since a machine's speed changes
        for name, command in commands.items():
            started, moments = told_by(command)
            seconds[name].append(moments[0].at - started)
            cpu_seconds[name].append(moments[0].cpu_seconds)
    ratios = {
        "first step / imports": zip(seconds["run"], seconds["imports"], strict=True),
        "the same, CPU": zip(cpu_seconds["run"], cpu_seconds["imports"], strict=True),
    }
    return {
        "imports, s": Spread.of(seconds["imports"]),
        "first step, s": Spread.of(seconds["run"]),
        **{name: Spread.of(run / imports for run, imports in of) for name, of in ratios.items()},
    }


def further_runs(runs: int = 100) -> dict[str, Spread]:
    """Of a sweep in one process: from a run's last step to the end of the next one's first."""
    started, moments = told_by(["train.py", "-m", *ONE_STEP, "jobs=1", f"seed=range({runs})"])
    first_steps = [moment for moment in moments if moment.what == FIRST_STEP]
    ends = [moment for moment in moments if moment.what == ENDED]
    between = [b.at - a.at for a, b in zip(ends, first_steps[1:], strict=False)]
    resident = [end.resident for end in ends]
    fifth = max(1, runs // 5)
    # Of medians, since it goes up and down with the garbage that waits to be collected.
    growth = median(resident[-fifth:]) - median(resident[fifth : 2 * fifth])
    return {
        "first step of a sweep, s": Spread.of([first_steps[0].at - started]),
        "between runs, s": Spread.of(between),
        "between the first ones, s": Spread.of(between[:fifth]),
        "between the last ones, s": Spread.of(between[-fifth:]),
        "growth of memory, MiB": Spread.of([growth]),
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


def run(report: Callable[[str], None]) -> Outcome:
    report("to the first step, beside imports alone")
    found = start()
    report("100 runs in one process")
    found |= further_runs()
    rows = [[name, str(spread)] for name, spread in found.items()]
    targets = {
        START: "first step / imports",
        BETWEEN: "between runs, s",
        GROWTH: "growth of memory, MiB",
    }
    findings = [Finding.of(target, {"": found[name]}) for target, name in targets.items()]
    numbers = {name: asdict(spread) for name, spread in found.items()}
    return Outcome(numbers, [Table("Start", ["", "median and quartiles"], rows)], findings)
