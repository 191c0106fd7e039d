"""The fast loop: many optimizer steps per call of `training_step`.

It avoids Lightning's overhead for small batches; Lightning's hooks around a single step are not
called. Nothing here waits for the device.
"""

import itertools
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from cbs_lightning.data.loader import Batch, InMemoryLoader
from cbs_lightning.optim.learning_rate import rates_of, set_rates

if TYPE_CHECKING:
    from cbs_lightning.models.classifier import Classifier


class Steps(TypedDict):
    """What the steps of one chunk recorded, one entry per step, on the training device."""

    loss: Tensor  # mean of the batch
    correct: Tensor
    size: list[int]


class Chunk(Steps):
    """What `training_step` returns for many steps; no module returns this mark by accident."""

    mark: object


MARK = object()


def is_chunk(outputs: Any) -> TypeGuard[Chunk]:
    return isinstance(outputs, dict) and outputs.get("mark") is MARK


def train_chunk(model: "Classifier", chunk: list[Batch]) -> Chunk:
    """Make one optimizer step per batch, as far as the budget allows.

    A batch larger than `micro_batch_size` is processed in slices whose gradients add up to that of
    the batch's mean loss; BatchNorm then sees the slices. The learning rate of a step is the
    optimizer's times the factor of the `rate_schedule`, and is restored after the chunk. If there
    is a `step_listener`, it is called with the loss and the size of each step's batch.
    """
    trainer = model.trainer
    optimizer = model.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, Optimizer)
    steps_left = trainer.max_steps - trainer.global_step if trainer.max_steps >= 0 else None
    rates, seen = rates_of(optimizer), _samples_seen(model)
    losses, corrects, sizes = [], [], []
    for images, labels in itertools.islice(chunk, steps_left):
        # To None: a graph's gradients are overwritten by its next replay. So are the logits;
        # what is kept of a step is computed outside of the graph.
        optimizer.zero_grad()
        if model.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss, correct = backward(model, images, labels)
        if not model.rate_schedule.is_constant:
            set_rates(optimizer, rates, model.rate_schedule.factor(seen, len(labels)))
            seen += len(labels)
        optimizer.step()
        losses.append(loss)
        corrects.append(correct)
        sizes.append(len(labels))
        if model.step_listener is not None:
            if not model.rate_schedule.is_constant:
                set_rates(optimizer, rates)
            model.step_listener(loss, len(labels))
    if not model.rate_schedule.is_constant:
        set_rates(optimizer, rates)
    # Let Lightning count them, as it does where it makes them itself.
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_by(len(sizes))
    loss, correct = torch.stack(losses), torch.stack(corrects)
    return {"loss": loss, "correct": correct, "size": sizes, "mark": MARK}


def backward(model: "Classifier", images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Add the gradient of the batch's mean loss; return that loss and the number correct."""
    size = len(labels)
    if model.micro_batch_size is None or model.micro_batch_size >= size:
        return _backward_slice(model, images, labels)
    slices = (torch.split(tensor, model.micro_batch_size) for tensor in (images, labels))
    parts = [
        _backward_slice(model, part, part_labels, share=len(part_labels) / size)
        for part, part_labels in zip(*slices, strict=True)
    ]
    loss, correct = zip(*parts, strict=True)
    return torch.stack(loss).sum(), torch.stack(correct).sum()


def _backward_slice(
    model: "Classifier", images: Tensor, labels: Tensor, share: float | None = None
) -> tuple[Tensor, Tensor]:
    logits = model.net(images)
    loss = cross_entropy(logits, labels)
    if share is not None:
        loss = loss * share
    torch.autograd.backward(loss)
    return loss.detach(), (logits.argmax(1) == labels).sum()


def _samples_seen(model: "Classifier") -> int:
    """As far as a schedule needs to know."""
    if model.rate_schedule.is_constant:
        return 0
    loader = model.trainer.train_dataloader
    assert isinstance(loader, InMemoryLoader)
    return loader.samples_in(model.trainer.global_step)
