"""What every optimizer does first: evaluate the closure, if it was given one."""

from collections.abc import Callable
from typing import Any

import torch


def evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
