"""Images to train on in numbers that batches divide, so that all steps do the same work.

CIFAR-10 where it is found, else random images of its shape, which take the same time.
"""

from pathlib import Path

import torch

from cbs_lightning.data import CIFAR10, Digits, Images, Split
from cbs_lightning.data.cifar10 import BINARY_FOLDER, CHANNELS, PYTHON_FOLDER, SIDE

DIGITS = 3 * 512
PICTURES = 24 * 2048


def is_real(data_dir: Path) -> bool:
    return any((data_dir / folder).is_dir() for folder in (BINARY_FOLDER, PYTHON_FOLDER))


class EvenDigits(Digits):
    @classmethod
    def load(cls, data_dir: Path) -> Split:
        return first(super().load(data_dir).train, DIGITS)


class EvenCIFAR10(CIFAR10):
    @classmethod
    def prepare(cls, data_dir: Path) -> None:
        if is_real(data_dir):
            super().prepare(data_dir)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        if is_real(data_dir):
            return first(super().load(data_dir).train, PICTURES)
        pixels = torch.randint(256, (PICTURES, SIDE, SIDE, CHANNELS), dtype=torch.uint8)
        return Split(Images(pixels, torch.randint(10, (PICTURES,))), None)


def first(images: Images, count: int) -> Split:
    """Without a test set, which no benchmark needs."""
    return Split(Images(images.pixels[:count], images.labels[:count], images.scale), None)
