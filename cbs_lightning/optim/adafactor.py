"""Adafactor: second moments by rows and columns (Shazeer and Stern, 2018)."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights


class Adafactor(ForeachOptimizer):
    """Algorithms 4 and 5 of arXiv:1804.04235, with relative step sizes and without momentum.

    torch's own has the host wait for the device twice per parameter and step; this one never does.
    Like torch's, it factors the last two dimensions of tensors with two or more.

    Args:
        params: what to optimize, as for any torch optimizer.
        lr: the most that a step may change a parameter, as a share of its root mean square; at
            step t it is min(lr, 1 / sqrt(t)).
        beta2_decay: the second moments' decay rate at step t is 1 - t**beta2_decay.
        eps: added to squared gradients.
        least_rms: what a parameter's root mean square is taken for where it is smaller.
        clip: the largest root mean square of an update, before the step size.
        weight_decay: decoupled.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import Adafactor
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Adafactor([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: float = 1e-30,
        least_rms: float = 1e-3,
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay must not be positive, but is {beta2_decay}")
        if least_rms < 0 or clip <= 0:
            raise ValueError("least_rms must not be negative, and clip must be positive")
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "least_rms": least_rms}
        super().__init__(params, defaults | {"clip": clip, "weight_decay": weight_decay})

    def begin(self, group: dict[str, Any], param: Tensor) -> dict[str, Any]:
        if param.ndim < 2:
            return {"square": torch.zeros_like(param)}
        return {
            "rows": param.new_zeros((*param.shape[:-1], 1)),
            "columns": param.new_zeros((*param.shape[:-2], 1, param.shape[-1])),
        }

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        forget = min(1.0, state.step ** group["beta2_decay"])
        squares = torch._foreach_add(torch._foreach_mul(grads, grads), group["eps"])
        roots = torch._foreach_sqrt(
            [
                _second_moment(self.state[param], square, forget)
                for param, square in zip(params, squares, strict=True)
            ]
        )
        updates = torch._foreach_div(grads, roots)
        limits = torch._foreach_div(_rms(updates), group["clip"])
        torch._foreach_clamp_min_(limits, 1.0)
        sizes = _rms(params)
        torch._foreach_clamp_min_(sizes, group["least_rms"])
        torch._foreach_mul_(sizes, -min(group["lr"], state.step**-0.5))
        torch._foreach_div_(sizes, limits)
        torch._foreach_mul_(updates, sizes)
        decay_weights(params, group)
        torch._foreach_add_(params, updates)


def _second_moment(state: dict[str, Any], square: Tensor, forget: float) -> Tensor:
    """Of one parameter, updated: the product of its rows' and columns' means, or in full."""
    if "square" in state:
        moment: Tensor = state["square"].lerp_(square, forget)
        return moment
    rows, columns = state["rows"], state["columns"]
    rows.lerp_(square.mean(-1, keepdim=True), forget)
    columns.lerp_(square.mean(-2, keepdim=True), forget)
    product: Tensor = (rows / rows.mean(-2, keepdim=True)) * columns
    return product


def _rms(tensors: Tensors | tuple[Tensor, ...]) -> Tensors:
    """The root mean square of each, as a tensor on its device."""
    norms = torch._foreach_norm(tensors)
    return list(torch._foreach_mul(norms, [max(1, tensor.numel()) ** -0.5 for tensor in tensors]))
