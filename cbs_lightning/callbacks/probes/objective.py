"""The loss of a probe's batches as a function of the weights, in train mode."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map

from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.data.repeatable import RepeatableLoader
from cbs_lightning.data.seeds import generator, seed_of
from cbs_lightning.models import Classifier

REFUSES_SECOND = "torch::autograd::Error"  # the name of a node of torch's graphs
# Another, whose backward pass adds to the parameters' own gradients: torch takes them for unused.
REENTRANT = "CheckpointFunctionBackward"
PROBES = 3  # beside orders, augmentation and workers: what probes draw of the run's seed


def samples_freely(loader: Any) -> bool:
    """Whether batches can be drawn beside those that are trained; not of a stream."""
    return isinstance(loader, InMemoryLoader | RepeatableLoader)


class StopRequested(BaseException):
    """In a probe of a run that is told to stop."""


def never() -> bool:
    return False


@dataclass
class Objective:
    """Batches of `batch_size` samples, each drawn by itself and known by a number, and what the
    net makes of them. Random layers draw the same for the same batch at all weights.

    To be used inside `unchanged`: passes leave their marks on BatchNorm's statistics.

    Args:
        trainer, module: of the run.
        batch_size: samples of each batch, so that BatchNorm sees as many as in the run.
        slice_size: samples of a slice, whose gradients add up to that of the batch; None: whole.
        seed, step: of the run: what is drawn follows from them.
        kept: batches that were trained lately, for data that cannot be drawn from freely.
        stops: whether to stop at once, by raising `StopRequested`.
    """

    trainer: L.Trainer
    module: Any
    batch_size: int
    slice_size: int | None
    seed: int
    step: int
    kept: Sequence[Any] = ()
    stops: Callable[[], bool] = never
    gradients: int = 0  # of single samples, so far
    forward_passes: int = 0
    hessian_products: int = 0
    updates: int = 0  # of the optimizer
    parameters: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [each for each in self.module.parameters() if each.requires_grad]
        self._before = [each.detach().clone() for each in self.parameters]
        self._accumulates: bool | None = None  # None: not known yet
        self.is_chunked = isinstance(self.module, Classifier) and not (
            self.module.automatic_optimization
        )

    def gradient(self, number: int) -> tuple[float, Tensor]:
        """The mean loss of a batch and its gradient, in one row."""
        loss, total = 0.0, None
        for part, share in self._parts(number):
            with torch.enable_grad():
                value = self._loss(part) * share
                found = self._differentiated(value)
            row = self._row(found)
            total = row if total is None else total.add_(row)
            loss += float(value.detach())
        self.gradients += self.batch_size
        assert total is not None
        return loss, total

    def _differentiated(self, value: Tensor) -> Sequence[Tensor | None]:
        """The gradients, by the parameters' own where torch has no other way."""
        if self._accumulates is None:
            self._accumulates = REENTRANT in _names_of_nodes([value.grad_fn])
        if not self._accumulates:
            return torch.autograd.grad(value, self.parameters, allow_unused=True)
        if any(each._post_accumulate_grad_hooks for each in self.parameters):
            # They would be called, and not undone.
            raise NotImplementedError("reentrant checkpoints, with hooks that gradients call")
        before = [each.grad for each in self.parameters]
        try:
            for each in self.parameters:
                each.grad = None
            torch.autograd.backward(value)
            return [each.grad for each in self.parameters]
        finally:
            for each, gradient in zip(self.parameters, before, strict=True):
                each.grad = gradient

    def backward(self, number: int) -> float:
        """Add a batch's gradient to those of the parameters; its mean loss."""
        loss = 0.0
        for part, share in self._parts(number):
            with torch.enable_grad():
                value = self._loss(part) * share
                if self.is_chunked:
                    torch.autograd.backward(value)
                else:
                    self.module.backward(value)
            loss += float(value.detach())
        self.gradients += self.batch_size
        return loss

    def loss(self, number: int) -> float:
        with torch.no_grad():
            losses = [float(self._loss(part)) * share for part, share in self._parts(number)]
        self.forward_passes += self.batch_size
        return sum(losses)

    def curvatures(self, number: int, vectors: Sequence[Tensor], most_samples: int) -> list[float]:
        """vᵀHv of each vector, with the Hessian of the mean loss of a batch, or of so many of its
        samples, by its products Hv."""
        size = min(self.batch_size, most_samples, self.slice_size or self.batch_size)
        ((batch, _),) = self._parts(number, whole=True)
        # torch's fast attention has no second derivatives.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            value = self._loss(sliced(batch, self.batch_size, 0, size))
            _require_second_derivatives([value])
            found = torch.autograd.grad(
                value, self.parameters, create_graph=True, allow_unused=True
            )
            used = [(each, at) for at, each in enumerate(found) if each is not None]
            _require_second_derivatives([each for each, _ in used])
            totals = []
            for vector in vectors:
                split = self.split(vector)
                along = torch.stack([(each * split[at]).sum() for each, at in used]).sum()
                products = torch.autograd.grad(
                    along, self.parameters, retain_graph=True, allow_unused=True
                )
                totals.append(float(torch.dot(self._row(products), vector)))
        self.hessian_products += size * len(vectors)
        self.gradients += size
        return totals

    @torch.no_grad()
    def move(self, displacement: Tensor | None) -> None:
        """Have the weights be those of the run, plus a displacement."""
        moves = self.split(displacement) if displacement is not None else None
        for index, (parameter, before) in enumerate(
            zip(self.parameters, self._before, strict=True)
        ):
            parameter.copy_(before if moves is None else before + moves[index])

    def split(self, row: Tensor) -> list[Tensor]:
        """A row as tensors in the parameters' shapes."""
        sizes = [each.numel() for each in self.parameters]
        parts = torch.split(row, sizes)
        return [part.view(each.shape) for part, each in zip(parts, self.parameters, strict=True)]

    def displacement(self) -> Tensor:
        """How far the weights are from those of the run, in one row."""
        pairs = zip(self.parameters, self._before, strict=True)
        return self._row([parameter.detach() - before for parameter, before in pairs])

    def gradients_row(self) -> Tensor:
        """Those that the parameters have now, in one row."""
        return self._row([parameter.grad for parameter in self.parameters])

    def check_stop(self) -> None:
        if self.stops():
            raise StopRequested

    def _loss(self, part: Any) -> Tensor:
        self.check_stop()
        if self.is_chunked:
            images, labels = part
            return cross_entropy(self.module.net(images), labels)
        with self._precision():
            step = self.module.training_step
            indexed = is_param_in_hook_signature(step, "batch_idx", min_args=2)
            outputs = step(part, 0) if indexed else step(part)
        loss: Tensor | None = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            raise ValueError("training_step returned no loss")
        return loss

    def _precision(self) -> AbstractContextManager[Any]:
        plugin = getattr(self.trainer, "precision_plugin", None)
        return plugin.train_step_context() if plugin is not None else nullcontext()

    def _parts(self, number: int, *, whole: bool = False) -> list[tuple[Any, float]]:
        """The slices of a batch with their shares in it; seeds what random layers draw."""
        seed = seed_of(self.seed, PROBES, self.step, number, 1)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        batch = self._batch(number)
        size = self.slice_size
        if whole or size is None or size >= self.batch_size:
            return [(batch, 1.0)]
        starts = range(0, self.batch_size, size)
        return [
            (sliced(batch, self.batch_size, start, size), _share(start, size, self.batch_size))
            for start in starts
        ]

    def _batch(self, number: int) -> Any:
        if self.kept:
            return self.kept[number]
        loader: Any = self.trainer.train_dataloader
        batch = loader.sample(self.batch_size, generator(self.seed, PROBES, self.step, number))
        if isinstance(loader, InMemoryLoader):
            return batch
        batch = self.trainer.precision_plugin.convert_input(batch)
        batch = self.module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _row(self, tensors: Sequence[Tensor | None]) -> Tensor:
        return torch.cat(
            [
                (torch.zeros_like(parameter) if each is None else each).detach().reshape(-1)
                for each, parameter in zip(tensors, self.parameters, strict=True)
            ]
        )


def _require_second_derivatives(gradients: Sequence[Tensor]) -> None:
    """Raise where they depend on the weights by a function whose backward pass is marked with
    `once_differentiable`: torch would take it for a constant, and say nothing. So it would for
    what a reentrant checkpoint recomputes."""
    names = _names_of_nodes([each.grad_fn for each in gradients])
    if REFUSES_SECOND in names:
        raise NotImplementedError("a function of the net is marked with once_differentiable")
    if REENTRANT in names:
        raise NotImplementedError("the module has reentrant checkpoints")


def _names_of_nodes(left: list[Any]) -> set[str]:
    """Of a graph."""
    seen = set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left.extend(before for before, _ in node.next_functions)
    return {node.name() for node in seen}


def _share(start: int, size: int, whole: int) -> float:
    return (min(start + size, whole) - start) / whole


def sliced(batch: Any, whole: int, start: int, size: int) -> Any:
    """The same slice of all tensors of a batch that have an entry per sample."""

    def part(leaf: Any) -> Any:
        sliced = isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == whole
        return leaf[start : start + size] if sliced else leaf

    return tree_map(part, batch)
