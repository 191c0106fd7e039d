"""A model of 8x8 images that trains in milliseconds."""

from torch import nn

from cbs_lightning.models import Classifier


class Tiny(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, num_classes),
        )
