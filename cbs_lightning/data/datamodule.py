"""The common part of all image data sets: a LightningDataModule with the in-memory loader."""

from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import lightning as L
import torch

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.loader import Images, InMemoryLoader, Normalization
from cbs_lightning.errors import DataError

TEST_BATCH_SIZE = 1000  # samples; the test set's batches have no effect on its accuracy


class Split(NamedTuple):
    train: Images
    test: Images | None


class ImageDataModule(L.LightningDataModule, ABC):
    """A data set of images, loaded once per process.

    A new data set describes itself in the class attributes and implements `load`. One that has to
    be downloaded or found implements `prepare`, which raises `DataError` if that fails.
    """

    in_channels: ClassVar[int]
    num_classes: ClassVar[int]
    normalization: ClassVar[Normalization]
    augmentation: ClassVar[Augmentation]

    def __init__(
        self,
        data_dir: str,
        batch_size: int,
        seed: int,
        *,
        normalize: bool = False,
        augment: bool = False,
        replacement: bool = False,
    ) -> None:
        super().__init__()
        self.data_dir = Path(data_dir)
        self.batch_size = batch_size
        self.seed = seed
        self.normalize = normalize
        self.augment = augment
        self.replacement = replacement
        self.chunked = True  # False: for a loop of single steps
        self.slice_size: int | None = None  # samples, of such a loop

    @classmethod
    def prepare(cls, data_dir: Path) -> None:
        """Find the data or download it, and check that it is what it should be."""

    @classmethod
    @abstractmethod
    def load(cls, data_dir: Path) -> Split: ...

    def prepare_data(self) -> None:
        _prepared(type(self), self.data_dir.absolute())

    def setup(self, stage: str) -> None:
        self.split = _loaded(type(self), self.data_dir.absolute())

    @property
    def train_size(self) -> int:
        """Training samples; after `setup`."""
        return len(self.split.train)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width; after `setup`."""
        height, width, channels = self.split.train.pixels.shape[1:]
        return channels, height, width

    def train_dataloader(self) -> InMemoryLoader:
        return InMemoryLoader(
            self.split.train.to(self._device()),
            self.batch_size,
            seed=self.seed,
            replacement=self.replacement,
            normalization=self.normalization if self.normalize else None,
            augmentation=self.augmentation if self.augment else None,
            chunked=self.chunked,
            slice_size=self.slice_size,
        )

    def test_dataloader(self) -> InMemoryLoader:
        assert self.split.test is not None
        return InMemoryLoader(
            self.split.test.to(self._device()),
            TEST_BATCH_SIZE,
            normalization=self.normalization if self.normalize else None,
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        return batch  # the loader's tensors are there already

    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device


@cache
def _prepared(data: type[ImageDataModule], data_dir: Path) -> None:
    data.prepare(data_dir)


@cache
def _loaded(data: type[ImageDataModule], data_dir: Path) -> Split:
    split = data.load(data_dir)
    for images in split:
        if images is not None:
            _check(data, images)
    return split


def _check(data: type[ImageDataModule], images: Images) -> None:
    """Check the mistakes that a new data set most easily makes."""
    pixels, labels = images.pixels, images.labels
    shape = f"N x H x W x {data.in_channels}"
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != data.in_channels:
        found = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        raise DataError(f"{data.__name__}: pixels must be uint8, {shape}, not {found}")
    if labels.dtype != torch.long or labels.shape != pixels.shape[:1]:
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise DataError(f"{data.__name__}: labels must be int64, one a sample, not {found}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < data.num_classes:
        raise DataError(f"{data.__name__}: labels must be 0 to {data.num_classes - 1}")
