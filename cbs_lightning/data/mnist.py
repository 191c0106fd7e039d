"""MNIST: 60,000 training and 10,000 test images of 28x28 pixels, through torchvision."""

from pathlib import Path

from torchvision import datasets

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.datamodule import ImageDataModule, Split
from cbs_lightning.data.files import Checksum, check_files, fetch, is_there
from cbs_lightning.data.loader import Images, Normalization

FOLDER = "MNIST/raw"
FILES = {
    "train-images-idx3-ubyte": Checksum(47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Checksum(60_008, "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Checksum(7_840_016, "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Checksum(10_008, "27ae3e4e09519cfbb04c329615203637"),
}


class MNIST(ImageDataModule):
    in_channels = 1
    num_classes = 10
    normalization = Normalization((0.1307,), (0.3081,))
    augmentation = Augmentation(padding=3, flip=False)

    @classmethod
    def prepare(cls, data_dir: Path) -> None:
        if not is_there(data_dir, FOLDER):
            instead = f"{FOLDER}/ with {', '.join(FILES)}"
            fetch("MNIST", lambda root: datasets.MNIST(root, download=True), data_dir, instead)
        check_files(data_dir, FOLDER, FILES)

    @classmethod
    def load(cls, data_dir: Path) -> Split:
        return Split(*(_images(data_dir, train) for train in (True, False)))


def _images(data_dir: Path, train: bool) -> Images:
    data = datasets.MNIST(data_dir, train=train)
    return Images(data.data.unsqueeze(-1), data.targets)
