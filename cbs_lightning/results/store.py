"""What a run directory looks like: the only place that knows."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import numpy as np

from cbs_lightning.files import file_name, write_atomically
from cbs_lightning.results.hparams import write_hparams
from cbs_lightning.results.result import Result, Run, Status
from cbs_lightning.results.trajectory import (
    RuleName,
    Trajectory,
)

Parsed = TypeVar("Parsed")

RESULT = "result.json"
TRAJECTORY = "trajectory.npz"
CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
ERROR = "error.txt"
LONGEST_DIRECTORY = 255  # bytes of its name, as file systems have it
DIGEST = "digest"  # in a result


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


def run_directory(
    output_dir: Path, study: str, variant: str, batch_size: int, seed: int, config_hash: str
) -> Path:
    end = f"-b{batch_size}-seed{seed}-{config_hash[:8]}"
    return output_dir / study / (file_name(variant, LONGEST_DIRECTORY - len(end)) + end)


def publish(directory: Path, result: Result) -> None:
    """Make this the run's result, which is written last: a run with a result is whole."""
    write_hparams(directory, result)
    write_result(directory, result)


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
    """Read a study.

    Args:
        directory: of the study, such as `outputs/digits`.

    Returns:
        Its runs, by variant, batch size and seed, and the run directories that cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cbs_lightning import read_study
        >>> read_study(Path(tempfile.mkdtemp()))  # an empty directory
        ([], [])
    """
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
