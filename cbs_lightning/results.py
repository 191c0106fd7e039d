"""What a run directory looks like: the only place that knows."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import numpy as np

from cbs_lightning.storage import write_atomically
from cbs_lightning.trajectory import (
    Reading,
    Readings,
    Rule,
    RuleName,
    Trajectory,
    last_reading,
)

Parsed = TypeVar("Parsed")

SCHEMA_VERSION = 1
RESULT = "result.json"
TRAJECTORY = "trajectory.npz"
CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
ERROR = "error.txt"
DIGEST = "digest"  # in a result


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
    commit: str | None = None  # of this project's code; with a + where it was changed since
    configuration: dict[str, Any] = field(default_factory=dict)  # all of it, resolved
    machine: str | None = None

    @property
    def sliced(self) -> bool:
        """Whether a batch was worked in slices, whose statistics BatchNorm then saw."""
        slice_size = self.micro_batch_size
        return slice_size is not None and slice_size < self.effective_batch_size

    @property
    def lr_scaling(self) -> str:
        """By which `lr` came about; a run from before there was one had none."""
        return str(self.configuration.get("lr_scaling", "none"))

    @property
    def first_reading(self) -> int:
        """The first step at which the rule gives a loss at all."""
        if self.rule is RuleName.EPOCH:
            return self.steps_per_epoch
        return -(-self.window // self.effective_batch_size)

    @property
    def steps_answered(self) -> int:
        """How many steps the answer is about: a longer run may answer for a smaller budget."""
        if self.steps is not None or not self.seconds_per_step:
            return self.steps or self.steps_run
        return round(self.seconds / self.seconds_per_step)

    @property
    def sfo_answered(self) -> int:
        """What those steps cost; where the threshold was not reached, K·b is more."""
        return self.steps_answered * self.effective_batch_size


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


class DamagedError(ValueError):
    """A file of a run directory that is not what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = " ".join(reason.split())
        super().__init__(f"{path.name}: {self.reason}")


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
    return _answer(result, Readings.of(trajectory[: request.max_steps], rule), request)


def answers(run: Run, rule: RuleName, window: int, thresholds: Iterable[float]) -> list[Result]:
    """As `answer` for every threshold, within the run's own budget."""
    read = Readings.of(run.trajectory, Rule(rule, run.result.steps_per_epoch, window))
    return [_answer(run.result, read, Request(each, rule, window)) for each in thresholds]


def _answer(result: Result, read: Readings, request: Request) -> Result:
    asked = replace(result, threshold=request.threshold, rule=request.rule, window=request.window)
    crossing = read.first_crossing(request.threshold)
    if crossing is not None:
        return _at(asked, crossing, Status.REACHED, end=crossing.steps)
    within = read.trajectory
    status = _why_not(result.ended, within, request.max_steps)
    return _at(asked, last_reading(within, read.rule), status, end=len(within))


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
    name = f"{readable(variant)}-b{batch_size}-seed{seed}-{config_hash[:8]}"
    return output_dir / study / name


def readable(variant: str) -> str:
    """A variant as part of a path."""
    return re.sub(r"[^\w.=+-]+", ",", variant)


def write_result(directory: Path, result: Result) -> None:
    values = asdict(result)
    values[DIGEST] = _digest(values)
    write_atomically(directory / RESULT, (json.dumps(values, indent=2) + "\n").encode())


def _digest(values: dict[str, Any]) -> str:
    """Of all else that a result holds: a wrong digit somewhere is found out."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_trajectory(directory: Path, trajectory: Trajectory) -> None:
    buffer = BytesIO()
    np.savez(buffer, **vars(trajectory))
    write_atomically(directory / TRAJECTORY, buffer.getvalue())


def read_run(directory: Path) -> Run:
    """Raise `DamagedError` where a file is not that of a run, OSError where there is none."""
    result = read_result(directory)
    trajectory = _checked(directory / TRAJECTORY, _parse_trajectory)
    if len(trajectory) < result.steps_run:
        raise DamagedError(directory / TRAJECTORY, f"ends before step {result.steps_run}")
    # A process that died between the two writes left losses beyond what the result knows of.
    return Run(directory, result, trajectory[: result.steps_run])


def read_result(directory: Path) -> Result:
    """Raises what `read_run` raises."""
    return _checked(directory / RESULT, _parse_result)


def _checked(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    content = path.read_bytes()
    try:
        return parse(content)
    except Exception as error:  # whatever garbled bytes make json, zipfile and numpy raise
        raise DamagedError(path, f"{type(error).__name__}: {error}") from error


def _parse_result(content: bytes) -> Result:
    values = json.loads(content)
    digest = values.pop(DIGEST, None)
    if digest is not None and digest != _digest(values):
        raise ValueError("not as it was written")
    values = {field.name: values[field.name] for field in fields(Result) if field.name in values}
    values |= {key: Status(values[key]) for key in ("status", "ended")}
    values["rule"] = RuleName(values["rule"])
    result = Result(**values)
    for name, kind in get_type_hints(Result).items():
        kind = get_origin(kind) if get_origin(kind) is dict else kind
        accepted = kind | int if isinstance(0.5, kind) else kind
        if not isinstance(value := getattr(result, name), accepted):
            raise TypeError(f"{name} is {value!r}")
    return result


def _parse_trajectory(content: bytes) -> Trajectory:
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        trajectory = Trajectory(arrays["loss"], arrays["correct"], arrays["size"])
    loss, *others = vars(trajectory).values()
    if any(array.ndim != 1 or len(array) != len(loss) for array in (loss, *others)):
        raise ValueError("arrays of different lengths")
    if loss.dtype != np.float32 or any(array.dtype != np.int32 for array in others):
        raise ValueError("arrays of other types than float32, int32, int32")
    return trajectory


def run_directories(study: Path) -> list[Path]:
    """The folders of a study that a run began in."""
    files = (RESULT, TRAJECTORY, CONFIG)
    return [path for path in sorted(study.iterdir()) if any((path / f).exists() for f in files)]


def read_study(directory: Path) -> tuple[list[Run], list[Broken]]:
    """The runs of a study, ordered for people, and the directories that could not be read."""
    runs, broken = [], []
    for path in run_directories(directory):
        try:
            runs.append(read_run(path))
        except (DamagedError, OSError) as error:
            broken.append(Broken(path, f"{type(error).__name__}: {error}"))
    runs.sort(key=lambda run: (run.result.variant, run.result.batch_size, run.result.seed))
    return runs, broken


def studies(output_dir: Path) -> Iterator[Path]:
    """The folders of `output_dir` that hold runs, or itself if it is such a one."""
    if not output_dir.is_dir():
        return
    for path in (output_dir, *sorted(output_dir.iterdir())):
        if path.is_dir() and any((run / CONFIG).exists() for run in path.iterdir()):
            yield path
