"""Signals: held back while a run is written, and handed over to whoever listened before."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes meanwhile is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_of(error: BaseException) -> signal.Signals:
    """The signal that an exit or a keyboard interrupt stands for."""
    code = error.code if isinstance(error, SystemExit) else None
    return next((number for number in TO_STOP if code == 128 + number), signal.SIGINT)


def hand_over(number: signal.Signals) -> None:
    """Let whoever listened before, such as a cluster's launcher, have the signal now."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        signal.raise_signal(number)
