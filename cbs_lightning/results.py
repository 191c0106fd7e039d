"""What a run directory looks like: the only place that knows."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from cbs_lightning.trajectory import (
    Reading,
    Rule,
    RuleName,
    Trajectory,
    first_crossing,
    last_reading,
)

SCHEMA_VERSION = 1
RESULT = "result.json"
TRAJECTORY = "trajectory.npz"
CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"
ERROR = "error.txt"


class Status(StrEnum):
    """Why a run ended."""

    REACHED = "reached"
    EXHAUSTED = "exhausted"  # the budget was used up
    DIVERGED = "diverged"  # a loss was not finite
    ABANDONED = "abandoned"  # a search gave up on it
    INTERRUPTED = "interrupted"
    FAILED = "failed"


UNFINISHED = (Status.FAILED, Status.INTERRUPTED)  # training goes on with the same command


@dataclass(frozen=True)
class Result:
    """`result.json`: the answer to the latest request, and the run that gives it.

    `steps`, `sfo` and `samples` are None unless the threshold was reached. `loss`, `accuracy` and
    `seconds` are at that step, else at the end; `seconds` counts training alone, at the run's
    mean speed. `test_accuracy` is of the final weights. Accuracies are fractions. `status` answers
    the request, `ended` says why training itself ended.
    """

    schema_version: int
    status: Status | None  # None only in a summary: the losses end before an answer
    ended: Status
    study: str
    variant: str
    data: str
    model: str
    optimizer: str
    lr: float
    hyperparameters: dict[str, Any]
    batch_size: int
    effective_batch_size: int
    micro_batch_size: int | None
    seed: int
    threshold: float
    rule: RuleName
    window: int
    steps: int | None
    sfo: int | None
    samples: int | None
    steps_run: int
    epochs_run: float
    steps_per_epoch: int
    data_size: int
    loss: float | None
    accuracy: float | None
    test_accuracy: float | None
    seconds: float
    seconds_per_step: float | None
    threads: int
    device: str
    config_hash: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Request:
    """What is asked of a run: a threshold by a rule, within a budget; None: the run's own."""

    threshold: float
    rule: RuleName
    window: int  # samples
    max_steps: int | None = None


@dataclass(frozen=True)
class Run:
    """A run directory that could be read."""

    directory: Path
    result: Result
    trajectory: Trajectory


@dataclass(frozen=True)
class Broken:
    """A run directory that could not be read."""

    directory: Path
    reason: str


def answer(result: Result, trajectory: Trajectory, request: Request) -> Result:
    """What the recorded losses of the run that `result` describes say to the request.

    The status is `reached` where they meet the threshold. Else it says why not; None where they
    end too soon to tell.
    """
    rule = Rule(request.rule, result.steps_per_epoch, request.window)
    asked = replace(result, threshold=request.threshold, rule=request.rule, window=request.window)
    within = trajectory[: request.max_steps]
    crossing = first_crossing(within, rule, request.threshold)
    if crossing is not None:
        return _at(asked, crossing, Status.REACHED, end=crossing.steps)
    status = _why_not(result.ended, within, request.max_steps)
    return _at(asked, last_reading(within, rule), status, end=len(within))


def _why_not(ended: Status, within: Trajectory, max_steps: int | None) -> Status | None:
    if within.first_non_finite() is not None:
        return Status.DIVERGED
    if max_steps is not None and len(within) == max_steps:
        return Status.EXHAUSTED
    if ended is Status.REACHED or (ended is Status.EXHAUSTED and max_steps is not None):
        return None  # it stopped at another threshold, or its budget was smaller
    return ended


def _at(result: Result, reading: Reading | None, status: Status | None, end: int) -> Result:
    """The result as of step `end`."""
    reached = reading if status is Status.REACHED else None
    return replace(
        result,
        status=status,
        steps=reached.steps if reached else None,
        sfo=reached.steps * result.effective_batch_size if reached else None,
        samples=reached.samples if reached else None,
        loss=_finite(reading.loss) if reading else None,
        accuracy=reading.accuracy if reading else None,
        seconds=(result.seconds_per_step or 0.0) * end,
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def run_directory(
    output_dir: Path, study: str, variant: str, batch_size: int, seed: int, config_hash: str
) -> Path:
    readable = re.sub(r"[^\w.=+-]+", ",", variant)
    return output_dir / study / f"{readable}-b{batch_size}-seed{seed}-{config_hash[:8]}"


def write_result(directory: Path, result: Result) -> None:
    write_atomically(directory / RESULT, (json.dumps(asdict(result), indent=2) + "\n").encode())


def write_trajectory(directory: Path, trajectory: Trajectory) -> None:
    buffer = BytesIO()
    np.savez(buffer, **vars(trajectory))
    write_atomically(directory / TRAJECTORY, buffer.getvalue())


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, also after a power cut."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def read_run(directory: Path) -> Run:
    """Raise ValueError where the files are not those of a run, OSError where there are none."""
    text = (directory / RESULT).read_text()
    try:
        values = json.loads(text)
        known = {field.name for field in fields(Result)}
        values = {key: value for key, value in values.items() if key in known}
        values |= {key: Status(values[key]) for key in ("status", "ended")}
        values["rule"] = RuleName(values["rule"])
        result = Result(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{RESULT}: {error}") from error
    try:
        with np.load(directory / TRAJECTORY, allow_pickle=False) as arrays:
            trajectory = Trajectory(arrays["loss"], arrays["correct"], arrays["size"])
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(f"{TRAJECTORY}: {error}") from error
    if not len(trajectory.loss) == len(trajectory.correct) == len(trajectory.size):
        raise ValueError(f"{TRAJECTORY}: arrays of different lengths")
    return Run(directory, result, trajectory)


def read_study(directory: Path) -> tuple[list[Run], list[Broken]]:
    """The runs of a study, ordered for people, and the directories that could not be read."""
    runs, broken = [], []
    for path in sorted(directory.iterdir()):
        if not any((path / name).exists() for name in (RESULT, TRAJECTORY, CONFIG)):
            continue
        try:
            runs.append(read_run(path))
        except (ValueError, OSError) as error:
            broken.append(Broken(path, f"{type(error).__name__}: {error}"))
    runs.sort(key=lambda run: (run.result.variant, run.result.batch_size, run.result.seed))
    return runs, broken


def studies(output_dir: Path) -> Iterator[Path]:
    """The folders of `output_dir` that hold runs."""
    if not output_dir.is_dir():
        return
    for path in sorted(output_dir.iterdir()):
        if path.is_dir() and any((run / CONFIG).exists() for run in path.iterdir()):
            yield path
