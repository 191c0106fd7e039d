"""What this project's optimizers share: all tensors of a group are updated at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

Tensors = list[Tensor]


class ForeachOptimizer(Optimizer, ABC):
    """An optimizer that says how it updates lists of tensors, without waiting for the device.

    Parameters without a gradient are left alone. Those that have seen a different number of steps
    are updated apart from each other, so that bias corrections are right for all.
    """

    moments: ClassVar[tuple[str, ...]] = ()  # tensors kept for each parameter, zero at first
    counts_steps: ClassVar[bool] = True

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_settings(defaults)
        super().__init__(params, defaults)

    @abstractmethod
    def update(
        self, group: dict[str, Any], params: Tensors, grads: Tensors, state: "State"
    ) -> None: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_step: dict[int, Tensors] = {}
            for param in group["params"]:
                if param.grad is not None:
                    by_step.setdefault(self._count(group, param), []).append(param)
            for step, params in by_step.items():
                grads = [param.grad for param in params if param.grad is not None]
                self.update(group, params, grads, State(self, params, step))
        return loss

    def begin(self, group: dict[str, Any], param: Tensor) -> dict[str, Any]:
        """A parameter's state before its first step, but the count of its steps."""
        return {name: torch.zeros_like(param) for name in self.moments}

    def _count(self, group: dict[str, Any], param: Tensor) -> int:
        state = self.state[param]
        if not state:
            if self.counts_steps:
                state["step"] = 0
            state.update(self.begin(group, param))
        if not self.counts_steps:
            return 0
        state["step"] += 1
        return int(state["step"])


class State:
    """The state of some parameters that have seen the same number of steps."""

    def __init__(self, optimizer: Optimizer, params: Tensors, step: int) -> None:
        self._states = [optimizer.state[param] for param in params]
        self.step = step  # this one's number, from 1 on

    def __getitem__(self, name: str) -> Tensors:
        return [state[name] for state in self._states]


def decay_weights(params: Tensors, group: dict[str, Any]) -> None:
    """Decoupled weight decay, as AdamW's: theta <- (1 - lr * weight_decay) theta."""
    if group["weight_decay"]:
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])


def check_settings(settings: dict[str, Any]) -> None:
    """Raise ValueError for a number that no optimizer here can have."""
    if settings["lr"] <= 0:
        raise ValueError(f"lr must be positive, not {settings['lr']}")
    if not all(0 <= beta < 1 for beta in settings.get("betas", ())):
        raise ValueError(f"betas must be in [0, 1), not {settings['betas']}")
    if not 0 <= settings.get("momentum", 0) < 1:
        raise ValueError(f"momentum must be in [0, 1), not {settings['momentum']}")
    for name in ("eps", "weight_decay"):
        if settings.get(name, 0) < 0:
            raise ValueError(f"{name} must not be negative, but is {settings[name]}")
