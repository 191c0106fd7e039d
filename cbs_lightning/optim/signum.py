"""Signum: signs of a momentum (Bernstein et al., 2018)."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights


class Signum(ForeachOptimizer):
    """m <- beta m + (1 - beta) g, then theta <- theta - lr (sign(m) + weight_decay theta):
    Algorithm 2 of arXiv:1802.04434. With momentum=0 it is signSGD.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate: how far each weight moves in a step.
        momentum: the decay rate beta of the average.
        weight_decay: decoupled.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import Signum
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Signum([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    moments = ("average",)
    counts_steps = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        averages = state["average"]
        torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
        decay_weights(params, group)
        torch._foreach_add_(params, torch._foreach_sign(averages), alpha=-group["lr"])
