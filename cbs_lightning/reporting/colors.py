"""A colour for each optimizer, similar within a family; marks distinguish its variants."""

from collections.abc import Iterable
from itertools import count, cycle

# A hue per family. The first of the large ones are Okabe and Ito's, which the colour-blind can
# tell apart.
FAMILIES = {
    "Without momentum": {
        "sgd": "#0072B2",
        "adagrad": "#56B4E9",
        "rmsprop": "#332288",
        "adafactor": "#44AA99",
    },
    "Momentum": {"momentum": "#D55E00", "momentum_ema": "#E69F00"},
    "Signs": {"signum": "#CC79A7", "lion": "#882255"},
    "Adam": {
        "adam": "#009E73",
        "amsgrad": "#7BC8A4",
        "adam_monotone": "#004D38",
        "adamw": "#5DB52B",
    },
    "Relatives of Adam": {
        "nadam": "#999933",
        "radam": "#6B5B00",
        "adabelief": "#C9B400",
        "yogi": "#B08D57",
    },
    "Matrices, averages": {"muon": "#000000", "soap": "#777777", "schedule_free": "#661100"},
}
OTHERS = "Others"
COLORS = {name: color for family in FAMILIES.values() for name, color in family.items()}
OTHER_COLORS = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#661100")  # Paul Tol's


def colors_of(optimizers: Iterable[str]) -> dict[str, str]:
    """Colours by optimizer; those without a fixed colour get the remaining ones in turn."""
    others = sorted(set(optimizers) - COLORS.keys())
    return COLORS | dict(zip(others, cycle(OTHER_COLORS), strict=False))


def family_of(optimizer: str) -> str:
    """The name of the optimizer's family."""
    return next((name for name, own in FAMILIES.items() if optimizer in own), OTHERS)


def marks_of(variants: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Number the variants of each family; given pairs of variant and optimizer."""
    numbers: dict[str, count[int]] = {}
    return {
        variant: next(numbers.setdefault(_alike(optimizer), count()))
        for variant, optimizer in variants
    }


def _alike(optimizer: str) -> str:
    """Similar colours within a family, and distinct ones for all other optimizers."""
    family = family_of(optimizer)
    return optimizer if family == OTHERS else family
