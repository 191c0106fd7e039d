"""What a run gets from the sweep that it is part of.

The package `sweep` implements it. A single run has `ALONE`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from cbs_lightning.callbacks.progress import Progress
from cbs_lightning.results.result import Result
from cbs_lightning.results.sfo_limit import SfoLimit


class Gpu(NamedTuple):
    number: int  # torch's, of the device
    title: str


class Job(Protocol):
    """One run of a sweep, as the run sees it."""

    @property
    def in_sweep(self) -> bool: ...

    @property
    def sharing(self) -> int:
        """How many runs at a time share this machine's cores and memory."""

    @property
    def waits(self) -> bool:
        """Whether to wait for a run directory that another process has locked."""

    @property
    def leaves_signals(self) -> bool:
        """Whether the sweep handles signals, and says when to stop."""

    @property
    def shown_live(self) -> bool:
        """Whether a live table has the terminal, so that the run prints no progress of its own."""

    @property
    def sfo_limit(self) -> SfoLimit | None:
        """The SFO beyond which the run is abandoned."""

    def title(self, run: str) -> str:
        """The run's title, with the job's number."""

    def stop_requested(self) -> bool: ...

    def update(self, progress: Progress) -> None:
        """Report the progress of the run."""

    def finished(self, result: Result, *, already: bool = False) -> None:
        """Report how the run ended; `already`: before this sweep."""

    def time_left(self, progress: Progress) -> str:
        """The time left for the run, and for the sweep if known, for the end of a line."""

    def times(self) -> str:
        """The time that the sweep has taken, and the time left, for the end of a line."""

    def gpu(self, device_type: str) -> AbstractContextManager[Gpu | None]:
        """The GPU of this job for as long as the context lasts; None means the first one."""


class Alone:
    """A run that is not part of a sweep."""

    in_sweep = False
    sharing = 1
    waits = True
    leaves_signals = False
    shown_live = False
    sfo_limit = None

    def title(self, run: str) -> str:
        return run

    def stop_requested(self) -> bool:
        return False

    def update(self, progress: Progress) -> None:
        pass

    def finished(self, result: Result, *, already: bool = False) -> None:
        pass

    def time_left(self, progress: Progress) -> str:
        return f"{progress.time_left} for this run"

    def times(self) -> str:
        return ""

    @contextmanager
    def gpu(self, device_type: str) -> Iterator[Gpu | None]:
        yield None


ALONE: Job = Alone()
