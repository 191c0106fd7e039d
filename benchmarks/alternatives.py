"""Other ways to train the same net on the same images, to compare this project's with."""

import ctypes
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms.functional import to_tensor

from cbs_lightning.data import Images
from cbs_lightning.models.resnet20 import ResNet20Net
from cbs_lightning.models.resnet20_authors import STEM_CHANNELS, authors_stem
from cbs_lightning.training.resources import allocator

LEARNING_RATE = 1e-3
# glibc raises its two thresholds as blocks are freed: that of mmap to the most that it may be, as
# runs have it, too, and that of giving memory back to twice as much.
USUAL_TRIM_THRESHOLD = 2 * allocator.LARGEST_MMAP_THRESHOLD


@dataclass(frozen=True)
class Problem:
    """What all of them train: a net on images, with batches of a size, by an optimizer."""

    images: Images
    model: str
    batch_size: int
    optimizer: str

    def net(self) -> nn.Module:
        channels = self.images.pixels.shape[3]
        if self.model == "resnet20":
            return ResNet20Net(channels, 10).train()
        return ResNet20Net(channels, 10, authors_stem(channels), STEM_CHANNELS).train()

    def optimizer_of(self, net: nn.Module, *, fused: bool) -> Optimizer:
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[self.optimizer]
        return kind(net.parameters(), lr=LEARNING_RATE, fused=fused or None)

    def floats(self) -> Tensor:
        """All images in [0, 1], N x C x H x W, channels-last in memory."""
        return self.images.pixels.permute(0, 3, 1, 2).float().div_(self.images.scale)


@contextmanager
def memory_as_usual() -> Iterator[None]:
    """As glibc has it in a process that trains, and that asks it for nothing.

    A run of this project's has freed memory kept, and is the host of all others.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    host_keeps_large = allocator.told_to_keep_large
    libc.mallopt(allocator.M_TRIM_THRESHOLD, USUAL_TRIM_THRESHOLD)
    libc.mallopt(allocator.M_MMAP_MAX, allocator.USUAL_MMAPS)
    try:
        yield
    finally:
        libc.mallopt(allocator.M_MMAP_MAX, 0 if host_keeps_large else allocator.USUAL_MMAPS)
        libc.mallopt(allocator.M_TRIM_THRESHOLD, allocator.NEVER)


class Alternative(ABC):
    """One way to train, from where it stopped the last time."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def seconds(self, steps: int) -> float:
        """Train so many steps; how long they took."""


class Loop(Alternative):
    """A hand-written one: `steps` yields after every step."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._steps = self.steps()

    @abstractmethod
    def steps(self) -> Iterator[None]: ...

    def seconds(self, steps: int) -> float:
        started = time.perf_counter()
        for _ in islice(self._steps, steps):
            pass
        return time.perf_counter() - started


class Floor(Loop):
    """Forward, backward and the fused step on one resident batch, and nothing else."""

    def steps(self) -> Iterator[None]:
        net = self.problem.net().to(memory_format=torch.channels_last)
        optimizer = self.problem.optimizer_of(net, fused=True)
        size = min(self.problem.batch_size, len(self.problem.images))
        images = self.problem.floats()[:size].clone(memory_format=torch.channels_last)
        labels = self.problem.images.labels[:size]
        while True:
            optimizer.zero_grad()
            cross_entropy(net(images), labels).backward()
            optimizer.step()
            yield


class Raw(Loop):
    """The best plain loop: images in memory, channels-last, fused, losses left on the device."""

    def steps(self) -> Iterator[None]:
        net = self.problem.net().to(memory_format=torch.channels_last)
        optimizer = self.problem.optimizer_of(net, fused=True)
        pixels, labels = self.problem.images.pixels, self.problem.images.labels
        while True:
            losses = []
            for indices in torch.randperm(len(labels)).split(self.problem.batch_size):
                images = pixels[indices].permute(0, 3, 1, 2).float().div_(self.problem.images.scale)
                optimizer.zero_grad()
                loss = cross_entropy(net(images), labels[indices])
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
                yield
            torch.stack(losses).mean().item()


class Authors(Loop):
    """As the paper's code does it: a sample at a time, NCHW, plain optimizer, `.item()`."""

    def steps(self) -> Iterator[None]:
        net = self.problem.net()
        optimizer = self.problem.optimizer_of(net, fused=False)
        samples = SampleBySample(self.problem.images)
        loader = DataLoader(samples, batch_size=self.problem.batch_size, shuffle=True)
        while True:
            total = 0.0
            for images, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(net(images), labels)
                loss.backward()
                optimizer.step()
                total += loss.item()
                yield


class SampleBySample(Dataset[tuple[Tensor, int]]):
    """As torchvision's data sets do it: an array becomes a picture, and that a tensor."""

    def __init__(self, images: Images) -> None:
        self.arrays = images.pixels.squeeze(-1).numpy()
        self.labels = images.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return to_tensor(Image.fromarray(self.arrays[index])), self.labels[index]


class Lightning(Alternative):
    """A Trainer with its defaults, a DataLoader, `self.log` at every step; all else plain, too."""

    WARM_UP = 1  # steps of each fit that are not timed

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._module = UsualModule(problem)
        floats = problem.floats().contiguous()
        self._data = TensorDataset(floats, problem.images.labels)

    def seconds(self, steps: int) -> float:
        loader = DataLoader(self._data, batch_size=self.problem.batch_size, shuffle=True)
        self._module.ended.clear()
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # as Lightning wants it
        with tempfile.TemporaryDirectory() as directory:
            trainer = L.Trainer(
                accelerator="cpu",
                max_steps=steps + self.WARM_UP,
                default_root_dir=directory,
                # Lightning's other bar would take the terminal from that of the run around it.
                callbacks=[TQDMProgressBar()],
            )
            trainer.fit(self._module, loader)
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
        return self._module.ended[-1] - self._module.ended[self.WARM_UP - 1]


class UsualModule(L.LightningModule):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.net = problem.net()
        self.ended: list[float] = []

    def configure_optimizers(self) -> Optimizer:
        return self.problem.optimizer_of(self.net, fused=False)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.ended.append(time.perf_counter())


ALTERNATIVES: dict[str, type[Alternative]] = {
    "floor": Floor,
    "raw": Raw,
    "lightning": Lightning,
    "authors": Authors,
}
FINELY = ["floor", "raw"]  # what ours is compared with to a few per cent
