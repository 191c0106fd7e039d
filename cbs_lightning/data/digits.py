"""scikit-learn's 1,797 handwritten digits of 8x8 pixels: real images, inside its wheel."""

from pathlib import Path

import torch
from sklearn.datasets import load_digits

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.datamodule import ImageDataModule, Split
from cbs_lightning.data.loader import Images, Normalization


class Digits(ImageDataModule):
    """All images are training data; there is no test set."""

    in_channels = 1
    num_classes = 10
    normalization = Normalization((0.3053,), (0.3760,))
    augmentation = Augmentation(padding=1, flip=False)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        digits = load_digits()
        pixels = torch.from_numpy(digits.images).to(torch.uint8).unsqueeze(-1)
        return Split(Images(pixels, torch.from_numpy(digits.target).long(), scale=16), None)
