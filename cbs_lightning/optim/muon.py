"""Muon: orthogonalized momentum for matrices, AdamW for the rest (Jordan et al., 2024)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs_lightning.optim.foreach import ForeachOptimizer, State, Tensors, decay_weights

MUON, ADAMW = "muon", "adamw"
# By how much the learning rate of an m x n matrix is multiplied.
ADJUSTMENTS: dict[str, Callable[[int, int], float]] = {
    "original": lambda m, n: math.sqrt(max(1.0, m / n)),  # Jordan's
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),  # Liu et al. (2025)
    "spectral": lambda m, n: math.sqrt(m / n),  # Bernstein's
}


class Muon(ForeachOptimizer):
    """m <- beta m + (1 - beta) g for each matrix, then a step along the nearest orthogonal matrix
    to m, or with `nesterov` to beta m + (1 - beta) g, by Newton and Schulz's iteration.

    A convolution's weight is the matrix of its output channels by all else. A parameter group with
    `algorithm="adamw"` is AdamW's. torch's own Muon takes tensors of two dimensions alone, works on
    one at a time and always in bfloat16; this one works on all of one shape at a time, in the
    parameters' own precision.

    Args:
        params: what to optimize, in parameter groups where AdamW has a part of it.
        lr: learning rate.
        momentum: decay rate of Muon's momentum.
        nesterov: whether the gradient is looked ahead along the momentum.
        ns_coefficients: those of the odd polynomial of degree five that is iterated.
        ns_steps: how many times.
        adjust_lr: how the learning rate depends on a matrix's shape: `original`,
            `match_rms_adamw` or `spectral`.
        weight_decay: decoupled, for both algorithms.
        betas: AdamW's decay rates.
        eps: the least norm that Muon divides by; what AdamW adds to its root.
        algorithm: `muon` or `adamw`.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim import Muon
        >>> layer = torch.nn.Linear(3, 3)
        >>> rest = {"params": [layer.bias], "algorithm": "adamw", "lr": 1e-3}
        >>> optimizer = Muon([{"params": [layer.weight]}, rest], lr=0.02)
        >>> layer(torch.ones(1, 3)).square().sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Sequence[float] = (3.4445, -4.7750, 2.0315),
        ns_steps: int = 5,
        adjust_lr: str = "original",
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        algorithm: str = MUON,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "ns_steps": ns_steps, "adjust_lr": adjust_lr,
            "weight_decay": weight_decay, "betas": betas, "eps": eps, "algorithm": algorithm,
        }  # fmt: skip
        if not _are_three_numbers(ns_coefficients):
            raise ValueError(f"ns_coefficients must be three numbers, not {ns_coefficients}")
        if not isinstance(ns_steps, int) or ns_steps < 1:
            raise ValueError(f"ns_steps must be a whole number >= 1, not {ns_steps}")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["algorithm"] not in (MUON, ADAMW):
            raise ValueError(f"algorithm must be {MUON} or {ADAMW}, not {group['algorithm']}")
        if group["adjust_lr"] not in ADJUSTMENTS:
            allowed = ", ".join(ADJUSTMENTS)
            raise ValueError(f"adjust_lr must be one of {allowed}, not {group['adjust_lr']}")
        flat = [tuple(p.shape) for p in group["params"] if p.ndim < 2]
        if group["algorithm"] == MUON and flat:
            shape = f"muon needs matrices, and one of its parameters has the shape {flat[0]}"
            raise ValueError(f"{shape}; algorithm={ADAMW} takes any")

    def begin(self, group: dict[str, Any], param: Tensor) -> dict[str, Any]:
        names = ("average",) if group["algorithm"] == MUON else ("mean", "square")
        return {name: torch.zeros_like(param) for name in names}

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
        decay_weights(params, group)
        if group["algorithm"] == MUON:
            _orthogonal_step(group, params, grads, state["average"])
        else:
            _adam_step(group, params, grads, state)


def _are_three_numbers(values: Any) -> bool:
    is_sequence = isinstance(values, Sequence) and len(values) == 3
    return is_sequence and all(isinstance(value, int | float) for value in values)


def _adam_step(group: dict[str, Any], params: Tensors, grads: Tensors, state: State) -> None:
    beta1, beta2 = group["betas"]
    means, squares = state["mean"], state["square"]
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    roots = torch._foreach_sqrt(torch._foreach_div(squares, 1 - beta2**state.step))
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(params, means, roots, -group["lr"] / (1 - beta1**state.step))


def _orthogonal_step(
    group: dict[str, Any], params: Tensors, grads: Tensors, averages: Tensors
) -> None:
    beta = group["momentum"]
    torch._foreach_lerp_(averages, grads, 1 - beta)
    directions = list(torch._foreach_lerp(grads, averages, beta)) if group["nesterov"] else averages
    alike: dict[torch.Size, list[int]] = {}
    for number, param in enumerate(params):
        alike.setdefault(param.shape, []).append(number)
    for shape, numbers in alike.items():
        stacked = torch.stack([directions[number] for number in numbers]).flatten(2)
        found = orthogonalized(stacked, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * ADJUSTMENTS[group["adjust_lr"]](*found.shape[1:])
        updates = list(found.reshape(-1, *shape).unbind())
        torch._foreach_add_([params[number] for number in numbers], updates, alpha=-rate)


def orthogonalized(
    matrices: Tensor, coefficients: Sequence[float], steps: int, eps: float
) -> Tensor:
    """Bring the singular values of each m x n matrix of a stack close to one."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        found = torch.baddbmm(
            found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a
        )
    return found.mT if tall else found
