"""Schedule-free AdamW: an average in the place of a schedule (Defazio et al., 2024)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors

WEIGHTS, TRAINED = "weights", "trained"


class ScheduleFree(ForeachOptimizer):
    """Schedule-free AdamW (arXiv:2405.15682): gradients are taken at y = (1 - beta1) z + beta1 x,
    AdamW's steps are made by z, and x is the average of all z, weighted by the squares of their
    learning rates.

    The bias correction is in the denominator, as in the authors' package (adamw_schedulefree.py).
    In the paper's Algorithm 1 it is part of the learning rate, so of the weights and the decay too.

    While training the parameters are y, and `eval` makes them x until `train` is called, which
    restores y bit for bit. A state saved meanwhile holds both.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: learning rate.
        betas: the share of the average in y, and the decay rate of the second moments.
        eps: added to the root of the second moments.
        weight_decay: decoupled, at y.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import ScheduleFree
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = ScheduleFree([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.eval()
        >>> round(weight.item(), 3)
        0.9
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 < betas[0] < 1:
            raise ValueError(f"the first of betas must be in (0, 1), not {betas[0]}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"training": True})

    def begin(self, group: dict[str, Any], param: Tensor) -> dict[str, Any]:
        return {"z": param.clone(), "square": torch.zeros_like(param), WEIGHTS: 0.0}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not all(group["training"] for group in self.param_groups):
            raise RuntimeError("call train() of the optimizer before its next step")
        return super().step(closure)

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        # Which steps a parameter had a gradient in decides its share where learning rates differ.
        by_share: dict[float, list[int]] = {}
        for number, param in enumerate(params):
            by_share.setdefault(self._share(param, group["lr"]), []).append(number)
        for share, numbers in by_share.items():
            own = [params[number] for number in numbers]
            own_grads = [grads[number] for number in numbers]
            self._update(group, own, own_grads, State(self, own, state.step), share)

    def _share(self, param: Tensor, lr: float) -> float:
        """Of this step's z in the parameter's average."""
        state = self.state[param]
        state[WEIGHTS] += lr**2
        return lr**2 / float(state[WEIGHTS]) if lr else 0.0

    def _update(
        self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State, share: float
    ) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        z, squares = state["z"], state["square"]
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = torch._foreach_sqrt(torch._foreach_div(squares, 1 - beta2**state.step))
        directions = torch._foreach_div(grads, torch._foreach_add(roots, group["eps"]))
        if group["weight_decay"]:
            torch._foreach_add_(directions, params, alpha=group["weight_decay"])
        # What x, which is not kept, and z become, told in terms of y.
        torch._foreach_lerp_(params, z, share)
        torch._foreach_add_(params, directions, alpha=-lr * (1 - beta1 * (1 - share)))
        torch._foreach_add_(z, directions, alpha=-lr)

    @torch.no_grad()
    def eval(self) -> None:
        """Make the parameters the average x."""
        for group in self.param_groups:
            if group["training"]:
                for param in self._stepped(group):
                    state = self.state[param]
                    state[TRAINED] = param.clone()
                    # Lightning leaves the state on the host when training has ended.
                    z = state["z"].to(param.device)
                    param.lerp_(z, 1 - 1 / group["betas"][0])
                group["training"] = False

    @torch.no_grad()
    def train(self) -> None:
        """Make the parameters y again."""
        for group in self.param_groups:
            if not group["training"]:
                for param in self._stepped(group):
                    param.copy_(self.state[param].pop(TRAINED))
                group["training"] = True

    def _stepped(self, group: dict[str, Any]) -> Tensors:
        return [param for param in group["params"] if param in self.state]


def switches(optimizer: Optimizer) -> bool:
    """Whether the weights to evaluate are other than those to train, as for schedule-free ones."""
    return callable(getattr(optimizer, "eval", None)) and callable(
        getattr(optimizer, "train", None)
    )


def set_training(optimizer: Optimizer, training: bool) -> None:
    """Have the optimizer's parameters be those to train, or those to evaluate."""
    if switches(optimizer):
        optimizer.train() if training else optimizer.eval()  # type: ignore[attr-defined]
