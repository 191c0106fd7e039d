"""CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels, in either official form."""

from pathlib import Path

import numpy as np
import torch
from torchvision import datasets

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
            fetch("CIFAR-10", lambda root: datasets.CIFAR10(root, download=True), data_dir, instead)
        check_files(data_dir, PYTHON_FOLDER, PYTHON_FILES)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        if is_there(data_dir, BINARY_FOLDER):
            folder = data_dir / BINARY_FOLDER
            return Split(
                _binary_images([folder / name for name in BINARY_TRAIN_FILES]),
                _binary_images([folder / name for name in BINARY_TEST_FILES]),
            )
        return Split(*(_python_images(data_dir, train) for train in (True, False)))


def _binary_images(paths: list[Path]) -> Images:
    # A record is one byte of label, then the red, green and blue planes.
    records = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    records = records.reshape(-1, 1 + CHANNELS * SIDE * SIDE)
    planes = torch.from_numpy(records[:, 1:]).view(-1, CHANNELS, SIDE, SIDE)
    labels = torch.from_numpy(records[:, 0].copy()).long()
    return Images(planes.permute(0, 2, 3, 1).contiguous(), labels)


def _python_images(data_dir: Path, train: bool) -> Images:
    data = datasets.CIFAR10(data_dir, train=train)
    return Images(torch.from_numpy(data.data).contiguous(), torch.tensor(data.targets))
