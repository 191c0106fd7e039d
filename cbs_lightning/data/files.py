"""The files of a data set: checked by size and checksum, downloaded completely or not at all."""

import gzip
import hashlib
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import BaseHandler, Request

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
    except FileNotFoundError:
        return _packed(path.with_name(f"{path.name}.gz"))
    except OSError as error:
        return error.strerror or type(error).__name__
    return None if md5.hexdigest() == expected.md5 else "not the original file (wrong checksum)"


def _packed(path: Path) -> str:
    """The reason why a file is missing, if a packed one of this name is there."""
    try:
        with gzip.open(path) as file:
            file.read(1)
    except FileNotFoundError:
        return "missing"
    except (OSError, EOFError) as error:
        return f"missing, and {path.name} beside it cannot be unpacked ({error})"
    return f"missing, but {path.name} is there: unpack it with gunzip {path}"


class InsecureError(URLError):
    """Something other than https was asked for."""


class _HTTPSOnly(BaseHandler):
    handler_order = 0  # before all others

    def default_open(self, request: Request) -> None:
        if request.type != "https":
            raise InsecureError(f"{request.full_url} is not https")


@contextmanager
def https_only() -> Iterator[None]:
    """While inside, only https is used: no other mirror, no redirection, no second try."""
    before = getattr(urllib.request, "_opener", None)
    urllib.request.install_opener(urllib.request.build_opener(_HTTPSOnly))
    try:
        yield
    finally:
        urllib.request.install_opener(before)


def _first_reason(error: BaseException) -> BaseException:
    """Why https failed, which is the real reason when torchvision then tries http."""
    while isinstance(error, InsecureError) and error.__context__ is not None:
        error = error.__context__
    return error


def _move(arrived: Path, destination: Path) -> None:
    """Move all at once if nothing is there yet, so that a kill leaves no partial data set."""
    if destination.exists():
        shutil.copytree(arrived, destination, dirs_exist_ok=True)
    else:
        arrived.rename(destination)


def fetch(data: str, download: Callable[[Path], object], data_dir: Path, instead: str) -> None:
    """Download over https into a folder beside the destination and move it there, or raise."""
    try:
        home = next(path for path in (data_dir, *data_dir.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=home, prefix=".download-") as scratch:
            with redirect_stdout(StringIO()), https_only():
                download(Path(scratch))
            data_dir.mkdir(parents=True, exist_ok=True)
            for arrived in Path(scratch).iterdir():
                _move(arrived, data_dir / arrived.name)
    except (OSError, RuntimeError) as error:
        reason = shorten(str(_first_reason(error)), 160, placeholder=" ...")
        raise DataError(
            f"data_dir={data_dir}: {data} is not there and could not be downloaded ({reason}); "
            f"allowed: a folder that holds {instead}"
        ) from error
