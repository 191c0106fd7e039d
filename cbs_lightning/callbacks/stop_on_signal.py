"""Ends a run properly when it is told to stop."""

import signal
from types import FrameType
from typing import Any

import lightning as L

from cbs_lightning.callbacks.job import ALONE, Job
from cbs_lightning.signals import SECOND, TO_STOP


class StopOnSignal(L.Callback):
    """Ends training after the current chunk; `received` is the signal.

    Handles SIGINT and SIGTERM, of which a second one takes effect at once, and SIGUSR2, a cluster's
    warning. A job of a parallel sweep leaves signals to the sweep, and stops when the sweep asks it
    to.
    """

    def __init__(self, job: Job = ALONE) -> None:
        self.job = job
        self.received: signal.Signals | None = None

    def is_asked(self) -> bool:
        """Whether the run is to stop."""
        return self.received is not None or self.job.stop_requested()

    def on_train_start(self, *_: Any) -> None:
        # After Lightning has set its own handlers; when training ends it restores the old ones.
        for number in TO_STOP:
            signal.signal(number, signal.SIG_IGN if self.job.leaves_signals else self._receive)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.job.stop_requested():
            self.received = signal.SIGTERM
        if self.received is not None:
            trainer.should_stop = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for heard, second in SECOND.items():
            signal.signal(heard, second)
