"""Momentum as the paper's Algorithm 1 and its proofs have it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from cbs_lightning.optim.closure import evaluate


class MomentumEMA(Optimizer):
    """m <- beta m + (1 - beta) g from m = 0, then theta <- theta - lr m, without bias correction.

    torch's SGD(momentum=beta) leaves out the factor (1 - beta), and so has an effective learning
    rate 1 / (1 - beta) times larger; with dampening=beta its first buffer is g, not (1 - beta) g.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate.
        momentum: the decay rate beta of the average.

    Example:
        >>> import torch
        >>> from cbs_lightning import MomentumEMA
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = MomentumEMA([weight], lr=0.5, momentum=0.9)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.9) -> None:
        if lr <= 0:
            raise ValueError(f"lr must be positive, not {lr}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = evaluate(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros_like(p)
            averages = [self.state[p]["average"] for p in params]
            torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
            torch._foreach_add_(params, averages, alpha=-group["lr"])
        return loss
