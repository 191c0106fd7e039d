"""Reads from a training loader the steps of an epoch, and the samples of a step and of an epoch."""

import math
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException

from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.data.repeatable import samples_of_epoch
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


def check_epoch(trainer: L.Trainer, steps_per_epoch: int) -> None:
    """Raise if an epoch ended early, or late, although training goes on."""
    ends = trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
    if trainer.global_step % steps_per_epoch and not ends:
        raise MisconfigurationException(
            f"epoch {trainer.current_epoch} ended at step {trainer.global_step}, but by the "
            f"loader's length epochs take {steps_per_epoch}; rule='epoch' needs whole ones: use "
            "rule='window' and window=<samples>"
        )


def batch_size_on(trainer: L.Trainer, size: int | None) -> int:
    """Samples per step, as asked for; None means the loader's times the accumulation."""
    if size is None:
        own = getattr(trainer.train_dataloader, "batch_size", None)
        if own is None:
            raise MisconfigurationException(
                "batch_size=None means the loader's, which does not say it; pass batch_size="
            )
        size = int(own * trainer.accumulate_grad_batches)
    return size


def data_size(loader: Any) -> int | None:
    """The number of samples in an epoch, if it is known."""
    if isinstance(loader, InMemoryLoader):
        return len(loader.images)
    return samples_of_epoch(loader)
