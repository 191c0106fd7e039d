"""How an optimizer's settings move with the batch size: published rules, by one factor each.

kappa is the batch size over the reference batch size, at which the settings are as given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cbs_lightning.errors import ConfigError, require
from cbs_lightning.optim.groups import KEY
from cbs_lightning.optim.learning_rate import Scaling


class ScalingRule(StrEnum):
    """Of the learning rate, the betas and eps together."""

    NONE = "none"
    SQRT_SDE = "sqrt_sde"  # Malladi et al. (2022), arXiv:2205.10287
    HALF_LIFE = "half_life"  # Marek et al. (2025), arXiv:2507.07101: beta2's, in samples, stays
    LINEAR = "linear"  # Goyal et al. (2017), arXiv:1706.02677


class DecayScaling(StrEnum):
    """Of the weight decay."""

    NONE = "none"
    SQRT = "sqrt"
    LINEAR = "linear"


ROUNDING = 1e-9
SETS_LR = (ScalingRule.SQRT_SDE, ScalingRule.LINEAR)
NEEDED = {ScalingRule.SQRT_SDE: ("betas", "eps"), ScalingRule.HALF_LIFE: ("betas",)}


@dataclass(frozen=True)
class BatchSizeRules:
    """What moves with the batch size, and where it is as given."""

    lr_scaling: Scaling
    scaling_rule: ScalingRule
    weight_decay_scaling: DecayScaling
    reference_batch_size: int

    @property
    def any(self) -> bool:
        """Whether anything does."""
        rules = (self.lr_scaling, self.scaling_rule, self.weight_decay_scaling)
        return any(rule != "none" for rule in rules)

    def check(self, optimizer: str, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for rules that contradict each other, or that an optimizer with
        these settings has nothing for."""
        rule, key = self.scaling_rule, "scaling_rule"
        if rule in SETS_LR:
            allowed = f"sets the learning rate, as lr_scaling={self.lr_scaling} does; set one"
            require(self.lr_scaling is Scaling.NONE, key, rule, f"{allowed} of them to none")
        if missing := _missing(rule, settings):
            allowed = " and ".join(f"optimizer.{name}" for name in NEEDED[rule])
            reason = f"needs {allowed}, and {optimizer} has {_where(missing, settings)}"
            others = [each for each in ScalingRule if not _missing(each, settings)]
            raise ConfigError(key, rule, f"{reason}; allowed with it: {', '.join(sorted(others))}")
        if self.weight_decay_scaling is not DecayScaling.NONE:
            _check_decays(self.weight_decay_scaling, optimizer, settings)

    def scaled(
        self, settings: Mapping[str, Any], batch_size: int, data_size: int
    ) -> dict[str, Any]:
        """An optimizer's settings at this batch size, also those of its parameter groups.

        The rules go by the effective batch size, at most `data_size`. Raises `ConfigError` for a
        batch size that the rule has no values for.
        """
        effective = min(batch_size, data_size)
        groups = settings.get(KEY, {})
        for each in (settings, *groups.values()):
            self._check_range(each.get("betas", []), batch_size, effective)
        scaled = self._scaled(settings, effective)
        if groups:
            scaled[KEY] = {name: self._scaled(group, effective) for name, group in groups.items()}
        return scaled

    def _scaled(self, settings: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
        kappa = batch_size / self.reference_batch_size
        scaled = dict(settings)
        if "lr" in settings:
            scaled["lr"] = settings["lr"] * self._lr_factor(kappa)
        if "betas" in settings:
            scaled["betas"] = self._betas(settings["betas"], batch_size)
        if "eps" in settings and self.scaling_rule is ScalingRule.SQRT_SDE:
            scaled["eps"] = settings["eps"] / math.sqrt(kappa)
        if "weight_decay" in settings:
            factors = {DecayScaling.SQRT: math.sqrt(kappa), DecayScaling.LINEAR: kappa}
            factor = factors.get(self.weight_decay_scaling, 1)
            scaled["weight_decay"] = settings["weight_decay"] * factor
        return scaled

    def _lr_factor(self, kappa: float) -> float:
        if self.lr_scaling == Scaling.SQRT or self.scaling_rule is ScalingRule.SQRT_SDE:
            return math.sqrt(kappa)
        linear = self.lr_scaling == Scaling.LINEAR or self.scaling_rule is ScalingRule.LINEAR
        return kappa if linear else 1

    def _betas(self, betas: list[float], batch_size: int) -> list[float]:
        kappa = batch_size / self.reference_batch_size
        if self.scaling_rule is ScalingRule.HALF_LIFE:
            return [betas[0], betas[1] ** kappa]
        if self.scaling_rule is not ScalingRule.SQRT_SDE:
            return betas
        return [1 - kappa * (1 - beta) for beta in betas]

    def _check_range(self, betas: list[float], batch_size: int, effective: int) -> None:
        if self.scaling_rule is not ScalingRule.SQRT_SDE or self._bears(betas, effective):
            return
        largest = math.ceil(self.reference_batch_size / (1 - min(betas)))
        while largest > 1 and not self._bears(betas, largest):
            largest -= 1
        reason = f"with betas {betas} at b = {self.reference_batch_size}"
        allowed = f"sqrt_sde has no betas for it {reason}; the largest allowed is {largest}"
        raise ConfigError("batch_size", batch_size, allowed)

    def _bears(self, betas: list[float], batch_size: int) -> bool:
        """Whether kappa (1 - beta) < 1, but for rounding; what is given is never out of range."""
        reference = self.reference_batch_size
        limit = reference * (1 - ROUNDING)
        return batch_size <= reference or all(batch_size * (1 - beta) < limit for beta in betas)


def _missing(rule: ScalingRule, settings: Mapping[str, Any]) -> list[str]:
    """What the rule needs and an optimizer does not have.

    `sqrt_sde` is about all of an optimizer. `half_life` moves what has betas, if only a group.
    """
    if rule is ScalingRule.HALF_LIFE and _have("betas", settings):
        return []
    return [name for name in NEEDED.get(rule, ()) if name not in settings]


def _check_decays(scaling: DecayScaling, optimizer: str, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where there is no weight decay to scale."""
    key = "weight_decay_scaling"
    allowed = f"{optimizer} has no optimizer.weight_decay; allowed with it: none"
    require(_have("weight_decay", settings), key, scaling, allowed)
    decays = any(each.get("weight_decay") for each in (settings, *settings.get(KEY, {}).values()))
    allowed = "there is none to scale: set optimizer.weight_decay above 0; allowed without: none"
    require(decays, key, scaling, allowed)


def _where(missing: list[str], settings: Mapping[str, Any]) -> str:
    groups = settings.get(KEY, {})
    found = {name: [f"{KEY}.{each}" for each in groups if name in groups[each]] for name in missing}
    return " and ".join(
        f"{name} only in {', '.join(own)}" if own else f"no {name}" for name, own in found.items()
    )


def _have(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether the optimizer or one of its groups has this setting."""
    return any(name in each for each in (settings, *settings.get(KEY, {}).values()))
