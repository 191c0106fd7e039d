"""Files that are whole or not there, whatever happens while they are written."""

import os
import socket
from pathlib import Path

PROJECT = Path(__file__).parents[1]  # with conf/, and .git in a clone
SCRATCH = ".tmp"
DAMAGED = ".corrupt"


def write_atomically(path: Path, content: bytes, *, previous: Path | None = None) -> None:
    """Readers see the old content or the new one, also after a power cut.

    The old content is kept as `previous`, if that is given, and lost only after the new content
    has reached the disk.
    """
    scratch = scratch_of(path)
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        scratch.replace(path)
        _flush_names(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def scratch_of(path: Path) -> Path:
    """Beside it, where only this process writes.

    On a disk that several machines see, a process is not known by its number alone.
    """
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}{SCRATCH}")


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is neither used nor lost."""
    aside = path.with_name(path.name + DAMAGED)
    path.replace(aside)
    return aside


def remove_scratch(directory: Path) -> None:
    """Remove what a process that died left half-written; nobody else may be writing there."""
    for path in directory.glob(f".*{SCRATCH}"):
        path.unlink(missing_ok=True)


def _flush_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
