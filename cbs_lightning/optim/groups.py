"""Parameter groups by rule, and the one place where an optimizer meets its parameters."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cbs_lightning.errors import ConfigError

if TYPE_CHECKING:  # the keys are known without torch
    from torch.nn import Parameter
    from torch.optim import Optimizer

KEY = "groups"  # of an optimizer's settings
CONDITIONS = ("name", "min_dim", "max_dim", "hidden")
MOST_SHOWN = 4  # names of parameters, in a line

Factory = Callable[[Iterable[Any]], "Optimizer"]  # of parameters, or of parameter groups
Named = Sequence[tuple[str, "Parameter"]]


class GroupedFactory:
    """Makes an optimizer of parameter groups, each with settings of its own.

    Args:
        factory: takes parameter groups, as a torch optimizer's class does.
        groups: conditions and settings, by the group's name.
    """

    # No dataclass, which Hydra would take for a configuration.
    def __init__(self, factory: Factory, groups: Mapping[str, Mapping[str, Any]]) -> None:
        self.factory = factory
        self.groups = groups


def make_optimizer(
    factory: Factory | GroupedFactory, named_parameters: Iterable[tuple[str, "Parameter"]]
) -> "Optimizer":
    """The optimizer of a module's parameters, in groups where it has rules for them.

    Args:
        factory: takes parameters, as a torch optimizer's class does; or has rules for groups.
        named_parameters: the module's, in its order.

    Returns:
        The optimizer. A parameter is in the first group whose conditions it meets. One that meets
        none is in the group without conditions or, where there is none, in a last one with the
        optimizer's own settings.

    Raises:
        ConfigError: for a group with conditions that no parameter is left for.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim.groups import GroupedFactory, make_optimizer
        >>> net = torch.nn.Linear(3, 2)
        >>> rules = {"vectors": {"max_dim": 1, "weight_decay": 0.0}}
        >>> optimizer = make_optimizer(
        ...     GroupedFactory(torch.optim.AdamW, rules), net.named_parameters()
        ... )
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.0), (1, 0.01)]
    """
    named = list(named_parameters)
    if not isinstance(factory, GroupedFactory):
        return factory([parameter for _, parameter in named])
    return factory.factory(_grouped(named, factory.groups))


def _grouped(named: Named, groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    matrices = [name for name, parameter in named if parameter.ndim >= 2]
    outer = {*matrices[:1], *matrices[-1:]}
    left = list(named)
    found: list[dict[str, Any]] = []
    for group, rule in sorted(groups.items(), key=lambda item: not conditions_of(item[1])):
        conditions = conditions_of(rule)
        members = [each for each in left if _meets(*each, conditions, outer)]
        if conditions and not members:
            raise ConfigError(f"optimizer.{KEY}.{group}", conditions, _nothing_left(left))
        left = [each for each in left if each not in members]
        settings = {key: value for key, value in rule.items() if key not in CONDITIONS}
        if members:
            found.append({"params": [parameter for _, parameter in members], **settings})
    if left:
        found.append({"params": [parameter for _, parameter in left]})
    return found


def conditions_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a group; without any, it takes what no other group does."""
    return {key: rule[key] for key in CONDITIONS if rule.get(key) is not None}


def _meets(
    name: str, parameter: "Parameter", conditions: Mapping[str, Any], outer: set[str]
) -> bool:
    return (
        re.search(conditions.get("name", ""), name) is not None
        and conditions.get("min_dim", 0) <= parameter.ndim
        and parameter.ndim <= conditions.get("max_dim", parameter.ndim)
        and not (conditions.get("hidden") and (parameter.ndim < 2 or name in outer))
    )


def _nothing_left(left: Named) -> str:
    shown = [f"{name} {tuple(parameter.shape)}" for name, parameter in left[:MOST_SHOWN]]
    more = f" and {len(left) - MOST_SHOWN} more" if len(left) > MOST_SHOWN else ""
    there_are = f"there are {', '.join(shown)}{more}" if shown else "there is none left"
    return f"no parameter of the net meets these conditions; {there_are}"
