"""Where a sweep keeps its own files: its board, its stop file, the slots of its GPUs."""

import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from cbs_lightning.console import print_line, visible

PREFIX = "cbs_lightning-"
NEW = f".{PREFIX}new-"  # of a directory that nobody has locked yet
OWNER = "owner"  # a file that the owner has locked: the operating system frees it
LEAST_ROOM = 2**14  # bytes
SHARED_MEMORY = Path("/dev/shm")  # with what joblib and loky name by a process's number
OF_PROCESS = ("joblib_memmapping_folder_{}_*", "sem.loky-{}-*")


@contextmanager
def scratch_directory(study: Path, below: Path | None = None) -> Iterator[Path | None]:
    """A directory for as long as the context lasts; None, with a line that says why, if there is no
    room.

    If `below` is given, it is inside that directory, because other machines can see it. Otherwise
    it is among the temporary files, or in the study's directory if those have no room. Anything
    that killed sweeps left there is removed.
    """
    with ExitStack() as stack:
        yield _first_with_room(stack, [below] if below is not None else [None, study])


def _first_with_room(stack: ExitStack, places: list[Path | None]) -> Path | None:
    """The directory in the first place that has room; None stands for the temporary files."""
    for number, place in enumerate(places, 1):
        try:
            if place is None:
                place = Path(tempfile.gettempdir())
            else:
                place.mkdir(parents=True, exist_ok=True)
            remove_left_behind(place)
            return stack.enter_context(_owned(place))
        except OSError as error:
            where, reason = place or "temporary files", error.strerror or str(error)
            then = "there is no live progress" if number == len(places) else f"using {places[-1]}"
            _warn(f"{where}: no room for the sweep's own files ({reason}); {then}")
    return None


@contextmanager
def _owned(place: Path) -> Iterator[Path]:
    new = Path(tempfile.mkdtemp(prefix=NEW, dir=place))
    directory = place / new.name.replace(NEW, PREFIX)
    try:
        with (new / OWNER).open("wb") as owner:
            _lock(owner)
            who = json.dumps({"machine": socket.gethostname(), "pid": os.getpid()})
            owner.write(who.encode().ljust(LEAST_ROOM))
            owner.flush()
            new.rename(directory)
            yield directory
    finally:
        for path in (new, directory):
            shutil.rmtree(path, ignore_errors=True)


def _lock(owner: IO[bytes]) -> None:
    fcntl.flock(owner.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_left_behind(place: Path) -> None:
    """Remove what this user's sweeps left on this machine when they were killed."""
    for directory in place.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError), (directory / OWNER).open("r+b") as owner:
            own = directory.lstat().st_uid == os.getuid() and not directory.is_symlink()
            who = json.loads(owner.read())
            if not own or who["machine"] != socket.gethostname():
                continue  # not known to be dead: not every file system locks across machines
            _lock(owner)  # an OSError where its owner lives
            _remove_shared_memory(int(who["pid"]))
            shutil.rmtree(directory, ignore_errors=True)


def _remove_shared_memory(pid: int) -> None:
    if Path(f"/proc/{pid}").exists():
        return  # another process has the number now
    for pattern in OF_PROCESS:
        for path in SHARED_MEMORY.glob(pattern.format(pid)):
            with suppress(OSError):
                if path.lstat().st_uid != os.getuid():
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


@cache
def _warn(text: str) -> None:
    """Warn once per process, because a search has many rounds."""
    print_line(visible(f"warning: {text}"))
