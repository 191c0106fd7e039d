"""A data set's files on disk: checked by size and checksum, fetched whole or not at all."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from cbs_lightning.errors import DataError


class Checksum(NamedTuple):
    size: int | None  # bytes, where it is known
    md5: str


def is_there(data_dir: Path, folder: str) -> bool:
    try:
        return (data_dir / folder).exists()
    except OSError as error:
        raise DataError(f"data_dir={data_dir}: {error.strerror}; allowed: a folder") from error


def check_files(data_dir: Path, folder: str, files: Mapping[str, Checksum]) -> None:
    """Raise `DataError` for the first file that is missing, unreadable or not the original."""
    advice = f"delete {data_dir / folder} to download it again, or put the original there"
    for name, expected in files.items():
        problem = _problem(data_dir / folder / name, expected)
        if problem:
            raise DataError(f"data_dir={data_dir}: {folder}/{name}: {problem}; {advice}")


def _problem(path: Path, expected: Checksum) -> str | None:
    try:
        size = path.stat().st_size
        if expected.size not in (None, size):
            return f"{size} bytes, should be {expected.size}"
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    except OSError as error:
        return error.strerror or type(error).__name__
    return None if md5.hexdigest() == expected.md5 else "not the original file (wrong checksum)"


def fetch(data: str, download: Callable[[Path], object], data_dir: Path, instead: str) -> None:
    """Download into a folder beside its destination and copy what arrived there, or raise."""
    try:
        home = next(path for path in (data_dir, *data_dir.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=home, prefix=".download-") as scratch:
            with redirect_stdout(StringIO()):
                download(Path(scratch))
            shutil.copytree(scratch, data_dir, dirs_exist_ok=True)
    except (OSError, RuntimeError) as error:
        reason = shorten(str(error), 160, placeholder=" ...")
        raise DataError(
            f"data_dir={data_dir}: {data} is not there and could not be downloaded ({reason}); "
            f"allowed: a folder that holds {instead}"
        ) from error
