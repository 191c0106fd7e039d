"""scikit-learn's 1,797 handwritten digits of 8x8 pixels: real images, inside its wheel."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.datamodule import ImageDataModule, Split
from cbs_lightning.data.loader import Images, Normalization
from cbs_lightning.errors import DataError

FILE = Path("datasets/data/digits.csv.gz")
SIDE = 8


class Digits(ImageDataModule):
    """All images are training data; there is no test set."""

    in_channels = 1
    num_classes = 10
    normalization = Normalization((0.3053,), (0.3760,))
    augmentation = Augmentation(padding=1, flip=False)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        # A row is an image's pixels, then its label.
        with gzip.open(_path()) as file:
            rows = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))
        pixels = rows[:, :-1].reshape(-1, SIDE, SIDE, 1).contiguous()
        return Split(Images(pixels, rows[:, -1].long(), scale=16), None)


def _path() -> Path:
    """Found without importing scikit-learn, which takes longer than a small run."""
    package = find_spec("sklearn")
    path = Path(package.origin).parent / FILE if package and package.origin else None
    if path is None or not path.exists():
        raise DataError("data=digits: missing from scikit-learn, which should be reinstalled")
    return path
