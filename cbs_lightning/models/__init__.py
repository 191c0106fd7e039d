"""The nets, and a LightningModule for each."""

from cbs_lightning.models.classifier import Classifier
from cbs_lightning.models.resnet20 import ResNet20, ResNet20Net
from cbs_lightning.models.resnet20_authors import ResNet20Authors
from cbs_lightning.models.torchvision_net import ResNet18, TorchvisionNet

__all__ = [
    "Classifier",
    "ResNet18",
    "ResNet20",
    "ResNet20Authors",
    "ResNet20Net",
    "TorchvisionNet",
]
