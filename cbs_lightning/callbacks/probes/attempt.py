"""Attempts at a probe: whatever goes wrong in one, the run goes on as if it had not been made; and
what a signal puts off until the run resumes."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.measurement import SMALLEST_BATCH
from cbs_lightning.callbacks.probes.state import unchanged
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import uncompiled
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.noise.record import Probe

Found = TypeVar("Found")

HALVINGS = 3  # of a slice, where memory is short, before a probe is left out
LONGEST_REASON = 200  # characters


@dataclass(frozen=True)
class Failure:
    reason: str
    of_memory: bool

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        text = " ".join(str(error).split())[:LONGEST_REASON]
        return cls(f"{type(error).__name__}: {text}".rstrip(": "), is_out_of_memory(error))


def attempt(
    trainer: L.Trainer,
    module: L.LightningModule,
    compiled: str | None,
    measured: Callable[[set[str]], Found],
    *,
    optimizers: bool = False,
) -> Found | Failure:
    """What `measured` returns, which is given what of the module cannot be put back; `optimizers`
    are put back as well if that is asked for.

    Raises an exception of the code that puts the run back: the run is not what it was.
    """
    begun = False
    try:
        with unchanged(trainer, module, optimizers=optimizers) as lost, uncompiled(compiled):
            begun = True
            try:
                return measured(lost)
            except Exception as error:
                return Failure.of(error)
    except Exception as error:
        if begun:
            raise
        return Failure.of(error)


def release_memory(trainer: L.Trainer) -> None:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.empty_cache()


def own_slice_size(trainer: L.Trainer, module: L.LightningModule) -> int | None:
    """Samples of the slices that the run itself works in; None: whole batches."""
    if isinstance(module, Classifier) and not module.automatic_optimization:
        return module.micro_batch_size
    return getattr(trainer.train_dataloader, "slice_size", None)


def smaller_slices(slice_size: int | None, batch_size: int) -> Iterator[int]:
    """The sizes to try where memory is short, none of which leaves a slice of one sample."""
    size = min(slice_size or batch_size, batch_size)
    for _ in range(HALVINGS):
        smaller = max(SMALLEST_BATCH, math.ceil(size / 2))
        while smaller < size and batch_size % smaller == 1:
            smaller += 1
        if smaller >= size:
            return
        size = smaller
        yield size


@dataclass(frozen=True)
class Deferred:
    """A probe that is due, and the state of the run at its step.

    The run itself goes on to the end of its chunk before it is saved.
    """

    blank: Probe
    tensors: list[Tensor]  # parameters and buffers
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, blank: Probe, module: nn.Module, optimizer: Optimizer) -> "Deferred":
        tensors = [each.detach().clone() for each in _tensors(module)]
        return cls(blank, tensors, copy.deepcopy(optimizer.state_dict()))

    @torch.no_grad()
    def put(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Have the run be in that state; to be used inside `unchanged`."""
        for tensor, then in zip(_tensors(module), self.tensors, strict=True):
            tensor.copy_(then)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer))

    def state_dict(self) -> dict[str, Any]:
        return {"blank": asdict(self.blank), "tensors": self.tensors, "optimizer": self.optimizer}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Deferred":
        return cls(Probe(**state["blank"]), state["tensors"], state["optimizer"])


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
