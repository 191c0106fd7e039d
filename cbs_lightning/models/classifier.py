"""What every model shares: one optimizer step per batch, and what each step saw."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TypedDict

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torchmetrics.classification import MulticlassAccuracy

from cbs_lightning.data.loader import Batch, InMemoryLoader
from cbs_lightning.optim.learning_rate import warmup_factor

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Steps(TypedDict):
    """What the steps of one chunk saw, one entry a step, on the training device."""

    loss: Tensor  # mean of the batch
    correct: Tensor
    size: list[int]


class Classifier(L.LightningModule, ABC):
    """Trains a net on chunks of batches with one optimizer step per batch.

    Many steps per call of `training_step`, and torch's own optimizer within it, keep Lightning's
    overhead off small batches; Lightning's hooks around a single step are not called. Nothing here
    waits for the device. A batch larger than `micro_batch_size` is worked in slices whose gradients
    add up to that of the batch's mean loss; BatchNorm then sees the slices. Within the first
    `warmup_samples` a step's learning rate is its share of the optimizer's, which is as it was
    again after the chunk.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        optimizer: OptimizerFactory,
        micro_batch_size: int | None = None,
        warmup_samples: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = self.build_net(in_channels, num_classes).to(memory_format=torch.channels_last)
        self.optimizer_factory = optimizer
        self.micro_batch_size = micro_batch_size
        self.warmup_samples = warmup_samples
        self.cuda_graphs = False  # of the compiled net
        # Validation would wait for the device; the data module has checked the labels.
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    @abstractmethod
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module: ...

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer_factory(self.net.parameters())

    def training_step(self, chunk: list[Batch], _: int) -> Steps:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        steps_left = None
        if self.trainer.max_steps >= 0:
            steps_left = self.trainer.max_steps - self.trainer.global_step
        lr, samples = optimizer.param_groups[0]["lr"], self._samples_seen()
        losses, corrects, sizes = [], [], []
        for images, labels in itertools.islice(chunk, steps_left):
            # To None: a graph's gradients are overwritten by its next replay. So are the logits;
            # what is kept of a step is computed outside of the graph.
            optimizer.zero_grad()
            if self.cuda_graphs:
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            loss, correct = self._backward(images, labels)
            if samples < self.warmup_samples:
                samples += len(labels)
                _set_lr(optimizer, lr * warmup_factor(samples, self.warmup_samples))
            optimizer.step()
            losses.append(loss)
            corrects.append(correct)
            sizes.append(len(labels))
        if self.warmup_samples:
            _set_lr(optimizer, lr)
        self._count(len(sizes))
        return {"loss": torch.stack(losses), "correct": torch.stack(corrects), "size": sizes}

    def test_step(self, chunk: list[Batch], _: int) -> None:
        for images, labels in chunk:
            self.test_accuracy(self.net(images), labels)
        self.log("test_accuracy", self.test_accuracy, on_step=False, on_epoch=True, batch_size=1)

    def _backward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradient of the batch's mean loss; return that loss and the number correct."""
        size = len(labels)
        if self.micro_batch_size is None or self.micro_batch_size >= size:
            return self._backward_slice(images, labels)
        slices = (torch.split(tensor, self.micro_batch_size) for tensor in (images, labels))
        parts = [
            self._backward_slice(part, part_labels, share=len(part_labels) / size)
            for part, part_labels in zip(*slices, strict=True)
        ]
        loss, correct = zip(*parts, strict=True)
        return torch.stack(loss).sum(), torch.stack(correct).sum()

    def _backward_slice(
        self, images: Tensor, labels: Tensor, share: float | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = self.net(images)
        loss = cross_entropy(logits, labels)
        if share is not None:
            loss = loss * share
        torch.autograd.backward(loss)
        return loss.detach(), (logits.argmax(1) == labels).sum()

    def _samples_seen(self) -> int:
        """As far as a warm-up needs to know."""
        if not self.warmup_samples:
            return 0
        loader = self.trainer.train_dataloader
        assert isinstance(loader, InMemoryLoader)
        return loader.samples_in(self.trainer.global_step)

    def _count(self, steps: int) -> None:
        """Let Lightning count them, as it does where it makes them itself."""
        self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.increment_by(steps)


def _set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
