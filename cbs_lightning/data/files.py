"""A data set's files on disk: checked by size and checksum, fetched whole or not at all."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from cbs_lightning.errors import DataError


class Checksum(NamedTuple):
    size: int | None  # bytes, where it is known
    md5: str


def check_files(folder: Path, files: Mapping[str, Checksum]) -> None:
    """Raise `DataError` for the first file that is missing, unreadable or not the original."""
    for name, expected in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if expected.size not in (None, size):
                raise DataError(f"{path}: {size} bytes, should be {expected.size}; {_ADVICE}")
            with path.open("rb") as file:
                md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; {_ADVICE}") from error
        if md5.hexdigest() != expected.md5:
            raise DataError(f"{path}: not the original file (wrong checksum); {_ADVICE}")


def fetch(data: str, download: Callable[[Path], object], data_dir: Path, instead: str) -> None:
    """Download into a folder beside its destination and move what arrived there, or raise."""
    try:
        home = next(path for path in (data_dir, *data_dir.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=home, prefix=".download-") as scratch:
            with redirect_stdout(StringIO()):
                download(Path(scratch))
            data_dir.mkdir(parents=True, exist_ok=True)
            for item in Path(scratch).iterdir():
                shutil.move(item, data_dir / item.name)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"data_dir={data_dir}: {data} is not there and could not be downloaded ({reason}); "
            f"allowed: a folder that holds {instead}"
        ) from error


_ADVICE = "delete it to download it again, or put the original there"
