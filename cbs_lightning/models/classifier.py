"""The common part of this project's image classifiers."""

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from cbs_lightning.data import ImageDataModule
from cbs_lightning.data.loader import Batch
from cbs_lightning.models.batch_statistics import (
    Statistics,
    estimate_statistics,
    restore_statistics,
)
from cbs_lightning.models.chunks import Steps, train_chunk
from cbs_lightning.optim.groups import Factory, GroupedFactory, make_optimizer
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.optim.schedule_free import switches

BATCHES_FOR_STATISTICS = 50  # as Defazio et al.'s examples take


class Classifier(L.LightningModule, ABC):
    """Trains a net on images, in chunks of many steps unless a hook wants to see every step.

    A subclass says what its net is by `build_net`, which is called by this constructor: what it
    needs must be set before `super().__init__`. Hooks of Lightning's that a subclass overrides take
    it to the general loop, one step per call of `training_step`; where they are written to be
    called once per chunk, `hooks_per_chunk = True` leaves it on the fast one.

    Args:
        in_channels: of the images.
        num_classes: of the labels.
        optimizer: makes an optimizer of parameters, or has rules for groups of them.
        micro_batch_size: samples per slice of a batch; None: not sliced.
        rate_schedule: what a step's learning rate is multiplied by.
        image_size: height and width, for a `build_net` that takes it.
    """

    hooks_per_chunk: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        optimizer: Factory | GroupedFactory,
        micro_batch_size: int | None = None,
        rate_schedule: RateSchedule | None = None,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # of the fast loop; the general one sets it
        given: dict[str, Any] = {}
        if "image_size" in inspect.signature(self.build_net).parameters:
            given["image_size"] = image_size
        net = self.build_net(in_channels, num_classes, **given)
        self.net = net.to(memory_format=torch.channels_last)
        self.optimizer_factory = optimizer
        self.micro_batch_size = micro_batch_size
        self.rate_schedule = rate_schedule or RateSchedule()
        self.cuda_graphs = False  # of the compiled net
        self.step_listener: Callable[[Tensor, int], None] | None = None  # of the fast loop
        self._statistics: Statistics = {}  # BatchNorm's, of the weights that are trained
        # Validation would wait for the device; the data module has checked the labels.
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    @abstractmethod
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        """The net; if it has a third parameter `image_size`, that is height and width."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def configure_optimizers(self) -> Any:
        return make_optimizer(self.optimizer_factory, self.net, frozen=True)

    def training_step(self, batch: Any, _: int) -> Any:
        """A chunk of steps, or the loss of one batch where Lightning makes the step."""
        if not self.automatic_optimization:
            return self.train_chunk(batch)
        images, labels = batch
        logits = self(images)
        loss = cross_entropy(logits, labels)
        return {"loss": loss, "correct": (logits.detach().argmax(1) == labels).sum()}

    def train_chunk(self, chunk: list[Batch]) -> Steps:
        return train_chunk(self, chunk)

    def test_step(self, chunk: list[Batch], _: int) -> None:
        for images, labels in chunk:
            self.test_accuracy(self.net(images), labels)
        self.log("test_accuracy", self.test_accuracy, on_step=False, on_epoch=True, batch_size=1)

    def on_test_start(self) -> None:
        """Recompute statistics for an optimizer that evaluates an average of its weights."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if isinstance(data, ImageDataModule) and any(map(switches, self.trainer.optimizers)):
            loader: Any = data.train_dataloader()
            batches = itertools.chain.from_iterable(loader) if loader.chunked else loader
            first = itertools.islice(batches, BATCHES_FOR_STATISTICS)
            self._statistics = estimate_statistics(self.net, (images for images, _ in first))

    def on_test_end(self) -> None:
        restore_statistics(self._statistics)
