"""What a sweep passes to a job: where to report, when to stop, its GPU, its SFO limit.

Hydra's launchers pass strings, so this is the text of one key, `sweep`.
"""

import json
import time
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cbs_lightning.callbacks.job import Gpu
from cbs_lightning.callbacks.progress import Progress
from cbs_lightning.console import duration
from cbs_lightning.results.result import Result, Status
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.sweep.gpus import own_gpu
from cbs_lightning.sweep.live.board import Board, Lines, Phase
from cbs_lightning.sweep.live.time_left import TimeLeft, time_left


@dataclass(frozen=True)
class SweepJob:
    """The `Job` of a run that is part of a sweep."""

    number: int  # from 1
    count: int  # of the sweep's jobs
    workers: int  # how many run at a time
    started: float  # when the sweep did, in seconds since 1970
    part: str = "sweep"  # what this is a job of, in words: a sweep, or a round of a search
    on_cluster: bool = False  # whether it has a machine's share, signals and a log of its own
    output_dir: str | None = None  # the sweep's, whatever a worker's environment says
    waits: bool = True  # for a run that another process has locked
    board_directory: str | None = None
    stop_file: str | None = None  # when it appears, jobs save themselves and no further one starts
    gpus: int = 0  # over how many the jobs are spread
    slots: str | None = None  # a directory in which a job takes one of them
    sfo_limit_file: str | None = None

    in_sweep = True

    @classmethod
    def parse(cls, text: str) -> "SweepJob":
        return cls(**json.loads(text))

    def override(self) -> str:
        """As an override for Hydra, which gives quotes and dollars a meaning of their own."""
        text = json.dumps(asdict(self)).replace("'", r"\u0027").replace("$", r"\u0024")
        return f"sweep='{text}'"

    @property
    def sharing(self) -> int:
        return 1 if self.on_cluster else self.workers

    @property
    def leaves_signals(self) -> bool:
        return self.stop_file is not None

    @cached_property
    def board(self) -> Board | None:
        if self.board_directory is None:
            return None
        return Board(Path(self.board_directory), beside_table=not self.on_cluster)

    @property
    def shown_live(self) -> bool:
        return self.board is not None and self.board.live

    @cached_property
    def sfo_limit(self) -> SfoLimit | None:
        return SfoLimit(Path(self.sfo_limit_file)) if self.sfo_limit_file else None

    def title(self, run: str) -> str:
        return f"[{self.number}/{self.count}] {run}"

    def stop_requested(self) -> bool:
        return self.stop_file is not None and Path(self.stop_file).exists()

    def began(self) -> None:
        self._update(phase=Phase.RUNNING, began=time.time())

    def update(self, progress: Progress) -> None:
        self._update(**vars(progress))

    def finished(self, result: Result, *, already: bool = False) -> None:
        self._update(
            phase=Phase.FINISHED,
            status=result.status,
            known=already,
            steps=result.steps_answered,
            steps_per_epoch=result.steps_per_epoch,
            loss=result.loss,
        )

    def ended(self, status: Status) -> None:
        """Report the end of a run that has no result to show."""
        self._update(phase=Phase.FINISHED, status=status)

    def postponed(self) -> None:
        self._update(phase=Phase.WAITING)

    def time_left(self, progress: Progress) -> str:
        self.update(progress)
        runs, sweep = self._left()
        run = f"{runs.get(self.number, progress.time_left)} for this run"
        return f"{run}, {sweep} for the {self.part}" if sweep else run

    def times(self) -> str:
        if self.shown_live:
            return ""
        so_far = f"; {self.part} {duration(time.time() - self.started)} so far"
        _, left = self._left()
        return f"{so_far}, {left}" if left else so_far

    def gpu(self, device_type: str) -> AbstractContextManager[Gpu | None]:
        if self.slots is None or device_type != "cuda":
            return nullcontext()
        return own_gpu(Path(self.slots), self.workers, self.gpus, self.stop_requested)

    @contextmanager
    def printing_beside_table(self) -> Iterator[None]:
        """While inside, what the job prints goes to the board if a live table has the terminal."""
        if self.board is None or not self.board.live:
            yield
            return
        with Lines(self.board.lines) as lines, redirect_stdout(lines), redirect_stderr(lines):
            yield

    def _left(self) -> tuple[dict[int, TimeLeft], TimeLeft | None]:
        """The time left for each run, by number, and for the sweep if any run is left."""
        jobs = self.board.jobs() if self.board is not None else []
        runs, sweep = time_left(jobs, self.workers)
        return runs, sweep if runs else None

    def _update(self, **changes: Any) -> None:
        if self.board is not None:
            self.board.update(self.number, **changes)
