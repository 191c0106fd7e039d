"""CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels, in either official form."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.datamodule import ImageDataModule, Split
from cbs_lightning.data.files import Checksum, check_files, fetch, is_there
from cbs_lightning.data.loader import Images, Normalization

BINARY_FOLDER = "cifar-10-batches-bin"
BINARY_TRAIN_FILES = {
    "data_batch_1.bin": Checksum(30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    "data_batch_2.bin": Checksum(30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
    "data_batch_3.bin": Checksum(30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    "data_batch_4.bin": Checksum(30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    "data_batch_5.bin": Checksum(30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
}
BINARY_TEST_FILES = {
    "test_batch.bin": Checksum(30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
}
PYTHON_FOLDER = datasets.CIFAR10.base_folder
PYTHON_FILES = {
    name: Checksum(None, md5)
    for name, md5 in (
        *datasets.CIFAR10.train_list,
        *datasets.CIFAR10.test_list,
        (datasets.CIFAR10.meta["filename"], datasets.CIFAR10.meta["md5"]),
    )
}
CHANNELS, SIDE = 3, 32


class CIFAR10(ImageDataModule):
    in_channels = CHANNELS
    num_classes = 10
    normalization = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    augmentation = Augmentation(padding=4, flip=True)

    @classmethod
    def prepare(cls, data_dir: Path) -> None:
        if is_there(data_dir, BINARY_FOLDER):
            check_files(data_dir, BINARY_FOLDER, BINARY_TRAIN_FILES | BINARY_TEST_FILES)
            return
        if not is_there(data_dir, PYTHON_FOLDER):
            instead = f"{BINARY_FOLDER}/ or {PYTHON_FOLDER}/ as unpacked from the original archive"
            fetch("CIFAR-10", _download, data_dir, instead)
        check_files(data_dir, PYTHON_FOLDER, PYTHON_FILES)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        if is_there(data_dir, BINARY_FOLDER):
            folder = data_dir / BINARY_FOLDER
            return Split(
                _binary_images([folder / name for name in BINARY_TRAIN_FILES]),
                _binary_images([folder / name for name in BINARY_TEST_FILES]),
            )
        folder = data_dir / PYTHON_FOLDER
        return Split(
            _python_images([folder / name for name, _ in datasets.CIFAR10.train_list]),
            _python_images([folder / name for name, _ in datasets.CIFAR10.test_list]),
        )


def _download(root: Path) -> None:
    cifar10 = datasets.CIFAR10
    download_and_extract_archive(
        cifar10.url, root, filename=cifar10.filename, md5=cifar10.tgz_md5, remove_finished=True
    )


def _binary_images(paths: list[Path]) -> Images:
    # A record is one byte of label, then the red, green and blue planes.
    records = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    records = records.reshape(-1, 1 + CHANNELS * SIDE * SIDE)
    return _images(records[:, 1:], torch.from_numpy(records[:, 0].copy()).long())


def _python_images(paths: list[Path]) -> Images:
    entries = [ArraysOnly(BytesIO(path.read_bytes()), encoding="latin1").load() for path in paths]
    labels = torch.tensor([label for entry in entries for label in entry["labels"]])
    return _images(np.concatenate([entry["data"] for entry in entries]), labels)


def _images(planes: NDArray[np.uint8], labels: torch.Tensor) -> Images:
    pixels = torch.from_numpy(planes).view(-1, CHANNELS, SIDE, SIDE)
    return Images(pixels.permute(0, 2, 3, 1).contiguous(), labels)


class ArraysOnly(pickle.Unpickler):
    """Reads arrays of numbers, and calls nothing that is not needed for that."""

    NEEDED: ClassVar[set[tuple[str, str]]] = {
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")  # as it was called in 2009
        if (module, name) not in self.NEEDED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)
