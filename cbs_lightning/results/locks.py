"""One process at a time works on a run directory, or on what is made of a study."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cbs_lightning.console import print_line
from cbs_lightning.errors import UserError
from cbs_lightning.files import inside

LOCK = ".lock"
POLL_SECONDS = 0.5


class BusyError(UserError):
    """Another process works on the run."""


@contextmanager
def locked(
    directory: Path, title: str, *, wait: bool, gives_up: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Hold the run directory, which must exist. Where another process does, wait or `BusyError`.

    What waits ends with `BusyError` when `gives_up` says so. A run directory, or a lock in it, that
    is a symbolic link is not worked on: `LinkError`.

    The operating system gives back what a process holds when that process ends, however it ends; a
    file system that has no such locks is an OSError.
    """
    path = inside(directory.parent, directory.name, LOCK)
    lock = FileLock(path, poll_interval=POLL_SECONDS, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise BusyError(f"{directory}: locked by another process") from None
        print_line(f"{title}: locked by another process; waiting")
        try:
            lock.acquire(cancel_check=gives_up)
        except Timeout:
            raise BusyError(
                f"{directory}: locked by another process until the sweep stopped"
            ) from None
    try:
        yield
    finally:
        lock.release()


def held(directory: Path, seconds: float = -1) -> FileLock:
    """For a with statement, in which no other process writes what is made of the runs there.

    Waits as long as it takes, or raises `Timeout` after the given seconds; `LinkError` where the
    lock is a symbolic link."""
    return FileLock(inside(directory, LOCK), timeout=seconds, fallback_to_soft=False)
