"""AdaBelief: steps by how well gradients were foreseen (Zhuang et al., 2020)."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights


class AdaBelief(ForeachOptimizer):
    """Adam with s <- beta2 s + (1 - beta2) (g - m)^2 + eps in the place of its second moments:
    Algorithm 2 of arXiv:2010.07468.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the mean and of the squared deviation from it.
        eps: added to the squared deviation, and to its root.
        weight_decay: decoupled.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import AdaBelief
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdaBelief([weight], lr=0.09, betas=(0.5, 0.999))
        >>> weight.square().sum().backward()
        >>> optimizer.step()  # m = 1, so that both m_hat and the deviation are 2 and 1
        >>> round(weight.item(), 3)
        0.82
    """

    moments = ("mean", "deviation")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        beta1, beta2 = group["betas"]
        means, deviations = state["mean"], state["deviation"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        surprises = torch._foreach_sub(grads, means)
        torch._foreach_mul_(deviations, beta2)
        torch._foreach_addcmul_(deviations, surprises, surprises, 1 - beta2)
        torch._foreach_add_(deviations, group["eps"])
        decay_weights(params, group)
        roots = torch._foreach_sqrt(torch._foreach_div(deviations, 1 - beta2**state.step))
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(params, means, roots, -group["lr"] / (1 - beta1**state.step))
