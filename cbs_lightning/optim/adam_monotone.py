"""Adam as the paper's Theorem 3.1 assumes it: the second moments never decrease."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors


class AdamMonotone(ForeachOptimizer):
    """Algorithm 1 with v_hat_k = max(v_hat_{k-1}, v_k / (1 - beta2^{k+1})), label `max_1`.

    torch's Adam(amsgrad=True) takes the maximum before the bias correction, so its denominator is
    not monotone. `eps` is added to the root, as in torch; Algorithm 1 has none.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the first and second moments.
        eps: added to the root of the second moments.

    Example:
        >>> import torch
        >>> from cbs_lightning import AdamMonotone
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdamMonotone([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    moments = ("mean", "square", "maximum")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        beta1, beta2 = group["betas"]
        means, squares, maxima = state["mean"], state["square"], state["maximum"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        torch._foreach_maximum_(maxima, torch._foreach_div(squares, 1 - beta2**state.step))
        roots = torch._foreach_add(torch._foreach_sqrt(maxima), group["eps"])
        torch._foreach_addcdiv_(params, means, roots, -group["lr"] / (1 - beta1**state.step))
