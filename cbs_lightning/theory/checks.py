"""Checks numbers that users pass: real, finite and in range, or a ValueError that names them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def number(name: str, value: Any) -> float:
    if isinstance(value, np.timedelta64 | bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large") from None


def positive(name: str, value: Any) -> float:
    found = number(name, value)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")
    return found


def whole(name: str, value: Any) -> float:
    """A count: a float will do if it is one."""
    found = positive(name, value)
    if found != int(found):
        raise ValueError(f"{name} must be a whole number, not {value}")
    return found


def non_negative(name: str, value: Any) -> float:
    found = number(name, value)
    if not math.isfinite(found):
        raise ValueError(f"{name} must be finite, not {value}")
    if found < 0:
        raise ValueError(f"{name} must not be negative, but is {value}")
    return found


def open_unit(name: str, value: Any) -> float:
    found = number(name, value)
    if not 0 < found < 1:
        raise ValueError(f"{name} must be in (0, 1), not {value!r}")
    return found


def at_most(name: str, value: float, bound_name: str, bound: float) -> None:
    """Two parameters that exclude each other are a mistake in one of them."""
    if value > bound * (1 + 1e-9):
        raise ValueError(f"{name} must be at most {bound_name} = {bound:g}, not {value:g}")


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Numbers in range may still be too far apart for a formula."""
    try:
        yield
    except ArithmeticError:
        raise ValueError(f"{what}: a parameter is too large or too small to compute it") from None


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise OverflowError
    return value


def number_array(name: str, values: Any) -> Floats:
    """Real numbers; no text, dates, bytes, booleans or masked entries."""
    if np.ma.isMaskedArray(values):
        raise ValueError(f"{name} must be numbers, not a masked array")
    try:
        found = np.asarray(values)
        if found.dtype.kind == "O" and all(isinstance(value, Real) for value in found.flat):
            found = found.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.asarray("")
    if found.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be numbers, not {shorten(values)}")
    return found.astype(np.float64)


def positive_array(name: str, values: Any) -> Floats:
    array = number_array(name, values)
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name} must be positive numbers, not {shorten(array.tolist())}")
    return array


def shorten(values: Any) -> str:
    try:
        text = repr(values)
    except ValueError:  # an int of thousands of digits
        text = "such large ones"
    return text if len(text) <= 80 else f"{text[:77]}..."
