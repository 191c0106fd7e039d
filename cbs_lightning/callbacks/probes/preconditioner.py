"""The step of an optimizer as θ - ηPg: its metric P, and the η that momentum makes of its rate."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from cbs_lightning.optim.adabelief import AdaBelief
from cbs_lightning.optim.adam_monotone import AdamMonotone
from cbs_lightning.optim.momentum_ema import MomentumEMA
from cbs_lightning.optim.yogi import Yogi

Group = dict[str, Any]
State = dict[str, Any]
Rate = tuple[float, Tensor]  # η of a group, and P of one of its parameters
Rule = Callable[[Group, State, Tensor], Rate]

RECTIFIED_FROM = 5  # RAdam's length of the average from which it divides by second moments


class Metric(NamedTuple):
    """Of one optimizer at one moment: `scale` has a factor per weight, in one row.

    A step is θ - eta · scale · g, where `eta` is the learning rate times what momentum makes of a
    gradient in the long run. Where groups have rates of their own, `scale` has their ratios.
    """

    eta: float
    scale: Tensor


def metric_of(optimizer: Optimizer, parameters: list[Tensor], factor: float = 1.0) -> Metric | None:
    """The metric for gradients of these parameters; None where the step is no such product.

    `factor` multiplies the rates, as a schedule does. Weight decay is no part of it.
    """
    rule = RULES.get(type(optimizer))
    if rule is None:
        return None
    known = {each: group for group in optimizer.param_groups for each in group["params"]}
    if any(each not in known for each in parameters):
        return None
    found = []
    for each in parameters:
        rate, scale = rule(known[each], optimizer.state.get(each, {}), each)
        found.append((rate * factor, scale))
    eta = max(rate for rate, _ in found)
    if not 0 < eta < math.inf:
        return None
    return Metric(eta, torch.cat([scale.reshape(-1) * (rate / eta) for rate, scale in found]))


def _sgd(group: Group, _: State, parameter: Tensor) -> Rate:
    rate = float(group["lr"])
    if group["momentum"]:
        rate *= (1 - group["dampening"]) / (1 - group["momentum"])
    return rate, torch.ones_like(parameter)


def _plain(group: Group, _: State, parameter: Tensor) -> Rate:
    return float(group["lr"]), torch.ones_like(parameter)


def _adam(group: Group, state: State, parameter: Tensor) -> Rate:
    name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    return float(group["lr"]), _inverse_root(group, state, parameter, name)


def _adam_monotone(group: Group, state: State, parameter: Tensor) -> Rate:
    return float(group["lr"]), _inverse_root(group, state, parameter, "maximum", corrected=False)


def _adabelief(group: Group, state: State, parameter: Tensor) -> Rate:
    return float(group["lr"]), _inverse_root(group, state, parameter, "deviation")


def _yogi(group: Group, state: State, parameter: Tensor) -> Rate:
    return float(group["lr"]), _inverse_root(group, state, parameter, "square", corrected=False)


def _radam(group: Group, state: State, parameter: Tensor) -> Rate:
    beta2, step = group["betas"][1], float(state.get("step", 0))
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / (1 - beta2**step) if step else 0.0
    if length <= RECTIFIED_FROM:
        return float(group["lr"]), torch.ones_like(parameter)
    now = (length - 4) * (length - 2) * longest
    rectified = math.sqrt(now / ((longest - 4) * (longest - 2) * length))
    root = state["exp_avg_sq"].sqrt() + group["eps"]
    return float(group["lr"]), rectified * math.sqrt(1 - beta2**step) / root


def _adamax(group: Group, state: State, parameter: Tensor) -> Rate:
    norm = state.get("exp_inf")
    scale = torch.ones_like(parameter) if norm is None else 1 / norm
    return float(group["lr"]), scale


def _rmsprop(group: Group, state: State, parameter: Tensor) -> Rate:
    rate = float(group["lr"]) / (1 - group["momentum"])
    if "square_avg" not in state:
        return rate, torch.ones_like(parameter)
    square = state["square_avg"]
    if group["centered"]:
        square = square - state["grad_avg"].square()
    return rate, 1 / (square.clamp(min=0).sqrt() + group["eps"])


def _adagrad(group: Group, state: State, _: Tensor) -> Rate:
    steps = float(state.get("step", 0))
    rate = float(group["lr"]) / (1 + steps * group["lr_decay"])
    return rate, 1 / (state["sum"].sqrt() + group["eps"])


def _adadelta(group: Group, state: State, parameter: Tensor) -> Rate:
    if "square_avg" not in state:
        return float(group["lr"]), torch.ones_like(parameter)
    root = (state["acc_delta"] + group["eps"]).sqrt() / (state["square_avg"] + group["eps"]).sqrt()
    return float(group["lr"]), root


def _inverse_root(
    group: Group, state: State, parameter: Tensor, name: str, *, corrected: bool = True
) -> Tensor:
    """1 / (√v̂ + ϵ), or without the bias correction of v."""
    if name not in state:
        return torch.ones_like(parameter)
    square = state[name]
    if corrected:
        square = square / (1 - group["betas"][1] ** float(state["step"]))
    scale: Tensor = 1 / (square.sqrt() + group["eps"])
    return scale


RULES: dict[type[Optimizer], Rule] = {
    SGD: _sgd, MomentumEMA: _plain, Adam: _adam, AdamW: _adam, NAdam: _adam, RAdam: _radam,
    Adamax: _adamax, RMSprop: _rmsprop, Adagrad: _adagrad, Adadelta: _adadelta,
    AdamMonotone: _adam_monotone, AdaBelief: _adabelief, Yogi: _yogi,
}  # fmt: skip
