"""Reads from a training loader the steps of an epoch, and the samples of a step and of the data
set."""

import math
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException

from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.results.trajectory import Rule, RuleName


def rule_on(trainer: L.Trainer, rule: Rule) -> Rule:
    """The rule for this data; raises if it cannot be used there."""
    loader = trainer.train_dataloader
    if isinstance(loader, InMemoryLoader):
        steps_per_epoch: float = loader.steps_per_epoch
    else:
        steps_per_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches
    if rule.name is RuleName.EPOCH and math.isinf(steps_per_epoch):
        raise MisconfigurationException(
            "rule='epoch' needs a loader with a length; with this one use rule='window' and "
            "window=<samples>"
        )
    window = rule.window or data_size(loader)
    if window is None:
        if rule.name is not RuleName.EPOCH:
            raise MisconfigurationException(
                "window=None means the size of the data set, which is not known here; set it to a "
                "number of samples"
            )
        window = 1  # which rule epoch does not ask for
    whole = 1 if math.isinf(steps_per_epoch) else math.ceil(steps_per_epoch)
    return Rule(rule.name, whole, window)


def batch_size_on(trainer: L.Trainer, size: int | None) -> int:
    """Samples per step, at most the size of the data set; None means the loader's times the
    accumulation."""
    loader = trainer.train_dataloader
    if size is None:
        own = getattr(loader, "batch_size", None)
        if own is None:
            raise MisconfigurationException(
                "batch_size=None means the loader's, which does not say it; pass batch_size="
            )
        size = own * trainer.accumulate_grad_batches
    return min(size, data_size(loader) or size)


def data_size(loader: Any) -> int | None:
    """The number of samples in the data set behind a loader, if it is known."""
    if isinstance(loader, InMemoryLoader):
        return len(loader.images)
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None
