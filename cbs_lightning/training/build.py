"""A configuration becomes a model, in slices that fit where that is asked for."""

from functools import cache
from typing import Literal

import torch
from hydra.utils import instantiate
from torch.nn.modules.batchnorm import _BatchNorm

from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import Classifier
from cbs_lightning.models.recompute import recompute_blocks
from cbs_lightning.optim.learning_rate import scaled_rate
from cbs_lightning.training.memory import automatic_slice


def build_model(
    cfg: RunConfig,
    data: ImageDataModule,
    micro_batch_size: int | Literal["auto"] | None,
    device: torch.device,
    sharing: int = 1,
) -> Classifier:
    """The model with its slices; `sharing` runs at a time share this machine's memory."""
    model = bare_model(cfg, data)
    batch_size = min(cfg.batch_size, data.train_size)
    if micro_batch_size == AUTO:
        micro_batch_size = automatic_slice(model, device, data.image_shape, batch_size, sharing)
        choice = f"slices of {micro_batch_size}" if micro_batch_size else "the whole batch"
        print_line(f"micro_batch_size=auto, b={batch_size}: {choice}")
    model.micro_batch_size = micro_batch_size
    sliced = micro_batch_size is not None and micro_batch_size < batch_size
    if sliced and any(isinstance(module, _BatchNorm) for module in model.modules()):
        _warn_of_slices(cfg.names.model)
    return model


def bare_model(cfg: RunConfig, data: ImageDataModule) -> Classifier:
    slice_size = cfg.micro_batch_size
    lr = learning_rate(cfg, data.train_size)
    model: Classifier = instantiate(
        cfg.model,
        in_channels=data.in_channels,
        num_classes=data.num_classes,
        optimizer=instantiate(cfg.optimizer, lr=lr, _convert_="all"),
        micro_batch_size=None if slice_size == AUTO else slice_size,
        warmup_samples=cfg.warmup_samples,
    )
    if cfg.activation_checkpointing and not recompute_blocks(model.net):
        reason = f"{cfg.names.model} has no blocks to recompute; allowed: false"
        raise ConfigError("activation_checkpointing", True, reason)
    return model


def learning_rate(cfg: RunConfig, data_size: int) -> float:
    """The optimizer's, scaled by the effective batch size over the reference."""
    batch_size = min(cfg.batch_size, data_size)
    lr: float = cfg.optimizer["lr"]
    return scaled_rate(lr, cfg.lr_scaling, batch_size, cfg.lr_reference_batch_size)


@cache
def _warn_of_slices(name: str) -> None:
    """Once in a process."""
    print_line(
        f"warning: micro_batch_size: the statistics of {name}'s BatchNorm are those of the slices, "
        "so the losses are not those of whole batches"
    )


def check_model(cfg: RunConfig, data: ImageDataModule) -> None:
    """Raise `ConfigError` where the model cannot do what is asked of it.

    Without blocks it cannot recompute them. BatchNorm cannot train on one value per channel, so
    on a batch or a slice of one sample of 1x1 maps.
    """
    if cfg.activation_checkpointing:
        bare_model(cfg, data)
    n = data.train_size
    batch_size = min(cfg.batch_size, n)
    batches = {batch_size} if data.replacement else {batch_size, n % batch_size} - {0}
    key, part, value = "batch_size", "batch", cfg.batch_size
    if 1 not in batches and isinstance(cfg.micro_batch_size, int):
        key, part, value = "micro_batch_size", "slice", cfg.micro_batch_size
        batches = {min(size, value) for size in batches} | {size % value for size in batches}
    if 1 not in batches:
        return
    try:
        bare_model(cfg, data).net.train()(torch.zeros(1, *data.image_shape))
    except ValueError as error:
        reason = f"leaves a {part} of 1 of {n} samples, which {cfg.names.model}'s BatchNorm refuses"
        raise ConfigError(key, value, f"{reason}; take another") from error
