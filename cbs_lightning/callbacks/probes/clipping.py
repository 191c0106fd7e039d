"""How much of a step gradient clipping leaves, by the module's own way of clipping."""

import math
from typing import Any

import lightning as L
import torch
from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.gradients import GradientSums
from cbs_lightning.callbacks.probes.objective import Objective


def share_left(
    objective: Objective, optimizer: Optimizer, sums: GradientSums, batch_size: int
) -> float | None:
    """Of the gradients of batches of this size, along themselves; None: nothing clips them.

    To be used inside `unchanged`.
    """
    trainer, module = objective.trainer, objective.module
    if objective.is_chunked or not _may_clip(trainer, module):
        return None
    found = []
    for group, mean in enumerate(sums.group_means()):
        # With as much noise as a gradient of the run has.
        variance = 1 / sums.samples_of(group) - 1 / (sums.batches * sums.batch_size)
        row = sums.mean + (mean - sums.mean) * math.sqrt(1 / batch_size / variance)
        for parameter, part in zip(objective.parameters, objective.split(row), strict=True):
            parameter.grad = torch.empty_like(parameter).copy_(part)
        module.configure_gradient_clipping(
            optimizer,
            gradient_clip_val=trainer.gradient_clip_val,
            gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        )
        found.append(float(objective.gradients_row() @ row) / (float(row @ row) or 1.0))
    for parameter in objective.parameters:
        parameter.grad = None
    return sum(found) / len(found)


def _may_clip(trainer: L.Trainer, module: Any) -> bool:
    own = type(module).configure_gradient_clipping
    overridden = own is not L.LightningModule.configure_gradient_clipping
    return bool(getattr(trainer, "gradient_clip_val", None)) or overridden
