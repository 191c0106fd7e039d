"""Remembers a value with all that it holds, to restore it in place."""

import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

# What others restore, or what no pass of a module changes; some of it is large.
ELSEWHERE = (
    nn.Module, nn.Parameter, Optimizer, LRScheduler, L.Trainer, L.LightningDataModule, L.Callback,
    Logger, logging.Logger, Dataset, DataLoader, Sampler, type, ModuleType,
)  # fmt: skip
# Packages whose other objects are what no pass changes.
FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "numpy")
SIMPLE = frozenset((int, float, complex, bool, str, bytes, type(None)))


class Seen(dict[int, Any]):
    """The values that are kept already, by id; they are held, so that no id is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()  # types of those that cannot be kept


class Kept:
    """A value to restore, as the same object with the same content.

    Containers, tensors, arrays, random generators and plain objects are kept with all that they
    hold: an object's attributes, whether in its `__dict__` or in slots. Iterators have no content
    that can be kept: they are `seen.lost`. What is reached only by closures or as a global is not
    seen.

    Args:
        value: to be restored.
        seen: what else is kept already: every object is kept once.
    """

    __slots__ = ("content", "kind", "value")

    def __init__(self, value: Any, seen: Seen) -> None:
        self.value = value
        self.content: Any = None
        self.kind: _Kind | None = None
        if type(value) in SIMPLE or id(value) in seen or isinstance(value, ELSEWHERE):
            return
        self.kind = _kind_of(value)
        if self.kind is None:
            if isinstance(value, Iterator):
                seen.lost.add(type(value).__name__)
            return
        seen[id(value)] = value
        self.content = self.kind.content(value, seen)

    def restored(self) -> Any:
        if self.kind is not None:
            self.kind.restore(self.value, self.content)
        return self.value


class _Kind:
    """How values of one kind are kept."""

    def content(self, value: Any, seen: Seen) -> Any:
        raise NotImplementedError

    def restore(self, value: Any, content: Any) -> None:
        raise NotImplementedError


class _Tensor(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return value.detach().clone()

    @torch.no_grad()
    def restore(self, value: Any, content: Any) -> None:
        if not torch.equal(value, content):
            value.copy_(content)


class _Array(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return value.copy()

    def restore(self, value: Any, content: Any) -> None:
        if value.flags.writeable:
            value[...] = content


class _Generator(_Kind):
    """By what its getter and setter are called."""

    def __init__(self, get: str, put: str) -> None:
        self.get, self.put = get, put

    def content(self, value: Any, seen: Seen) -> Any:
        return getattr(value, self.get)()

    def restore(self, value: Any, content: Any) -> None:
        getattr(value, self.put)(content)


class _NumpyGenerator(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return value.bit_generator.state

    def restore(self, value: Any, content: Any) -> None:
        value.bit_generator.state = content


class _Mapping(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return {key: Kept(item, seen) for key, item in value.items()}

    def restore(self, value: Any, content: Any) -> None:
        before = {key: kept.restored() for key, kept in content.items()}
        if isinstance(value, dict) and (list(value) != list(before) or _differs(value, before)):
            value.clear()
            value.update(before)


class _Sequence(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return [Kept(item, seen) for item in value]

    def restore(self, value: Any, content: Any) -> None:
        items = [kept.restored() for kept in content]
        if not isinstance(value, tuple):
            value.clear()
            value.extend(items)


class _Plain(_Kind):
    """A set or bytearray, whose items do not change."""

    def content(self, value: Any, seen: Seen) -> Any:
        return value.copy()

    def restore(self, value: Any, content: Any) -> None:
        value.clear()
        value.update(content) if isinstance(value, set) else value.extend(content)


class _Object(_Kind):
    def content(self, value: Any, seen: Seen) -> Any:
        return {name: Kept(item, seen) for name, item in _attributes(value).items()}

    def restore(self, value: Any, content: Any) -> None:
        """Past a class that forbids to set attributes, such as a frozen dataclass."""
        now = _attributes(value)
        for name in now.keys() - content.keys():
            object.__delattr__(value, name)
        for name, kept in content.items():
            before = kept.restored()
            if name not in now or now[name] is not before:
                object.__setattr__(value, name, before)


KINDS: tuple[tuple[type | tuple[type, ...], _Kind], ...] = (
    (Tensor, _Tensor()),
    (np.ndarray, _Array()),
    (torch.Generator, _Generator("get_state", "set_state")),
    (np.random.Generator, _NumpyGenerator()),
    (np.random.RandomState, _Generator("get_state", "set_state")),
    (random.Random, _Generator("getstate", "setstate")),
    (Mapping, _Mapping()),
    ((list, tuple, deque), _Sequence()),
    ((set, bytearray), _Plain()),
)


def _kind_of(value: Any) -> _Kind | None:
    """None for what has no content of its own, and for what cannot be kept."""
    for types, kind in KINDS:
        if isinstance(value, types):
            return kind
    known = type(value).__module__.partition(".")[0] in FRAMEWORKS
    is_function = hasattr(value, "__code__") or hasattr(value, "__func__")
    return None if known or is_function or not _attributes(value) else _Object()


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"  # as Python stores it
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _differs(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return any(one[key] is not other[key] for key in other)
