"""Curves K(b) whose b* is known, drawn at random: what answers and searches are tried on."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
from scipy.optimize import minimize_scalar

from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic

Steps = Callable[[float], float]  # K at a batch size; infinite where it is never reached
Make = Callable[[np.random.Generator, list[float]], Steps]  # draws a curve for some batch sizes


def powers(rng: np.random.Generator) -> list[float]:
    first = int(rng.integers(2, 5))
    return [2.0**power for power in range(first, first + int(rng.integers(7, 13)))]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def least_cost(curve: Steps, sizes: list[float]) -> tuple[float | None, float] | None:
    """b* and the least K·b within the batch sizes; no b* where that is at an end of them.

    None where K rises with b somewhere: that is no curve of steps.
    """
    fine = np.geomspace(sizes[0], sizes[-1], 240)
    steps = [curve(b) for b in fine]
    if any(later > earlier for earlier, later in pairwise(steps)):
        return None
    place = int(np.argmin(steps * fine))
    if place in (0, len(fine) - 1):
        return None, steps[place] * fine[place]
    found = minimize_scalar(
        lambda log_b: curve(math.exp(log_b)) * math.exp(log_b),
        bounds=(math.log(fine[place - 1]), math.log(fine[place + 1])),
        method="bounded",
    )
    return math.exp(found.x), min(float(found.fun), steps[place] * fine[place])


def family_curve(rng: np.random.Generator, sizes: list[float], pole: bool) -> Steps:
    """K = A·(1 + (B/b)^p)^(1/p)·(1 - B0/b)^-r."""
    p, r = float(rng.choice([0.5, 1.0, 2.0, 3.0])), float(rng.choice([0.5, 1.0, 2.0]))
    B = log_uniform(rng, sizes[0], sizes[-1])
    B0 = log_uniform(rng, sizes[0], sizes[-1]) if pole else 0.0
    A = 10 ** rng.uniform(2, 4)

    def steps(b: float) -> float:
        if b <= B0:
            return math.inf
        return float(A * (1 + (B / b) ** p) ** (1 / p) * (1 - B0 / b) ** -r)

    return steps


def nested_curve(rng: np.random.Generator, sizes: list[float]) -> Steps:
    B0 = log_uniform(rng, sizes[0] / 4, sizes[0] * 8)
    B1 = B0 * log_uniform(rng, 0.5, 500.0)
    A = 10 ** rng.uniform(2, 4)
    return lambda b: A * (b + B1) / (b - B0) if b > B0 else math.inf


def dip_curve(rng: np.random.Generator, sizes: list[float], depth: float = 1.0) -> Steps:
    """K·b on a plateau, then lower (or, with a negative depth, higher), then rising with b."""
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    middle, width = rng.uniform(first + 0.5, last - 1.5), rng.uniform(0.35, 1.0)
    drop, end = depth * rng.uniform(0.2, 0.7), middle + rng.uniform(0.5, 2.5)
    scale = 10 ** rng.uniform(6, 7)

    def steps(b: float) -> float:
        x = math.log(b)
        dip = math.exp(-drop / (1 + math.exp((middle - x) / width)))
        return float(scale / b * dip * (1 + math.exp((x - end) / 0.6)) ** 0.6)

    return steps


def quadratic_curve(rng: np.random.Generator, sizes: list[float]) -> Steps:
    spectrum = np.arange(1.0, rng.integers(20, 400)) ** -rng.uniform(0.5, 2.0)
    model = NoisyQuadratic(spectrum, 10 ** rng.uniform(-1.5, -0.3))
    threshold = model.loss(0, math.inf) * 10 ** rng.uniform(-2, -1)
    wanted = log_uniform(rng, sizes[0], sizes[-1])
    louder = NoisyQuadratic(
        spectrum, model.lr, wanted / model.critical_batch(threshold) * spectrum
    )  # K depends on noise/b alone
    return lambda b: (
        louder.steps(b, threshold) or math.inf if b > louder.pole(threshold) else math.inf
    )


def bumpy_curve(rng: np.random.Generator, sizes: list[float], pole: bool) -> Steps:
    """The wide family with any p and r, times a smooth bump or dip of up to 40 %."""
    p, r = log_uniform(rng, 0.5, 3.0), log_uniform(rng, 0.4, 2.5)
    B = log_uniform(rng, sizes[0], sizes[-1])
    B0 = log_uniform(rng, sizes[0], sizes[-1]) if pole else 0.0
    height = rng.uniform(-0.35, 0.35)
    middle = rng.uniform(math.log2(sizes[0]), math.log2(sizes[-1]))
    width, A = rng.uniform(0.7, 2.0), 10 ** rng.uniform(2, 4)

    def steps(b: float) -> float:
        if b <= B0:
            return math.inf
        bump = math.exp(height * math.exp(-0.5 * ((math.log2(b) - middle) / width) ** 2))
        return float(A * (1 + (B / b) ** p) ** (1 / p) * (1 - B0 / b) ** -r * bump)

    return steps


def wider_curve(rng: np.random.Generator, sizes: list[float]) -> Steps:
    """The wide family with p and r anywhere in a wider span."""
    p, r = log_uniform(rng, 0.4, 4.0), log_uniform(rng, 0.3, 3.0)
    B = log_uniform(rng, sizes[0] / 2, sizes[-1] * 2)
    B0 = log_uniform(rng, sizes[0] / 2, sizes[-1] / 4)
    A = 10 ** rng.uniform(1.5, 4.5)
    return lambda b: A * (1 + (B / b) ** p) ** (1 / p) * (1 - B0 / b) ** -r if b > B0 else math.inf


def sign_curve(rng: np.random.Generator, sizes: list[float]) -> Steps:
    """K = A/(1 - √(B0/b))², of sign descent."""
    B0 = log_uniform(rng, sizes[0] / 4, sizes[-1] / 8)
    A = 10 ** rng.uniform(2, 4)
    return lambda b: A / (1 - math.sqrt(B0 / b)) ** 2 if b > B0 else math.inf


def power_curve(rng: np.random.Generator, sizes: list[float], least: float, most: float) -> Steps:
    """K = A·(1 + (B/b)^a): K·b has a minimum where a is above 1."""
    a = rng.uniform(least, most)
    B = log_uniform(rng, sizes[0], sizes[-1])
    A = 10 ** rng.uniform(2, 4)
    return lambda b: A * (1 + (B / b) ** a)


# By name, and whether K·b is to have a minimum inside the batch sizes.
CURVES: dict[str, tuple[Make, bool]] = {
    "family": (partial(family_curve, pole=True), True),
    "without a pole": (partial(family_curve, pole=False), False),
    "noisy quadratic": (quadratic_curve, True),
    "nested": (nested_curve, True),
    "plateau, dip, rise": (dip_curve, True),
    "two plateaus, rise": (partial(dip_curve, depth=-1.0), False),
}
# Thought of after everything in the package was chosen, and looked at once.
UNSEEN: dict[str, tuple[Make, bool]] = {
    "any p and r": (wider_curve, True),
    "a bump": (partial(bumpy_curve, pole=True), True),
    "a bump makes the minimum": (partial(bumpy_curve, pole=False), True),
    "a bump, no minimum": (partial(bumpy_curve, pole=False), False),
    "sign descent": (sign_curve, True),
    "power law and floor": (partial(power_curve, least=1.02, most=1.5), True),
    "power law and floor, no minimum": (partial(power_curve, least=0.5, most=1.0), False),
}
