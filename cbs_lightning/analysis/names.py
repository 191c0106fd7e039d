"""Short names of curves, for where many of them stand beside each other."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


class Named(Protocol):
    """A curve, as far as it is named here."""

    @property
    def variant(self) -> str: ...

    @property
    def optimizer(self) -> str: ...


def short_names(curves: Iterable[Named]) -> dict[str, str]:
    """By variant; an optimizer's name will do for its only curve, and what all of its curves share
    is left out.

    >>> from types import SimpleNamespace
    >>> named = ["adam lr=0.1 warmup_samples=9", "adam lr=0.2 warmup_samples=9", "sgd lr=0.1"]
    >>> curves = [SimpleNamespace(variant=each, optimizer=each.split()[0]) for each in named]
    >>> list(short_names(curves).values())
    ['adam lr=0.1', 'adam lr=0.2', 'sgd']
    """
    curves = list(curves)
    found = {}
    for optimizer, variants in _by_optimizer(curves).items():
        shared = _shared(variants) if len(variants) > 1 else set(variants[0].split(" "))
        for variant in variants:
            own = [word for word in variant.split(" ") if word not in shared]
            found[variant] = " ".join([optimizer, *(word for word in own if word != optimizer)])
    if len(set(found.values())) < len(found):
        return {curve.variant: curve.variant for curve in curves}
    return found


def shared_settings(curves: Iterable[Named]) -> str:
    """What `short_names` leaves out of an optimizer's several curves, in words; or nothing."""
    found = {}
    by_optimizer = _by_optimizer(curves)
    for optimizer, variants in by_optimizer.items():
        words = [word for word in variants[0].split(" ") if word in _shared(variants)]
        if len(variants) > 1 and words:
            found[optimizer] = " ".join(words)
    if len(by_optimizer) == len(found) and len({*found.values()}) == 1:
        return f"all with {next(iter(found.values()))}"
    return ", ".join(f"{optimizer} with {words}" for optimizer, words in found.items())


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, with numbers by their size.

    >>> in_order(["adam lr=0.1", "adam lr=1e-05", "adam lr=0.02"])
    ['adam lr=1e-05', 'adam lr=0.02', 'adam lr=0.1']
    """

    def key(name: str) -> list[tuple[float, str]]:
        parts = NUMBER.split(name)  # text and numbers in turns
        return [(float(each), "") if place % 2 else (0.0, each) for place, each in enumerate(parts)]

    return sorted(names, key=key)


def _by_optimizer(curves: Iterable[Named]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for curve in curves:
        found.setdefault(curve.optimizer, []).append(curve.variant)
    return found


def _shared(variants: list[str]) -> set[str]:
    """Words of all these variants."""
    count = Counter(word for variant in variants for word in {*variant.split(" ")})
    return {word for word, number in count.items() if number == len(variants)} - {
        variants[0].split(" ")[0]
    }
