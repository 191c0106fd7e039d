"""Writes files completely or not at all, and only where they belong."""

import hashlib
import os
import re
import socket
import unicodedata
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import BinaryIO

from cbs_lightning.errors import UserError

PACKAGE = Path(__file__).parent
PROJECT = PACKAGE.parent  # a clone with its .git and Makefile, or where packages are installed
SCRATCH = ".tmp"
SCRATCH_NAME = re.compile(r"\..+\.[\w.-]+\.\d+\.tmp", re.DOTALL)  # what `scratch_of` makes
DAMAGED = ".corrupt"
UNSAFE = re.compile(r"^\.*[^\w.=+-]+|[^\w.=+-]+|^\.+")  # in a file's name
LONGEST_NAME = 80  # bytes of a file's, which leave room for a suffix and for `scratch_of`


class LinkError(UserError):
    """There is a symbolic link where this project would write or delete."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: a symbolic link, which is not followed; remove it")


def inside(directory: Path, *names: str) -> Path:
    """The path below a directory with these names, for writing or deleting.

    Raises `LinkError` if one of them is a symbolic link: a study may come from somebody else, and
    must not lead out of itself. The directory itself may be reached through links, which are the
    user's own.
    """
    path = directory
    for name in names:
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{name!r} is not the name of a file")
        path /= name
        if path.is_symlink():
            raise LinkError(path)
    return path


def file_name(text: str, longest: int = LONGEST_NAME) -> str:
    """The text as the name of a file or a part of one; never hidden, empty or too long.

    Not distinct for distinct texts: see `file_names`. `longest` counts bytes.
    """
    name = UNSAFE.sub(",", text) or ","
    return name if len(name.encode()) <= longest else _with_digest(name, text, longest)


def file_names(texts: Iterable[str]) -> dict[str, str]:
    """Names for the files of one folder, by text; those that `file_name` calls alike get a digest.

    They are distinct also on a file system that ignores case or how accents are encoded.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for text in dict.fromkeys(texts):
        name = file_name(text)
        for number in count():
            if _folded(name) not in taken:
                break
            name = _with_digest(file_name(text), f"{text}{number or ''}", LONGEST_NAME)
        taken.add(_folded(name))
        names[text] = name
    return names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _with_digest(name: str, text: str, longest: int) -> str:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name.encode()[: longest - 9].decode(errors='ignore')}-{digest}"


def write_atomically(path: Path, content: bytes, *, previous: Path | None = None) -> None:
    """Readers see the old content or the new one, also after a power cut.

    A link at `path` is replaced, not followed; `path.parent` must be one that `inside` gave.
    The old content is kept as `previous`, if that is given, and lost only after the new content
    has reached the disk.
    """
    scratch = scratch_of(path)
    try:
        with open_new(scratch) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        scratch.replace(path)
        _flush_names(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def open_new(path: Path) -> BinaryIO:
    """Open a new file for writing, replacing what is there; a link is replaced, not followed."""
    try:
        return path.open("xb")
    except FileExistsError:
        path.unlink()
        return path.open("xb")


def scratch_of(path: Path) -> Path:
    """A path beside it to which only this process writes.

    On a disk shared by several machines, the process number alone is not unique.
    """
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}{SCRATCH}")


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is neither used nor lost."""
    aside = path.with_name(path.name + DAMAGED)
    path.replace(aside)
    return aside


def remove_scratch(directory: Path) -> None:
    """Remove partial files of processes that died; nobody else may be writing there.

    Only files named by `scratch_of` are removed.
    """
    for path in directory.glob(f".*{SCRATCH}"):
        if SCRATCH_NAME.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
            path.unlink(missing_ok=True)


def _flush_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
