"""The learning rate: how it moves with the batch size, and how it warms up."""

import math
from enum import StrEnum

from omegaconf import DictConfig


class Scaling(StrEnum):
    """How the learning rate moves with the batch size."""

    NONE = "none"
    SQRT = "sqrt"
    LINEAR = "linear"
    TUNED = "tuned"  # the best of those that a sweep tries at each batch size


def learning_rate(cfg: DictConfig, data_size: int) -> float:
    """The optimizer's, scaled by the effective batch size over the reference."""
    ratio = min(cfg.batch_size, data_size) / cfg.lr_reference_batch_size
    factors = {Scaling.SQRT: math.sqrt(ratio), Scaling.LINEAR: ratio}
    lr: float = cfg.optimizer.lr
    return lr * factors[cfg.lr_scaling] if cfg.lr_scaling in factors else lr


def told(cfg: DictConfig, data_size: int) -> str:
    """For people: the learning rate where it is not simply the optimizer's, else nothing."""
    words = []
    if cfg.lr_scaling != Scaling.NONE:
        given = f"{cfg.optimizer.lr:g} at b = {cfg.lr_reference_batch_size}"
        lr = learning_rate(cfg, data_size)
        words.append(f"learning rate {lr:g} by lr_scaling={cfg.lr_scaling}, {given}")
    if cfg.warmup_samples:
        words.append(f"learning rate rises over {cfg.warmup_samples:,} samples")
    return "; ".join(words)


def warmup_factor(samples: int, warmup_samples: int) -> float:
    """Of the step with which so many samples have been seen."""
    return min(1.0, samples / warmup_samples)
