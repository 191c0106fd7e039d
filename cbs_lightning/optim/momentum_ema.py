"""Momentum as the paper's Algorithm 1 and its proofs have it."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors


class MomentumEMA(ForeachOptimizer):
    """m <- beta m + (1 - beta) g from m = 0, then theta <- theta - lr m, without bias correction.

    torch's SGD(momentum=beta) leaves out the factor (1 - beta), and so has an effective learning
    rate 1 / (1 - beta) times larger; with dampening=beta its first buffer is g, not (1 - beta) g.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
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

    moments = ("average",)
    counts_steps = False

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        averages = state["average"]
        torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
        torch._foreach_add_(params, averages, alpha=-group["lr"])
