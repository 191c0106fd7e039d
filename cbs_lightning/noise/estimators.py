"""b* from the probes of one run: every estimator is one function, and none has a fitted constant.

G, Σ, P, H and η are as in `Probe`. A step with a batch of b samples lowers the loss by a - c/b.
"""

import math
from collections.abc import Callable

import numpy as np

from cbs_lightning.noise.course import Course, Floats, NoPredictionError

Estimator = Callable[[Course], float]

SIGN = 4.0  # of sign descent, K = A/(1 - √(B₀/b))²: the least K·b is at 4B₀
STEPS_OF_SEARCH = 400  # of log b, for a minimum without a formula
LARGEST = 1e3  # times the pole, up to which a minimum of K·b is looked for


def noise_level(course: Course) -> float:
    """Where the noise of steps makes up s/(1+s) of the loss, if that falls like k^-s without it.

    Steps with b samples keep the loss above that of steps without noise by N/b, N = η tr(PΣ)/4:
    in a direction with curvature λ, noise adds ½η²λ(PΣ)/b a step and a share 2ηλ of what there is
    goes, which are equal at η(PΣ)/4b whatever λ. With R = N/loss at the threshold and the loss
    without noise falling like k^-s there, K(b) ~ (1 - R/b)^(-1/s), so that K·b is least at
    b = R(1 + 1/s). That holds whether N stays as it is or falls with the loss.

    s is the run's own, of which noise made up a share φ = R/b: where N ~ loss^p, the loss without
    noise falls with s(1 - pφ)/(1 - φ). A share above 1 cannot be: not all noise is in directions
    that settle. Then R is at least the run's b and at most what was measured; their geometric mean
    is taken.
    """
    share, falling = noise_share(course), decay(course)
    if share >= 1:
        return course.batch_size * math.sqrt(share)
    without_noise = falling * (1 - _power(course) * share) / (1 - share)
    return share * course.batch_size * (1 + 1 / without_noise)


def noise_share(course: Course) -> float:
    """φ: what part of the loss at the threshold noise would make up, in the run's own steps.

    Probes near the threshold are mostly above it: N is taken from their loss to it by its power.
    """
    level = course.at_threshold(_levels(course) / course.loss ** _power(course), "tr PΣ")
    return level * float(course.threshold ** (_power(course) - 1)) / course.batch_size


def _power(course: Course) -> float:
    """p: N ~ loss^p at the threshold; 0 where the noise stays, 1 where it falls with the loss."""
    found = course.slope(_levels(course), course.loss)
    return min(max(found, 0.0), 1.0) if math.isfinite(found) else 1.0


def decay(course: Course) -> float:
    """s: the loss falls like k^-s at the threshold."""
    steps = np.array([each.step for each in course.probes], float)
    found = -course.slope(course.loss, steps)
    if not found > 0:
        raise NoPredictionError("the loss does not fall from probe to probe")
    return found


def _levels(course: Course) -> Floats:
    return course.values("step_noise", "tr PΣ") / 4


def one_step_trial(course: Course) -> float:
    """2Σc/Σa over the run, by trial steps: exact where c/a is constant (the paper's form)."""
    return _ratio(course, "trial")


def one_step_hvp(course: Course) -> float:
    """2Σc/Σa over the run, by Hessian-vector products."""
    return _ratio(course, "hvp")


def own_steps(course: Course) -> float:
    """2Σc/Σa over the run, by the optimizer's own steps: a has momentum's average of gradients."""
    return _ratio(course, "own")


def progress(course: Course) -> float:
    """2Σc/Σa over the run, where a is not a single step's: a - c/b is what the run itself gained.

    So a is averaged over all steps, momentum's included, and above 0 in any run whose loss fell;
    b* is then at most twice the run's b.
    """
    c = course.total("c_trial", "c")
    if c <= 0:
        raise NoPredictionError("c <= 0: noise would not raise the loss")
    gained = float(course.loss.max()) - course.threshold
    if gained <= 0:
        raise NoPredictionError("the loss was below the threshold at the first probe")
    return 2 * c / (gained + c / course.batch_size)


def _ratio(course: Course, way: str) -> float:
    a, c = (course.total(f"{name}_{way}", name) for name in "ac")
    if a <= 0:
        raise NoPredictionError("a <= 0: a step of the full gradient would not lower the loss")
    if c <= 0:
        raise NoPredictionError("c <= 0: noise would not raise the loss")
    return 2 * c / a


def integral_trial(course: Course) -> float:
    """The least K·b of K(b) = Σ over levels of the loss ΔL/(a - c/b), by trial steps.

    That lets c/a change along the run; a and c belong to the loss, whatever b.
    """
    return _integral(course, "trial")


def integral_hvp(course: Course) -> float:
    """The same by Hessian-vector products."""
    return _integral(course, "hvp")


def _integral(course: Course, way: str) -> float:
    above = course.stood_for > 0
    a, c = (course.values(f"{name}_{way}", name)[above] for name in "ac")
    if not len(a) or (a <= 0).any():
        raise NoPredictionError("a <= 0: a step of the full gradient would not lower the loss")
    pole = float((c / a).max())
    if pole <= 0:
        raise NoPredictionError("c <= 0: noise would not raise the loss")
    # Probes are evenly spaced in log loss, so that each has a part of the fall like its own loss.
    falls = course.loss[above]
    sizes = pole * (1 + np.geomspace(1e-3, LARGEST, STEPS_OF_SEARCH))
    sfo = (falls * sizes[:, None] / (a - c / sizes[:, None])).sum(1)
    return float(sizes[np.argmin(sfo)])


def sign_descent(course: Course) -> float:
    """Four times the ℓ₁ noise scale at the threshold: exact for sign descent on even curvature."""
    scales = course.values("l1_noise_scale", "the ℓ₁ noise scale")
    return SIGN * course.at_threshold(scales, "the ℓ₁ noise scale")


def b_simple(course: Course) -> float:
    """Σ tr Σ / Σ |G|² over the run, the gradient noise scale of McCandlish et al. (2018)."""
    return _scale(course, "noise_trace", "gradient_norm2")


def metric_b_simple(course: Course) -> float:
    """The same in the optimizer's metric, tr PΣ / GᵀPG."""
    return _scale(course, "preconditioned_noise_trace", "metric_gradient_norm2")


def _scale(course: Course, noise: str, signal: str) -> float:
    gradient = course.total(signal, "the gradient's norm")
    if gradient <= 0:
        raise NoPredictionError("the gradient's norm is too small to be told from noise")
    found = course.total(noise, "the noise") / gradient
    if found <= 0:
        raise NoPredictionError("no noise was measured")
    return found


def capped_noise_level(course: Course) -> float:
    """The noise level's b*, at most the gradient noise scale.

    B_simple is where larger batches stop to pay at the best learning rate. A smaller learning rate
    has a smaller b*; one that is too large has no larger one, though its noise level grows.
    """
    level = noise_level(course)
    try:
        return min(level, b_simple(course))
    except NoPredictionError:
        return level


ESTIMATORS: dict[str, Estimator] = {
    each.__name__: each
    for each in (
        capped_noise_level,
        noise_level,
        one_step_trial,
        one_step_hvp,
        own_steps,
        progress,
        integral_trial,
        integral_hvp,
        sign_descent,
        b_simple,
        metric_b_simple,
    )
}
OF_GRADIENTS = ("sign_descent", "b_simple", "metric_b_simple")  # whatever is made of them in steps
