"""What a run directory looks like; nothing else knows."""

import hashlib
import json
import math
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from cbs_lightning.files import file_name, write_atomically
from cbs_lightning.results import trajectory_file
from cbs_lightning.results.hparams import write_hparams
from cbs_lightning.results.result import Result, Run, Status, seed_order
from cbs_lightning.results.trajectory import RuleName, Trajectory
from cbs_lightning.results.validation import check_answer, check_result, check_trajectory

Parsed = TypeVar("Parsed")

RESULT = "result.json"
TRAJECTORY = "trajectory.npz"
CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
ERROR = "error.txt"
LONGEST_DIRECTORY = 255  # bytes of its name, as file systems have it
DIGEST = "digest"  # in a result
LATER_THAN_DIGEST = {"machine", "trajectory_digest"}
LARGEST_RESULT = 10_000_000  # bytes; a usual one has 3,000
LONGEST_REASON = 300  # characters


class DamagedError(ValueError):
    """A file of a run directory is not what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        plain = "".join(each if each.isprintable() else " " for each in reason)
        self.reason = " ".join(plain.split())[:LONGEST_REASON]
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
    """Write the run's result. It is written last: a run with a result is complete."""
    write_hparams(directory, result)
    write_result(directory, result)


def write_result(directory: Path, result: Result) -> None:
    values = asdict(result)
    values[DIGEST] = _digest(values)
    write_atomically(directory / RESULT, (json.dumps(values, indent=2) + "\n").encode())


def _digest(values: dict[str, Any]) -> str:
    """A digest of everything else in a result, which reveals a wrong digit anywhere."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_trajectory(directory: Path, trajectory: Trajectory) -> None:
    write_atomically(directory / TRAJECTORY, trajectory_file.pack(trajectory))


def read_run(directory: Path) -> Run:
    """Read a run. Raises `DamagedError` for a file that no run wrote, OSError if there is none.

    The returned values are in range, and the losses give the stored answer.
    """
    result = read_result(directory)

    def parse(content: bytes) -> Trajectory:
        trajectory = trajectory_file.unpack(content)
        if len(trajectory) < result.steps_run:
            raise ValueError(f"ends before step {result.steps_run}")
        # A process that died between the two writes left losses beyond what the result knows of.
        known = trajectory[: result.steps_run]
        check_trajectory(known)
        check_answer(result, known)
        return known

    return Run(directory, result, _checked(directory / TRAJECTORY, parse))


def read_result(directory: Path) -> Result:
    """Read a result alone; raises the same errors as `read_run`."""
    return _checked(directory / RESULT, _parse_result, LARGEST_RESULT)


def _checked(path: Path, parse: Callable[[bytes], Parsed], largest: float = math.inf) -> Parsed:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe, say, that nobody writes to
        raise DamagedError(path, "not a file")
    if status.st_size > largest:
        raise DamagedError(path, f"{status.st_size:,} bytes, too large to be one")
    content = path.read_bytes()
    try:
        return parse(content)
    except Exception as error:  # whatever garbled bytes make json, zipfile and numpy raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise DamagedError(path, f"{kind}{error}") from error


def _parse_result(content: bytes) -> Result:
    values = json.loads(content)
    digest = values.pop(DIGEST, None)
    names = {field.name for field in fields(Result)}
    # Results of before there were digests have none of the keys that came later.
    if digest is None and not values.keys() <= names - LATER_THAN_DIGEST:
        raise ValueError("no digest")
    if digest is not None and digest != _digest(values):
        raise ValueError("not as it was written")
    values = {key: value for key, value in values.items() if key in names}
    values |= {key: Status(values[key]) for key in ("status", "ended")}
    values["rule"] = RuleName(values["rule"])
    result = Result(**values)
    check_result(result)
    return result


def run_directories(study: Path) -> list[Path]:
    """The folders of a study in which a run began."""
    files = (RESULT, TRAJECTORY, CONFIG)
    return [path for path in sorted(study.iterdir()) if any((path / f).exists() for f in files)]


def read_study(directory: Path) -> tuple[list[Run], list[Broken]]:
    """Read all runs of a study.

    Args:
        directory: the study's folder, such as `outputs/digits`.

    Returns:
        The runs, sorted by variant, batch size and seed, and the run directories that could not be
        read, with the reason.

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
        except DamagedError as error:
            broken.append(Broken(path, str(error)))
        except OSError as error:
            unfinished = not (path / RESULT).exists() and not (path / TRAJECTORY).exists()
            reason = "no result yet: it is running, or was killed (the same command resumes it)"
            broken.append(
                Broken(path, reason if unfinished else f"{type(error).__name__}: {error}")
            )
    runs.sort(key=lambda run: _place(run.result))
    return runs, broken


def _place(result: Result) -> tuple[str, int, tuple[bool, int]]:
    return result.variant, result.batch_size, seed_order(result.seed)


def studies(output_dir: Path) -> Iterator[Path]:
    """The folders of `output_dir` that contain runs, or the folder itself if it does."""
    if not output_dir.is_dir():
        return
    for path in (output_dir, *sorted(output_dir.iterdir())):
        if path.is_dir() and any((run / CONFIG).exists() for run in path.iterdir()):
            yield path
