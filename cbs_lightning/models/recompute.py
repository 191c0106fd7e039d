"""Activation checkpointing: a block keeps its input and recomputes the rest when needed.

This is exact: BatchNorm sees the whole batch, and its running statistics are updated by the first
computation only.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

Context = AbstractContextManager[None]


def recompute_blocks(net: nn.Module) -> int:
    """Let every block of a net recompute its activations; returns how many blocks there are."""
    found = list(blocks(net))
    for block in found:
        forward = block.forward
        block.forward = partial(_forward, block, forward)
    return len(found)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a net: the elements of its Sequentials that have layers of their own."""
    for child in module.children():
        is_block = isinstance(module, nn.Sequential) and not isinstance(child, nn.Sequential)
        if is_block and any(True for _ in child.children()):
            yield child
        else:
            yield from blocks(child)


def _forward(block: nn.Module, forward: Any, *inputs: Any) -> Any:
    if not block.training:
        return forward(*inputs)
    contexts = partial(_contexts, block)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)


def _contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _RunningStatisticsKept(block)


class _RunningStatisticsKept(AbstractContextManager[None]):
    """Of a block. torch enters it once for every backward pass: twice or more for a Hessian."""

    def __init__(self, block: nn.Module) -> None:
        self.norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
        self.before: list[list[tuple[float | None, Tensor | None]]] = []

    def __enter__(self) -> None:
        # A momentum of 0 leaves them as they are; without them torch would save other tensors for
        # the backward pass than it did the first time, and refuse.
        self.before.append([(norm.momentum, norm.num_batches_tracked) for norm in self.norms])
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *_: object) -> None:
        for norm, (momentum, tracked) in zip(self.norms, self.before.pop(), strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
