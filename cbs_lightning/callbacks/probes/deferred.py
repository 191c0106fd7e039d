"""Probes that a signal put off until the run resumes."""

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbs_lightning.noise.record import Probe


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
