"""Theorem 3.1 with constants that were measured in a run.

θ is the run's final weights. Suprema are of the steps or probes at which they were looked
for, at most what the theorem means: the true bound is at least the one that is found here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cbs_lightning.noise.record import Probe
from cbs_lightning.theory import constants

# The theorem's own optimizers, by their names there and here.
OPTIMIZERS = {"sgd": "sgd", "momentum_ema": "momentum", "adam_monotone": "adam"}
INSTEAD = {  # of those whose steps it does not describe
    "momentum": ("momentum_ema", "its m is a mean of gradients, torch's a sum"),
    "adam": ("adam_monotone", "it needs second moments that never fall"),
    "adamw": ("adam_monotone", "it needs second moments that never fall, and no weight decay"),
    "amsgrad": ("adam_monotone", "torch's second moments fall with the bias correction"),
}


@dataclass(frozen=True)
class Suprema:
    """Over the steps of a run; second moments are Adam's."""

    dist: float = 0.0  # Dist(θ): the largest distance to θ
    theta1_dist2: float | None = None  # ‖θ₁ - θ‖²
    D: float = 0.0  # the largest square of a coordinate of θₖ - θ
    M: float = 0.0  # the largest square of a coordinate of a batch's gradient
    v_star: float | None = None  # the smallest second moment of a coordinate
    v_star_above_0: float | None = None  # the smallest of those that are not 0
    weights_at_0: int = 0  # the most second moments that were 0 after a step
    d: int = 0  # weights
    steps: int = 0  # at which these were looked for


@dataclass(frozen=True)
class Inner:
    """∇f(θₖ)ᵀ(θₖ - θ) at one probe, with its standard error."""

    value: float
    se: float | None


def theorem_of(
    optimizer: str,
    lr: float,
    hyperparameters: Mapping[str, Any],
    batch_size: int,
    probes: Sequence[Probe],
    suprema: Suprema,
    inner: Mapping[int, Inner],
) -> dict[str, Any]:
    """What `noise.json` has under `theorem`; `inner` is by the steps of probes.

    VI(K, θ) is the mean of the inner products, each as often as the steps its probe stands for: of
    this one run, where the theorem has an expectation.
    """
    used = [each for each in probes if each.step in inner]
    found: dict[str, Any] = {"theta": "the final weights", "steps": suprema.steps,
                             "batch_size": batch_size, "probes": len(used)}  # fmt: skip
    if not used:
        return found | {"reason": "no probe was made"}
    vi, vi_se = _mean([inner[each.step] for each in used], [each.steps for each in used])
    norms = [each.gradient_norm2 for each in used if each.gradient_norm2 is not None]
    noises = [each.noise_trace for each in used if each.noise_trace is not None]
    known = asdict(suprema) | {
        "sigma2": max(noises, default=0.0),
        "G": math.sqrt(max([0.0, *norms])),
    }
    del known["steps"]
    at_steps, at_probes = f"of {suprema.steps} steps", f"of {len(used)} probes, a lower bound"
    found |= known | {
        "vi": vi,
        "vi_se": vi_se,
        "looked_for": {
            name: at_probes if name in ("sigma2", "G") else at_steps
            for name, value in known.items()
            if value is not None and name not in ("d", "theta1_dist2", "weights_at_0")
        },
    }
    try:
        return found | _bound(optimizer, lr, hyperparameters, batch_size, known, vi, suprema.steps)
    except ValueError as error:
        return found | {"reason": f"no constants: {error}"}


def _bound(
    optimizer: str,
    lr: float,
    hyperparameters: Mapping[str, Any],
    batch_size: int,
    known: Mapping[str, Any],
    vi: float,
    steps: int,
) -> dict[str, Any]:
    name = OPTIMIZERS[optimizer]
    given = {key: known[key] for key in ("sigma2", "G", "dist")}
    if name == "adam":
        beta1, beta2 = hyperparameters["betas"]
        own = {key: known[key] for key in ("d", "D", "M")}
        # The bound is infinite where v_* is 0; any larger one bounds it from below.
        v_star = known["v_star"] or known["v_star_above_0"]
        given |= own | {"beta1": beta1, "beta2": beta2, "v_star": v_star}
    else:
        given["theta1_dist2"] = min(known["theta1_dist2"], known["dist"] ** 2)
        if name == "momentum":
            given["beta1"] = hyperparameters["momentum"]
    c = constants(name, lr=lr, **given)
    terms = {"c1/K": c.c1 / steps, "c2/b": c.c2 / batch_size, "c3": c.c3}
    bound = c.vi_bound(steps, batch_size)
    critical = c.critical_batch(vi) if vi > 0 else None
    reason = None
    if critical is None:
        reason = f"ε = VI = {vi:.3g} is not above C3 = {c.c3:.3g}"
    return {
        "c1": c.c1, "c2": c.c2, "c3": c.c3, "bound": bound, "terms": terms,
        "is_infinite": name == "adam" and not known["v_star"],
        "dominant": max(terms, key=lambda term: terms[term]),
        "bound_over_vi": bound / vi if vi > 0 else None,
        "dist_times_G": known["dist"] * known["G"],  # bounds VI already
        "critical_batch": critical,  # for ε = VI
        "reason": reason,
    }  # fmt: skip


def theorem_lines(theorem: Mapping[str, Any]) -> list[str]:
    """For the end of a run."""
    if "bound" not in theorem:
        return [f"Theorem 3.1: {theorem['reason']}"]
    error = f" ± {theorem['vi_se']:.2g}" if theorem["vi_se"] is not None else ""
    times = theorem["bound_over_vi"]
    ratio = f", {times:.3g} times as much" if times is not None else ""
    terms = " + ".join(f"{value:.3g} ({name})" for name, value in theorem["terms"].items())
    vi = f"VI(K, θ) = {theorem['vi']:.3g}{error}"
    infinite = ""
    if theorem["is_infinite"]:
        infinite = f"infinite, as {theorem['weights_at_0']} weights had no gradient yet; else "
    bound = f"{infinite}at least {theorem['bound']:.3g}{ratio}"
    first = f"Theorem 3.1: {vi}; its bound is {bound}: {terms}"
    if theorem["critical_batch"] is None:
        return [first, f"Theorem 3.1 gives no b*: {theorem['reason']}"]
    found = f"b* = {theorem['critical_batch']:.3g}"
    return [first, f"Theorem 3.1 gives {found} for ε = VI, which is not a loss threshold"]


def _mean(inner: Sequence[Inner], steps: Sequence[float]) -> tuple[float, float | None]:
    total = sum(steps) or 1.0
    mean = sum(each.value * weight for each, weight in zip(inner, steps, strict=True)) / total
    errors = [
        each.se * weight / total
        for each, weight in zip(inner, steps, strict=True)
        if each.se is not None
    ]
    return mean, math.hypot(*errors) if len(errors) == len(inner) else None
