"""CIFAR-10 where it is found, else random images of its shape, which take the same time."""

from pathlib import Path

import torch

from cbs_lightning.data import CIFAR10, Images, Split
from cbs_lightning.data.cifar10 import BINARY_FOLDER, CHANNELS, PYTHON_FOLDER, SIDE

SAMPLES = 50_000


def is_real(data_dir: Path) -> bool:
    return any((data_dir / folder).is_dir() for folder in (BINARY_FOLDER, PYTHON_FOLDER))


class CIFAR10Shaped(CIFAR10):
    """Without its test set, which no benchmark needs."""

    @classmethod
    def prepare(cls, data_dir: Path) -> None:
        if is_real(data_dir):
            super().prepare(data_dir)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        if is_real(data_dir):
            return Split(super().load(data_dir).train, None)
        pixels = torch.randint(256, (SAMPLES, SIDE, SIDE, CHANNELS), dtype=torch.uint8)
        return Split(Images(pixels, torch.randint(10, (SAMPLES,))), None)
