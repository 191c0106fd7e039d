"""Stops a parallel sweep: its workers save themselves, and no further job starts."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cbs_lightning.console import print_line
from cbs_lightning.signals import SECOND, TO_STOP


class StopFile:
    """A file that tells a sweep's workers to stop as soon as it exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: signal.Signals | None = None
        self._before = path.with_name("running")  # renamed, which a full disk does not prevent
        self._before.touch()

    def make(self, number: int, _: FrameType | None) -> None:
        """A signal's handler; the next signal is not held back."""
        self.received = signal.Signals(number)
        for heard, second in SECOND.items():
            signal.signal(heard, second)
        print_line("stopping: running jobs are saving their state")
        try:
            self._before.replace(self.path)
        except OSError:  # the directory is gone, and the jobs cannot be told
            raise KeyboardInterrupt from None


@contextmanager
def stop_file_on_signal(directory: Path) -> Iterator[StopFile]:
    """While inside, SIGINT, SIGTERM and SIGUSR2 create the file and do nothing else."""
    stop = StopFile(directory / "stop")
    before = {number: signal.signal(number, stop.make) for number in TO_STOP}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
