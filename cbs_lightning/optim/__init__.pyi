from .adam_monotone import AdamMonotone as AdamMonotone
from .momentum_ema import MomentumEMA as MomentumEMA
