"""Ends a run in good order when it is told to stop."""

import signal
from types import FrameType
from typing import Any, ClassVar

import lightning as L


class StopOnSignal(L.Callback):
    """SIGINT and SIGTERM end training after the chunk at hand; `received` says which it was.

    A second signal is not held back.
    """

    DEFAULTS: ClassVar[dict[signal.Signals, Any]] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def on_train_start(self, *_: Any) -> None:
        # After Lightning has set its own handlers, which it takes back when training ends.
        for number in self.DEFAULTS:
            signal.signal(number, self._receive)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.received is not None:
            trainer.should_stop = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for known, default in self.DEFAULTS.items():
            signal.signal(known, default)
