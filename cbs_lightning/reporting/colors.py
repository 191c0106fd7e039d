"""One colour per optimizer, in every figure and in the report; its variants differ by marks."""

from collections.abc import Iterable
from itertools import count, cycle

# Okabe and Ito's colours, which the colour-blind can tell apart; one per optimizer, everywhere.
COLORS = {
    "sgd": "#0072B2",
    "momentum": "#D55E00",
    "adam": "#009E73",
    "momentum_ema": "#E69F00",
    "amsgrad": "#56B4E9",
    "adam_monotone": "#CC79A7",
    "adamw": "#000000",
}
OTHER_COLORS = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#661100")  # Paul Tol's


def colors_of(optimizers: Iterable[str]) -> dict[str, str]:
    """Colours by optimizer; those without one of their own take the other colours in turn."""
    others = sorted(set(optimizers) - COLORS.keys())
    return COLORS | dict(zip(others, cycle(OTHER_COLORS), strict=False))


def marks_of(variants: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Number the variants of each optimizer; given pairs of variant and optimizer."""
    numbers: dict[str, count[int]] = {}
    return {
        variant: next(numbers.setdefault(optimizer, count())) for variant, optimizer in variants
    }
