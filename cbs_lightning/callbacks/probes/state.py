"""Whatever is done inside `unchanged` leaves the run as it was, bit for bit."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.kept import Kept, Seen
from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.data.repeatable import CountingLoader

# What torch and Lightning keep of a module that no pass changes, or that is restored apart.
NOT_ITS_OWN = ("_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_jit_module")

OF_OPTIMIZERS = ("state", "param_groups", "defaults")  # what is restored apart, or never changes


@contextmanager
def unchanged(
    trainer: L.Trainer, module: L.LightningModule, *, optimizers: bool = False
) -> Iterator[set[str]]:
    """Restore at the end, also after an exception: weights, buffers such as BatchNorm's statistics,
    gradients, modes, what the module, its metrics and its helper objects count, all random numbers
    and the loader's place; with `optimizers` their state as well. What cannot be: see `Kept`.

    Meanwhile the module logs nothing, and gradients are None. Yields the types of what the module
    holds and cannot be restored.
    """
    states = _RandomStates(trainer.strategy.root_device)
    seen = Seen()
    modules = [_ModuleState(each, seen) for each in module.modules()]
    stepped = [_OptimizerState(each) for each in trainer.optimizers] if optimizers else []
    loader = _loader_of(trainer)
    place = loader.state_dict() if loader is not None else None
    loggers = trainer.loggers
    tensors = _TensorStates(module)  # last: from here on gradients are None
    try:
        trainer.loggers = [DummyLogger() for _ in loggers]
        module.log = _log_nothing  # type: ignore[method-assign]
        yield seen.lost
    finally:
        trainer.loggers = loggers
        for each in stepped:
            each.restore()
        tensors.restore()
        for state in modules:  # removes `log` again
            state.restore()
        if loader is not None and place is not None:
            loader.load_state_dict(place)
        states.restore()


def cannot_restore(lost: set[str]) -> str:
    """A line for the user."""
    what = ", ".join(sorted(lost))
    return f"the module holds what cannot be put back ({what}): drawing from it changes the run"


@contextmanager
def undone(optimizer: Optimizer) -> Iterator[None]:
    """Restore an optimizer at the end; not the weights."""
    before = _OptimizerState(optimizer)
    try:
        yield
    finally:
        before.restore()


def _log_nothing(*_: Any, **__: Any) -> None:
    """In the place of a module's `log`."""


def _loader_of(trainer: L.Trainer) -> InMemoryLoader | CountingLoader | None:
    loader = trainer.train_dataloader
    return loader if isinstance(loader, InMemoryLoader | CountingLoader) else None


class _RandomStates:
    """Of Python, numpy, torch and the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.python = random.getstate()
        self.numpy = np.random.get_state()
        self.cpu = torch.get_rng_state()
        self.gpu = self._of_device()

    def _of_device(self) -> Tensor | None:
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.mps.get_rng_state() if self.device.type == "mps" else None

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.gpu is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(self.gpu, self.device)
        elif self.gpu is not None:
            torch.mps.set_rng_state(self.gpu)


class _TensorStates:
    """A module's parameters, their gradients, and its buffers."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [(each, each.detach().clone()) for each in module.parameters()]
        self.buffers = [(each, each.clone()) for each in module.buffers()]
        self.gradients = [(each, each.grad) for each in module.parameters()]
        for parameter, _ in self.gradients:
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, before in self.parameters + self.buffers:
            tensor.copy_(before)
        for parameter, gradient in self.gradients:
            parameter.grad = gradient


class _ModuleState:
    """Whether a module trains, which tensors are its buffers, and its attributes, such as what a
    metric has summed up or a helper object counts.
    """

    def __init__(self, module: nn.Module, seen: "Seen") -> None:
        self.module = module
        self.buffers = dict(module._buffers)
        own = {name: value for name, value in vars(module).items() if name not in NOT_ITS_OWN}
        self.attributes = {name: Kept(value, seen) for name, value in own.items()}

    def restore(self) -> None:
        self.module._buffers.update(self.buffers)
        own = vars(self.module)
        for name in [each for each in own if each not in NOT_ITS_OWN]:
            if name not in self.attributes:
                del own[name]
        for name, kept in self.attributes.items():
            own[name] = kept.restored()


class _OptimizerState:
    """What an optimizer keeps for each parameter, its groups' settings, and what else it counts."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.state = {
            parameter: {name: _cloned(value) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self.settings = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        own, seen = vars(optimizer).items(), Seen()
        self.attributes = {
            name: Kept(each, seen) for name, each in own if name not in OF_OPTIMIZERS
        }

    def restore(self) -> None:
        for name, kept in self.attributes.items():
            vars(self.optimizer)[name] = kept.restored()
        state = self.optimizer.state
        for parameter in [each for each in state if each not in self.state]:
            del state[parameter]
        for parameter, values in self.state.items():
            state[parameter] = values
        for group, settings in zip(self.optimizer.param_groups, self.settings, strict=True):
            group.update(settings)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
