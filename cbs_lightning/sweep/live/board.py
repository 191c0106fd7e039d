"""A sweep's board: every job reports its progress in a file that any process can read."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from io import TextIOBase
from pathlib import Path
from typing import Any

from cbs_lightning.results.result import Status

LINES = "said"


class Phase(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class JobState:
    """The progress of a job; times are in seconds since 1970."""

    job: int  # from 1
    variant: str
    batch_size: int
    seed: int
    threshold: float
    part: str = "sweep"  # of which it is a job
    phase: Phase = Phase.WAITING
    status: Status | None = None  # of a finished job
    known: bool = False  # finished by an earlier sweep
    steps: int = 0
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    first_loss: float | None = None
    loss: float | None = None  # the latest one by the stop's rule
    seconds_left: float | None = None  # at most, to the end of the budget
    began: float | None = None
    updated: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the start of the job to its latest report."""
        return self.updated - self.began if self.began is not None else 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """The speed of a running job, which is what the rest of its budget was estimated with."""
        if self.seconds_left is None or not self.steps_per_epoch:
            return None
        steps_left = (self.max_steps or 0) - self.steps
        return self.seconds_left / steps_left if steps_left > 0 else None

    @property
    def share(self) -> float:
        """How far the loss has come from the first one to the threshold, on a log scale."""
        first, loss = self.first_loss, self.loss
        if self.status is Status.REACHED or (loss is not None and loss <= self.threshold):
            return 1.0
        if first is None or loss is None or not self.threshold < loss < first < math.inf:
            return 0.0
        return math.log(first / loss) / math.log(first / self.threshold)


class Board:
    """The states of a sweep's jobs, in a directory.

    Each job is reported by its own process, so a file has one writer at a time. Reporting never
    fails: with a full disk, the board is out of date. A job that has a log of its own does not
    print `beside_table`.
    """

    def __init__(self, directory: Path, *, beside_table: bool = True) -> None:
        self.directory = directory
        self.beside_table = beside_table
        self._states: dict[Path, JobState] = {}
        self._versions: dict[Path, tuple[int, int]] = {}
        self._lines_read = 0  # bytes that were read

    def plan(self, jobs: Sequence[JobState]) -> None:
        for state in jobs:
            self._write(state)

    def update(self, job: int, **changes: Any) -> None:
        with suppress(OSError, ValueError):
            state = _parsed(self._path(job).read_bytes())
            self._write(replace(state, **changes, updated=time.time()))

    def jobs(self) -> list[JobState]:
        """All jobs in order; only files that changed since the last call are read."""
        for path in self.directory.glob("*.json"):
            with suppress(OSError, ValueError):
                stat = path.stat()
                version = (stat.st_ino, stat.st_mtime_ns)
                if self._versions.get(path) != version:
                    self._states[path] = _parsed(path.read_bytes())
                    self._versions[path] = version
        return sorted(self._states.values(), key=lambda state: state.job)

    @property
    def lines(self) -> Path:
        """The file for what jobs print while a live table has the terminal."""
        return self.directory / LINES

    @property
    def live(self) -> bool:
        """Whether a table shows the board, so that nothing else may print to the terminal."""
        return self.beside_table and self.lines.exists()

    def go_live(self) -> None:
        with suppress(OSError):
            self.lines.touch()

    def new_lines(self) -> list[str]:
        """What jobs printed since the last call."""
        with suppress(OSError), self.lines.open("rb") as file:
            file.seek(self._lines_read)
            lines, _, _ = file.read().rpartition(b"\n")
            if lines:
                self._lines_read += len(lines) + 1
                return lines.decode(errors="replace").split("\n")
        return []

    def _path(self, job: int) -> Path:
        return self.directory / f"{job}.json"

    def _write(self, state: JobState) -> None:
        """Readers see the old state or the new one. No fsync: a power cut ends the sweep anyway."""
        path = self._path(state.job)
        scratch = path.with_suffix(".tmp")
        with suppress(OSError):
            scratch.write_text(json.dumps(asdict(state)))
            scratch.replace(path)


def _parsed(content: bytes) -> JobState:
    state = JobState(**json.loads(content))
    status = Status(state.status) if state.status else None
    return replace(state, phase=Phase(state.phase), status=status)


class Lines(TextIOBase):
    """Appends whole lines to a file, so that lines of several processes do not mix.

    Lines that cannot be written are lost: a full disk is no reason to end a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            content = "".join(f"{line}\n" for line in lines).encode(errors="replace")
            with suppress(OSError), self.path.open("ab", buffering=0) as file:
                file.write(content)
        return len(text)

    def close(self) -> None:
        if self._begun:
            self.write("\n")
        super().close()
