"""Adam as the paper's Theorem 3.1 assumes it: the second moments never decrease."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from cbs_lightning.optim.closure import evaluate


class AdamMonotone(Optimizer):
    """Algorithm 1 with v_hat_k = max(v_hat_{k-1}, v_k / (1 - beta2^{k+1})), label `max_1`.

    torch's Adam(amsgrad=True) takes the maximum before the bias correction, so that what it
    divides by is not monotone. `eps` is added to the root as torch does; Algorithm 1 has none.

    Args:
        params: what to optimize, as for any torch optimizer.
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

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if lr <= 0:
            raise ValueError(f"lr must be positive, not {lr}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = evaluate(closure)
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            states = [self._state(p) for p in params]
            for state in states:
                state["step"] += 1
            step = int(states[0]["step"])  # k + 1 of Algorithm 1, the same for all
            means = [state["mean"] for state in states]
            squares = [state["square"] for state in states]
            maxima = [state["maximum"] for state in states]
            torch._foreach_lerp_(means, grads, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
            torch._foreach_maximum_(maxima, torch._foreach_div(squares, 1 - beta2**step))
            roots = torch._foreach_add(torch._foreach_sqrt(maxima), group["eps"])
            torch._foreach_addcdiv_(params, means, roots, -group["lr"] / (1 - beta1**step))
        return loss

    def _state(self, param: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            state["step"] = 0
            for name in ("mean", "square", "maximum"):
                state[name] = torch.zeros_like(param)
        return state
