"""The learning rate that probes say is best for one step, at any batch size."""

from cbs_lightning.noise.course import Course, NoPredictionError
from cbs_lightning.noise.record import NoiseRecord


def best_rate(record: NoiseRecord, batch_size: int, threshold: float | None = None) -> float | None:
    """η* = GᵀPG/(GᵀPHPG + tr(PHPΣ)/b), as `lr` of the optimizer; None: the probes do not say.

    All three are sums over the run's steps to the threshold, by trial steps: with a step of η,
    GᵀPHPG = 2(ηGᵀPG - a)/η² and tr(PHPΣ) = 2c/η².
    """
    try:
        course = Course.of(record, threshold)
        a, c = (course.total(f"{name}_trial", name) for name in "ac")
        slopes = course.values("eta", "η") * course.values("metric_gradient_norm2", "GᵀPG")
    except NoPredictionError:
        return None
    slope = float((slopes * course.stood_for).sum())
    curvature = 2 * (slope - a) + 2 * c / batch_size
    if record.lr is None or slope <= 0 or curvature <= 0:
        return None
    return record.lr * slope / curvature


def overshoots(record: NoiseRecord, threshold: float | None = None) -> bool | None:
    """Whether single steps of the full gradient would raise the loss, in the sum over the run."""
    try:
        return Course.of(record, threshold).total("a_trial", "a") <= 0
    except NoPredictionError:
        return None
