"""How a parallel sweep is stopped: its workers save themselves, and no further job begins."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cbs_lightning.console import print_line
from cbs_lightning.signals import SECOND, TO_STOP


class StopFile:
    """What a sweep tells its workers by: once it is there, they stop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: signal.Signals | None = None

    def make(self, number: int, _: FrameType | None) -> None:
        """A signal's handler; the next signal is not held back."""
        self.received = signal.Signals(number)
        for heard, second in SECOND.items():
            signal.signal(heard, second)
        print_line("stopping: the running jobs save themselves")
        self.path.touch()


@contextmanager
def stop_file_on_signal() -> Iterator[StopFile]:
    """While inside, SIGINT, SIGTERM and SIGUSR2 make the file, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="cbs_lightning-") as directory:
        stop = StopFile(Path(directory) / "stop")
        before = {number: signal.signal(number, stop.make) for number in TO_STOP}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
