"""Short branches of a run at several batch sizes, from its own state and without changing it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import torch

from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.callbacks.probes.state import unchanged
from cbs_lightning.models import Classifier
from cbs_lightning.noise.branches import Branch
from cbs_lightning.optim.learning_rate import rates_of, set_rates

READ_AT = (0.25, 0.5, 0.625, 0.75, 0.875, 1.0)  # of a branch's steps: where its loss is measured
HELD_SAMPLES = 1024  # on which losses are measured
OF_BRANCHES = 10**6  # numbers of batches from here on are of branches, far from a probe's own
SMALLEST = 2  # samples of a batch: BatchNorm needs more than one


def branch_sizes(batch_size: int, factors: Sequence[float], most: int | None) -> list[int]:
    """The batch sizes of branches, from the run's own; at most as many samples as there are.

    >>> branch_sizes(16, [0.5, 1, 2, 4], 50)
    [8, 16, 32, 50]
    """
    found = {max(SMALLEST, round(batch_size * factor)) for factor in factors}
    return sorted({min(size, most) if most is not None else size for size in found})


class Branches:
    """Makes the branches of one probe; to be used inside `unchanged`.

    All have the optimizer's own steps, with its state at the probe and the learning rate of that
    moment, times `factor`. Batches are drawn with replacement, so that a large one is as noisy as
    its size says. All losses are of the same `HELD_SAMPLES` training samples in train mode, in
    batches of one size, so that BatchNorm sees as many samples whatever the branch.

    Args:
        held: draws the batches on which losses are measured.
        slice_size: samples of a slice, in which the steps' gradients are taken; None: whole.
        factor: of the learning rate, by warm-up and schedule.
    """

    def __init__(self, held: Objective, slice_size: int | None, factor: float = 1.0) -> None:
        self.held = held
        self.slice_size = slice_size
        self.factor = factor
        self.trainer, self.module = held.trainer, held.module
        self._measured = range(OF_BRANCHES, OF_BRANCHES + -(-HELD_SAMPLES // held.batch_size))

    def make(self, sizes: Sequence[int], steps: int, repeats: int) -> list[Branch]:
        start = self._loss()
        return [
            self._branch(size, steps, start, number * repeats + repeat)
            for number, size in enumerate(sizes)
            for repeat in range(repeats)
        ]

    def _branch(self, size: int, steps: int, start: float, number: int) -> Branch:
        readings = [round(steps * share) for share in READ_AT]
        losses = {0: start}
        with unchanged(self.trainer, self.module, optimizers=True):
            batches = replace(
                self.held, batch_size=size, slice_size=self.slice_size, kept=(), gradients=0
            )
            optimizer = self.trainer.optimizers[0]
            set_rates(optimizer, rates_of(optimizer), self.factor)
            for step in range(1, steps + 1):
                batch = OF_BRANCHES * (number + 2) + step
                _take_step(self.trainer, self.module, optimizer, batches, batch)
                if step in readings:
                    losses[step] = self._loss()
                    if not math.isfinite(losses[step]):
                        break
            self.held.gradients += batches.gradients
        for step in readings:
            losses.setdefault(step, math.nan)
        return Branch(size, tuple(losses), tuple(losses.values()))

    def _loss(self) -> float:
        return sum(self.held.loss(number) for number in self._measured) / len(self._measured)


def _take_step(
    trainer: L.Trainer,
    module: Any,
    optimizer: torch.optim.Optimizer,
    batches: Objective,
    number: int,
) -> None:
    """As the run itself does, in the general loop with the module's own hooks around a step."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = batches.backward(number)
        if not chunked:
            module.on_before_optimizer_step(optimizer)
            module.configure_gradient_clipping(
                optimizer,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )
        return loss

    chunked = isinstance(module, Classifier) and not module.automatic_optimization
    if chunked:
        closure()
        optimizer.step()
    else:
        module.optimizer_step(trainer.current_epoch, 0, optimizer, closure)
