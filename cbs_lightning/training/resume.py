"""Finds the checkpoint that a run resumes from."""

from pathlib import Path
from typing import Any

import torch

from cbs_lightning.config.identity import config_hash
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.data import ImageDataModule
from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.optim.schedule_free import set_training
from cbs_lightning.results.checkpoint_checks import (
    Expected,
    check_checkpoint,
    check_general_checkpoint,
)
from cbs_lightning.results.checkpoints import Checkpoint, generations, latest_checkpoint
from cbs_lightning.training.build import bare_classifier, bare_model
from cbs_lightning.training.source import Source


def checkpoint_to_resume(
    cfg: RunConfig, source: Source, directory: Path, *, stepwise: bool
) -> Checkpoint | None:
    """The newest complete checkpoint of this run; any others are named and set aside.

    Consumes random numbers: the run is seeded afterwards.
    """
    if not any(path.exists() for path in generations(directory)):
        return None
    own_hash = config_hash(cfg)
    if stepwise:
        tensors = bare_model(cfg, source).state_dict()
        found = latest_checkpoint(
            directory, lambda values: check_general_checkpoint(values, own_hash, tensors)
        )
    else:
        assert source.images is not None
        expected = expected_of(cfg, source.images)
        found = latest_checkpoint(
            directory, lambda values: check_checkpoint(values, own_hash, expected)
        )
    budget = found.origin.get("budget") if found is not None else None
    if found is not None and budget is not None:
        if budget != source.budget.words:
            print_line(f"{found.path}: its module reads the budget, which was {budget}; not used")
            return None
        source.budget.was_read = True
    return found


def expected_of(cfg: RunConfig, data: ImageDataModule) -> Expected:
    """What a checkpoint of this run looks like, found from one step of a model that is then
    discarded."""
    model = bare_classifier(cfg, data)
    optimizer = model.configure_optimizers()
    set_training(optimizer, True)
    begun = [dict(group) for group in optimizer.state_dict()["param_groups"]]
    model.net.train()(torch.zeros(2, *data.image_shape)).sum().backward()
    optimizer.step()
    loader = InMemoryLoader(data.split.train, cfg.batch_size)
    return Expected(
        model.state_dict(),
        optimizer,
        [_constant(*groups) for groups in zip(begun, optimizer.param_groups, strict=True)],
        loader.steps_per_epoch,
        loader.batches_per_chunk,
    )


def _constant(begun: dict[str, Any], stepped: dict[str, Any]) -> dict[str, Any]:
    """The settings that no step changes; the learning rate may follow a schedule."""
    return {
        name: value
        for name, value in begun.items()
        if name not in ("lr", "params") and value == stepped[name]
    }
