from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.nn.functional import cross_entropy

from cbs_lightning.config.composition import compose
from cbs_lightning.data import CIFAR10, MNIST, Digits
from cbs_lightning.models import Classifier, ResNet20Net, TorchvisionNet
from cbs_lightning.models.chunks import backward

SGD = partial(torch.optim.SGD, lr=1e-3)


def model(name: str, data: type = CIFAR10, micro_batch_size: int | None = None) -> Classifier:
    return instantiate(
        compose([f"model={name}"]).model,
        in_channels=data.in_channels,
        num_classes=data.num_classes,
        optimizer=SGD,
        micro_batch_size=micro_batch_size,
    )


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet20", 272_474), ("resnet20_authors", 275_786), ("resnet18", 11_181_642)],
)
def test_number_of_parameters_on_cifar10(name, count):
    assert parameters(model(name)) == count


@pytest.mark.parametrize("name", ["resnet20", "resnet20_authors", "resnet18"])
@pytest.mark.parametrize(("data", "side"), [(Digits, 8), (MNIST, 28), (CIFAR10, 32)])
def test_channels_and_classes_come_from_the_data_set(name, data, side):
    logits = model(name, data)(torch.zeros(2, data.in_channels, side, side))
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet20", "resnet20_authors", "resnet18"])
def test_nets_are_plain_modules(name):
    net = model(name).net
    assert type(net).__module__.startswith(("cbs_lightning.models", "torchvision"))
    assert not isinstance(net, Classifier)


def test_authors_stem_leaves_9x9_maps():
    net = model("resnet20_authors").net
    assert isinstance(net, ResNet20Net)
    assert net.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 32, 9, 9)


def test_weights_are_kaiming_normal_fan_out():
    weight = ResNet20Net(3, 10).blocks[8].conv2.weight  # 64 x 64 x 3 x 3
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)


def test_any_torchvision_classifier():
    lightning_module = TorchvisionNet(
        "resnet34", in_channels=1, num_classes=7, optimizer=SGD, micro_batch_size=None
    )
    assert lightning_module(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


class Plain(Classifier):
    """A net without BatchNorm."""

    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, num_classes)
        )


@pytest.mark.parametrize("slice_size", [1, 4, 7, 100])
def test_slices_give_the_gradient_of_the_whole_batch(slice_size, monkeypatch):
    torch.manual_seed(0)
    images, labels = torch.randn(10, 1, 8, 8), torch.randint(10, (10,))
    lightning_module = Plain(1, 10, SGD, slice_size)
    monkeypatch.setattr(lightning_module, "manual_backward", lambda loss: loss.backward())
    whole = cross_entropy(lightning_module(images), labels)
    expected = torch.autograd.grad(whole, list(lightning_module.net.parameters()))
    loss, correct = backward(lightning_module, images, labels)
    torch.testing.assert_close(loss, whole.detach())
    assert correct == (lightning_module(images).argmax(1) == labels).sum()
    for parameter, gradient in zip(lightning_module.net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
