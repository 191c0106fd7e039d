"""Parameter groups by rule, and the one place where an optimizer meets its parameters."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cbs_lightning.errors import ConfigError

if TYPE_CHECKING:  # the keys are known without torch
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

KEY = "groups"  # of an optimizer's settings
CONDITIONS = ("name", "min_dim", "max_dim", "hidden")
WEIGHT = (
    "weight"  # in the own name of a layer's weight, such as weight, in_proj_weight, weight_ih_l0
)
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
    factory: Factory | GroupedFactory, module: "Module", *, frozen: bool = False
) -> "Optimizer":
    """The optimizer of a module's parameters, in groups where it has rules for them.

    Args:
        factory: takes parameters, as a torch optimizer's class does; or has rules for groups.
        module: its parameters are taken in its order.
        frozen: whether the optimizer also gets the parameters that need no gradient.

    Returns:
        The optimizer. A parameter is in the first group whose conditions it meets. One that meets
        none is in the group without conditions or, where there is none, in a last one with the
        optimizer's own settings.

    Raises:
        ConfigError: for a group with conditions that no parameter is left for, and for parameters
            that the optimizer does not take.

    Example:
        >>> import torch
        >>> from cbs_lightning.optim.groups import GroupedFactory, make_optimizer
        >>> rules = {"vectors": {"max_dim": 1, "weight_decay": 0.0}}
        >>> factory = GroupedFactory(torch.optim.AdamW, rules)
        >>> optimizer = make_optimizer(factory, torch.nn.Linear(3, 2))
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.0), (1, 0.01)]
    """
    named = [each for each in module.named_parameters() if frozen or each[1].requires_grad]
    if not isinstance(factory, GroupedFactory):
        try:
            return factory([parameter for _, parameter in named])
        except ValueError as error:
            name = getattr(factory, "func", factory).__name__  # of a partial
            raise ConfigError("optimizer", name, " ".join(str(error).split())) from error
    members = _members(named, factory.groups, hidden_weights(module))
    groups = {
        name: {"params": [parameter for _, parameter in own], **_settings(factory.groups, name)}
        for name, own in members.items()
    }
    try:
        return factory.factory(list(groups.values()))
    except ValueError:
        for name, group in groups.items():
            _require_taken(factory, name, group)
        raise


def with_real_betas(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as torch's optimizers take them, who refuse a beta of 0 beside one of 0.999."""
    betas = settings.get("betas")
    real = {"betas": [float(beta) for beta in betas]} if betas is not None else {}
    return {**settings, **real}


def takes_any_shape(factory: Factory) -> bool:
    """Whether an optimizer takes parameters of any shape, so that no net has any it refuses."""
    import torch

    shapes = ((), (3,), (2, 3), (2, 3, 4), (2, 3, 1, 1), (2, 3, 1, 1, 1))
    try:
        factory([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
    except Exception:  # then the net decides
        return False
    return True


def hidden_weights(module: "Module") -> set["Parameter"]:
    """The weights of layers between the first and the last.

    A weight is a parameter of two dimensions or more with `weight` in its own name, as layers of
    torch's have them; a class token or a table of positions is none. Those of embeddings and norms
    are not hidden, and neither are the first and the last of all, frozen and tied ones included.
    """
    from torch import nn

    outer = {
        parameter
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag | nn.LayerNorm | nn.RMSNorm)
        for parameter in layer.parameters(recurse=False)
    }
    weights = [
        parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.ndim >= 2 and WEIGHT in name.rpartition(".")[2]
    ]
    return {*weights} - outer - {*weights[:1], *weights[-1:]}


def _members(
    named: Named, groups: Mapping[str, Mapping[str, Any]], hidden: set["Parameter"]
) -> dict[str, Named]:
    """The parameters of each group that has some; those left over by the name ""."""
    left = list(named)
    found: dict[str, Named] = {}
    for group, rule in sorted(groups.items(), key=lambda item: not conditions_of(item[1])):
        conditions = conditions_of(rule)
        members = [each for each in left if _meets(*each, conditions, hidden)]
        if conditions and not members:
            raise ConfigError(f"optimizer.{KEY}.{group}", conditions, _nothing_left(left))
        left = [each for each in left if each not in members]
        if members:
            found[group] = members
    if left:
        found[""] = left
    return found


def _settings(groups: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {key: value for key, value in groups.get(name, {}).items() if key not in CONDITIONS}


def _require_taken(factory: GroupedFactory, name: str, group: dict[str, Any]) -> None:
    """Raise `ConfigError` if this group alone is refused."""
    try:
        factory.factory([group])
    except ValueError as error:
        if name:
            raise ConfigError(
                f"optimizer.{KEY}.{name}", factory.groups[name], str(error)
            ) from error
        reason = f"{error}; it is in none of these groups, so that a further one has to take it"
        raise ConfigError(f"optimizer.{KEY}", ", ".join(factory.groups), reason) from error


def conditions_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a group; without any, it takes what no other group does."""
    return {key: rule[key] for key in CONDITIONS if rule.get(key) is not None}


def _meets(
    name: str, parameter: "Parameter", conditions: Mapping[str, Any], hidden: set["Parameter"]
) -> bool:
    return (
        re.search(conditions.get("name", ""), name) is not None
        and conditions.get("min_dim", 0) <= parameter.ndim
        and parameter.ndim <= conditions.get("max_dim", parameter.ndim)
        and not (conditions.get("hidden") and parameter not in hidden)
    )


def _nothing_left(left: Named) -> str:
    shown = [f"{name} {tuple(parameter.shape)}" for name, parameter in left[:MOST_SHOWN]]
    more = f" and {len(left) - MOST_SHOWN} more" if len(left) > MOST_SHOWN else ""
    there_are = f"there are {', '.join(shown)}{more}" if shown else "there is none left"
    return f"no parameter of the net meets these conditions; {there_are}"
