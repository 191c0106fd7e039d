"""Yogi: Adam whose second moments grow slowly (Zaheer et al., 2018)."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights


class Yogi(ForeachOptimizer):
    """v <- v - (1 - beta2) sign(v - g^2) g^2 in the place of Adam's average, and no bias
    correction: Algorithm 2 of "Adaptive Methods for Nonconvex Optimization".

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the first and second moments.
        eps: added to the root of the second moments.
        initial: the second moments before the first step.
        weight_decay: decoupled.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import Yogi
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Yogi([weight], lr=0.1, betas=(0.0, 0.0), eps=0.0, initial=0.0)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    counts_steps = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if initial < 0:
            raise ValueError(f"initial must not be negative, but is {initial}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "initial": initial}
        super().__init__(params, defaults | {"weight_decay": weight_decay})

    def begin(self, group: dict[str, Any], param: Tensor) -> dict[str, Any]:
        square = torch.full_like(param, group["initial"])
        return {"mean": torch.zeros_like(param), "square": square}

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        beta1, beta2 = group["betas"]
        means, squares = state["mean"], state["square"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        new = torch._foreach_mul(grads, grads)
        signs = torch._foreach_sign(torch._foreach_sub(squares, new))
        torch._foreach_addcmul_(squares, signs, new, -(1 - beta2))
        decay_weights(params, group)
        roots = torch._foreach_add(torch._foreach_sqrt(squares), group["eps"])
        torch._foreach_addcdiv_(params, means, roots, -group["lr"])
