"""Ends a run in good order when it is told to stop."""

import signal
from types import FrameType
from typing import Any

import lightning as L


class StopOnSignal(L.Callback):
    """SIGINT and SIGTERM end training after the chunk at hand; `received` says which it was.

    A second signal is not held back.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def on_fit_start(self, *_: Any) -> None:
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._receive)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.received is not None:
            trainer.should_stop = True

    def restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.restore()
