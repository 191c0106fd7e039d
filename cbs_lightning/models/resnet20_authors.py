"""The ResNet-20 of the paper's authors: a strided stem of 32 channels and max-pooling."""

from torch import nn

from cbs_lightning.models.classifier import Classifier
from cbs_lightning.models.resnet20 import ResNet20Net

STEM_CHANNELS = 32


def authors_stem(in_channels: int) -> nn.Module:
    # Padding 3 is a 7x7 convolution's: with a 3x3 one it leaves 9x9 maps of a 32x32 image.
    return nn.Sequential(
        nn.Conv2d(in_channels, STEM_CHANNELS, 3, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(STEM_CHANNELS),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


class ResNet20Authors(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return ResNet20Net(in_channels, num_classes, authors_stem(in_channels), STEM_CHANNELS)
