"""The paper's optimizers that torch does not have."""

from cbs_lightning.optim.adam_monotone import AdamMonotone
from cbs_lightning.optim.momentum_ema import MomentumEMA

__all__ = ["AdamMonotone", "MomentumEMA"]
