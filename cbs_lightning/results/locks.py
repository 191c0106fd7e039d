"""Locks: one process at a time works on a run directory, or writes the files of a study."""

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
    """The run is locked by another process."""


@contextmanager
def locked(
    directory: Path, title: str, *, wait: bool, gives_up: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Lock the run directory, which must exist. If another process holds it, wait or raise
    `BusyError`.

    Waiting ends with `BusyError` when `gives_up` returns true. A run directory or lock file that is
    a symbolic link raises `LinkError`.

    The operating system releases the lock when its process ends, however it ends. A file system
    without such locks raises OSError.
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
    """A context in which no other process writes the files made from the runs there.

    Waits as long as necessary, or raises `Timeout` after the given number of seconds. Raises
    `LinkError` if the lock is a symbolic link.
    """
    return FileLock(inside(directory, LOCK), timeout=seconds, fallback_to_soft=False)
