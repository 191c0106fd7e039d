from .cifar10 import CIFAR10 as CIFAR10
from .datamodule import ImageDataModule as ImageDataModule
from .datamodule import Split as Split
from .digits import Digits as Digits
from .loader import Images as Images
from .loader import InMemoryLoader as InMemoryLoader
from .mnist import MNIST as MNIST
