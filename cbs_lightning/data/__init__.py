"""The data sets, each a LightningDataModule on one in-memory loader."""

from cbs_lightning.data.cifar10 import CIFAR10
from cbs_lightning.data.datamodule import ImageDataModule, Split
from cbs_lightning.data.digits import Digits
from cbs_lightning.data.loader import Images, InMemoryLoader
from cbs_lightning.data.mnist import MNIST

__all__ = ["CIFAR10", "MNIST", "Digits", "ImageDataModule", "Images", "InMemoryLoader", "Split"]
