"""Lion: signs of an interpolated momentum (Chen et al., 2023)."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights


class Lion(ForeachOptimizer):
    """theta <- theta - lr (sign(beta1 m + (1 - beta1) g) + weight_decay theta), then
    m <- beta2 m + (1 - beta2) g: Algorithm 2 of arXiv:2302.06675.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate; the authors advise a third to a tenth of Adam's.
        betas: weight of the momentum in the update, and its decay rate.
        weight_decay: decoupled.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import Lion
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Lion([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    moments = ("mean",)
    counts_steps = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        beta1, beta2 = group["betas"]
        means = state["mean"]
        decay_weights(params, group)
        directions = torch._foreach_lerp(means, grads, 1 - beta1)
        torch._foreach_add_(params, torch._foreach_sign(directions), alpha=-group["lr"])
        torch._foreach_lerp_(means, grads, 1 - beta2)
