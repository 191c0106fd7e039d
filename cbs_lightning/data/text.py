"""Text cut into sequences of bytes: ordinary DataModules, with torch's own loader.

They know nothing about thresholds or hashes. `fingerprint` and `tokens_per_sample` are all that
they have beyond what Lightning requires.
"""

import hashlib
import sys
import sysconfig
import urllib.request
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cbs_lightning.data.files import fetch, is_there
from cbs_lightning.errors import DataError

Sample = tuple[Tensor, Tensor]  # bytes, and for each the one that follows

SHAKESPEARE = Path("tinyshakespeare/input.txt")
SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TEST_FOLDERS = {"test", "tests", "idle_test"}  # which many installations of Python lack


class Sequences(Dataset[Sample]):
    """A text as consecutive sequences of equal length in bytes; the rest at its end is unused."""

    def __init__(self, text: bytes, length: int) -> None:
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.length
        sequence = self.tokens[start : start + self.length + 1].long()
        return sequence[:-1], sequence[1:]


class TextDataModule(L.LightningDataModule, ABC):
    """Sequences of one text, in an order that depends on the seed.

    A new text implements `text`; one that has to be downloaded also implements `prepare_data`.

    Args:
        batch_size: sequences per batch.
        seed: of the order.
        data_dir: where texts that are not on every machine are found or put.
        length: bytes of a sequence, which is one sample.
    """

    def __init__(
        self, batch_size: int, seed: int, data_dir: str = "data", length: int = 32
    ) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"length={length}: must be at least 1")
        self.batch_size = batch_size
        self.seed = seed
        self.data_dir = Path(data_dir)
        self.tokens_per_sample = length

    @abstractmethod
    def text(self) -> bytes: ...

    def setup(self, stage: str) -> None:
        self.sequences = Sequences(self.text(), self.tokens_per_sample)

    def train_dataloader(self) -> DataLoader[Sample]:
        order = torch.Generator().manual_seed(self.seed)
        return DataLoader(self.sequences, self.batch_size, shuffle=True, generator=order)


class StandardLibrary(TextDataModule):
    """The source of the running Python's standard library, without its tests."""

    def text(self) -> bytes:
        return _standard_library(Path(sysconfig.get_paths()["stdlib"]))

    @property
    def fingerprint(self) -> str:
        """The contents' hash: another Python version has another library, so its runs are
        different."""
        return _sha256(self.text())


class Shakespeare(TextDataModule):
    """A million bytes of Shakespeare's plays, known as tinyshakespeare."""

    def prepare_data(self) -> None:
        if not is_there(self.data_dir, str(SHAKESPEARE)):
            fetch("tinyshakespeare", _download, self.data_dir, str(SHAKESPEARE))

    def text(self) -> bytes:
        path = self.data_dir / SHAKESPEARE
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"data_dir={self.data_dir}: {path}: {error.strerror}") from error
        if _sha256(text) != SHAKESPEARE_SHA256:
            raise DataError(
                f"data_dir={self.data_dir}: {SHAKESPEARE}: not the original file (wrong checksum); "
                f"delete {path} to download it again, or put the original there"
            )
        return text


@cache
def _standard_library(folder: Path) -> bytes:
    try:
        paths = [path for path in folder.rglob("*.py") if _is_library(path.relative_to(folder))]
        text = b"".join(path.read_bytes() for path in sorted(paths, key=Path.as_posix))
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})"
        raise DataError(f"data=stdlib: the standard library is not readable: {reason}") from error
    if not text:
        raise DataError(f"data=stdlib: this Python has no source of its library in {folder}")
    return text


def _is_library(path: Path) -> bool:
    """Whether it is Python's own, and not of one machine or of packages put beside it."""
    name = path.parts[0].removesuffix(".py")
    return name in sys.stdlib_module_names and TEST_FOLDERS.isdisjoint(path.parts)


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _download(root: Path) -> None:
    target = root / SHAKESPEARE
    target.parent.mkdir()
    urllib.request.urlretrieve(SHAKESPEARE_URL, target)
    if _sha256(target.read_bytes()) != SHAKESPEARE_SHA256:
        raise OSError("what arrived is not the original file (wrong checksum)")
