"""Checks that an optimizer can be built with its settings and those of its parameter groups."""

import inspect
import re
from typing import Any

import torch
from hydra.utils import get_object, instantiate

from cbs_lightning.config.constraints import Flag, Positive, Whole, is_number, one_of
from cbs_lightning.config.plain_checks import check_optimizer_values
from cbs_lightning.config.schema import Settings
from cbs_lightning.errors import ConfigError, require
from cbs_lightning.optim.groups import CONDITIONS, KEY, conditions_of, with_real_betas

NEEDS_CLOSURE = "needs several losses per step (a closure); choose one that needs a single loss"


def check_optimizer(optimizer: Settings, name: str) -> None:
    """Raise `ConfigError` for the first setting that its class refuses."""
    _check_numbers("optimizer", optimizer, optimizer["_target_"])
    groups = optimizer.get(KEY, {})
    _check_groups(groups, optimizer["_target_"])
    own = {key: value for key, value in with_real_betas(optimizer).items() if key != KEY}
    settings = [
        {k: v for k, v in with_real_betas(group).items() if k not in CONDITIONS}
        for group in groups.values()
    ]
    try:
        made = instantiate(own, _convert_="all")(
            [
                {"params": [torch.nn.Parameter(torch.zeros(2, 2))], **each}
                for each in settings or [{}]
            ]
        )
    except Exception as error:  # whatever an optimizer's own checks raise is the user's to mend
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("optimizer", name, reason) from error
    # A step to try it would open the GPU, in a process that may be a sweep's.
    closure = inspect.signature(made.step).parameters.get("closure")
    once = closure is None or closure.default is not inspect.Parameter.empty
    require(once, "optimizer", name, NEEDS_CLOSURE)
    dense = not isinstance(made, torch.optim.SparseAdam)
    require(dense, "optimizer", name, "needs sparse gradients; those of nets here are dense")


def _check_numbers(prefix: str, settings: Settings, target: str) -> None:
    """Numeric settings must be numbers, which not every optimizer checks itself."""
    for name, parameter in inspect.signature(get_object(target)).parameters.items():
        default = parameter.default
        if name in settings and isinstance(default, int | float) and not isinstance(default, bool):
            value = settings[name]
            require(is_number(value), f"{prefix}.{name}", value, "must be a number")


def _check_groups(groups: Any, target: str) -> None:
    mapping = "must be a group of keys: a name, and conditions and settings for it"
    require(isinstance(groups, dict), f"optimizer.{KEY}", groups, mapping)
    allowed = set(inspect.signature(get_object(target)).parameters) - {"params"} | {*CONDITIONS}
    for name, rule in groups.items():
        prefix = f"optimizer.{KEY}.{name}"
        require(isinstance(rule, dict), prefix, rule, "must be a group of keys")
        for key in rule:
            require(key in allowed, f"{prefix}.{key}", rule[key], one_of(allowed))
        _check_conditions(prefix, rule)
        if "lr" in rule:
            Positive().check(f"{prefix}.lr", rule["lr"])
        check_optimizer_values(prefix, rule)
        _check_numbers(prefix, rule, target)
    first, *others = [name for name, rule in groups.items() if not conditions_of(rule)] or [None]
    for name in others:
        reason = f"has no conditions, and neither has {first}, which takes every parameter left"
        raise ConfigError(f"optimizer.{KEY}.{name}", groups[name], reason)


def _check_conditions(prefix: str, rule: Settings) -> None:
    for key in ("min_dim", "max_dim"):
        Whole(0, others=(None,)).check(f"{prefix}.{key}", rule.get(key))
    Flag().check(f"{prefix}.hidden", rule.get("hidden", False))
    pattern = rule.get("name")
    try:
        re.compile(pattern or "")
    except (re.error, TypeError) as error:
        reason = f"must be a regular expression, found in a parameter's name ({error})"
        raise ConfigError(f"{prefix}.name", pattern, reason) from error
