"""A colour for each optimizer, similar within a family; marks distinguish its variants.

A study of one optimizer has a colour for each variant, and many variants of one optimizer are in
order from dark to light.
"""

from collections.abc import Iterable, Sequence
from itertools import count, cycle

from cbs_lightning.analysis.names import in_order

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
OTHER_COLORS = ("#8A2BE2", "#E3006A", "#3B3BFF", "#C00000", "#D633FF", "#FF9DA7")  # no family's
UNLIKE = [next(iter(family.values())) for family in FAMILIES.values()]
MOST_ALIKE = 4  # variants of one optimizer that share its colour, beside other optimizers
SEQUENCE = (  # viridis without its lightest part
    "#440154", "#472D7B", "#3B528B", "#2C728E", "#21918C", "#28AE80", "#5EC962", "#ADDC30",
)  # fmt: skip
DARKEST, LIGHTEST = 0.5, 0.4  # of an optimizer's colour and black; of it and white
DARK, LIGHT_OF_DARK = 0x80, 0.75  # the brightest part of a colour without darker shades; as above


def color_of(optimizer: str) -> str:
    """Its colour where no other optimizer is shown."""
    return COLORS.get(optimizer, OTHER_COLORS[0])


def colors_of(variants: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Colours by variant, given pairs of variant and optimizer.

    Optimizers without a colour of their own take the other colours in turn. The variants of a
    single optimizer take its colour and others unlike it while there are any, else those of a
    scale. Beside other optimizers many variants of one take shades of its colour.
    """
    optimizers = dict(variants)
    distinct = set(optimizers.values())
    if len(distinct) == 1:
        unlike = dict.fromkeys([*map(color_of, distinct), *UNLIKE])
        if len(optimizers) > len(unlike):
            return _scale(SEQUENCE, list(optimizers))
        return dict(zip(optimizers, unlike, strict=False))
    others = sorted(distinct - COLORS.keys())
    own = COLORS | dict(zip(others, cycle(OTHER_COLORS), strict=False))
    found = {variant: own[optimizer] for variant, optimizer in optimizers.items()}
    for optimizer in distinct:
        alike = [variant for variant, its in optimizers.items() if its == optimizer]
        if len(alike) > MOST_ALIKE:
            found |= _scale(_shades(own[optimizer]), alike)
    return found


def _shades(color: str) -> tuple[str, ...]:
    """From dark to light, neither black nor white, where shades of all optimizers look alike."""
    if max(bytes.fromhex(color[1:])) < DARK:
        return color, _mixed(color, "#FFFFFF", LIGHT_OF_DARK)
    return _mixed("#000000", color, DARKEST), color, _mixed(color, "#FFFFFF", LIGHTEST)


def _scale(colors: Sequence[str], variants: list[str]) -> dict[str, str]:
    """Colours between those given for at least two variants, in the order of their numbers."""
    found = {}
    for number, variant in enumerate(in_order(variants)):
        place = number / (len(variants) - 1) * (len(colors) - 1)
        lower = min(int(place), len(colors) - 2)
        found[variant] = _mixed(colors[lower], colors[lower + 1], place - lower)
    return found


def _mixed(one: str, other: str, share: float) -> str:
    """The colour that is this share of the way from one to the other."""
    pairs = zip(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


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
