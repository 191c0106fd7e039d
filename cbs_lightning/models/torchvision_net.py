"""Any of torchvision's classifiers, with a first convolution for the images' channels."""

from typing import Any

import torchvision.models
from torch import nn
from torchvision.models import get_model, list_models

from cbs_lightning.models.classifier import Classifier


def classifier_names() -> list[str]:
    """The names of torchvision's nets that can be built without a download."""
    names: list[str] = list_models(module=torchvision.models)
    return names


def torchvision_net(name: str, in_channels: int, num_classes: int) -> nn.Module:
    net: nn.Module = get_model(name, num_classes=num_classes)
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    if first.in_channels != in_channels:
        first.in_channels = in_channels
        first.weight = nn.Parameter(
            first.weight.new_empty(first.out_channels, in_channels, *first.kernel_size)
        )
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    return net


class TorchvisionNet(Classifier):
    """A net by its name in torchvision's registry, such as `resnet34` or `vgg11_bn`."""

    def __init__(self, name: str, **classifier: Any) -> None:
        self.net_name = name
        super().__init__(**classifier)

    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return torchvision_net(self.net_name, in_channels, num_classes)


class ResNet18(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return torchvision_net("resnet18", in_channels, num_classes)
