"""Signals: delayed while a run is written, and passed on to earlier handlers."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What tells a run or a sweep to stop, and what a second one does once it saves itself.
SECOND: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGUSR2: signal.SIG_IGN,
}
TO_STOP = tuple(SECOND)


@contextmanager
def held_back() -> Iterator[None]:
    """While inside, signals are delayed; they are delivered afterwards.

    Only the main thread can do that; in another nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in TO_STOP}
    for number in TO_STOP:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def signal_of(error: BaseException) -> signal.Signals:
    """The signal that an exit or a keyboard interrupt stands for."""
    code = error.code if isinstance(error, SystemExit) else None
    return next((number for number in TO_STOP if code == 128 + number), signal.SIGINT)


def hand_over(number: signal.Signals) -> None:
    """Pass the signal on to the previous handler, such as a cluster's launcher."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        signal.raise_signal(number)
