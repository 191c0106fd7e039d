"""The learning rate: how it moves with the batch size, and how it warms up."""

import math
from enum import StrEnum


class Scaling(StrEnum):
    """How the learning rate moves with the batch size."""

    NONE = "none"
    SQRT = "sqrt"
    LINEAR = "linear"
    TUNED = "tuned"  # the best of those that a sweep tries at each batch size


def scaled_rate(lr: float, scaling: Scaling, batch_size: int, reference_batch_size: int) -> float:
    """`lr` is the rate at the reference batch size."""
    ratio = batch_size / reference_batch_size
    factors = {Scaling.SQRT: math.sqrt(ratio), Scaling.LINEAR: ratio}
    return lr * factors[scaling] if scaling in factors else lr


def warmup_factor(samples: int, warmup_samples: int) -> float:
    """Learning-rate factor of the step that brings the total to `samples`."""
    return min(1.0, samples / warmup_samples)
