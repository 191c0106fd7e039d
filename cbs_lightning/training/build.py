"""A configuration becomes a model, in slices that fit where that is asked for."""

from functools import cache

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.nn.modules.batchnorm import _BatchNorm

from cbs_lightning.config.schema import AUTO
from cbs_lightning.console import say
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import Classifier
from cbs_lightning.models.recompute import recompute_blocks
from cbs_lightning.optim.learning_rate import learning_rate
from cbs_lightning.training.choices import at_a_time_here
from cbs_lightning.training.memory import automatic_slice


def build_model(cfg: DictConfig, data: ImageDataModule, device: torch.device) -> Classifier:
    model = bare_model(cfg, data)
    batch_size = min(cfg.batch_size, len(data.split.train))
    if cfg.micro_batch_size == AUTO:
        height, width, channels = data.split.train.pixels.shape[1:]
        image = (channels, height, width)
        workers = at_a_time_here(cfg.sweep)
        cfg.micro_batch_size = automatic_slice(model, device, image, batch_size, workers)
        model.micro_batch_size = cfg.micro_batch_size
        chosen = f"slices of {cfg.micro_batch_size}" if cfg.micro_batch_size else "the whole batch"
        say(f"micro_batch_size=auto, b={batch_size}: {chosen}")
    sliced = model.micro_batch_size is not None and model.micro_batch_size < batch_size
    if sliced and any(isinstance(module, _BatchNorm) for module in model.modules()):
        _warn_of_slices(cfg.names.model)
    return model


def bare_model(cfg: DictConfig, data: ImageDataModule) -> Classifier:
    slice_size = cfg.micro_batch_size
    lr = learning_rate(cfg, len(data.split.train))
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


@cache
def _warn_of_slices(name: str) -> None:
    """Once in a process."""
    say(
        f"warning: micro_batch_size: the statistics of {name}'s BatchNorm are those of the slices, "
        "so the losses are not those of whole batches"
    )


def check_model(cfg: DictConfig, data: ImageDataModule) -> None:
    """Raise `ConfigError` where the model cannot do what is asked of it.

    Without blocks it cannot recompute them. BatchNorm cannot train on one value per channel, so
    on a batch or a slice of one sample of 1x1 maps.
    """
    if cfg.activation_checkpointing:
        bare_model(cfg, data)
    n = len(data.split.train)
    batch_size = min(cfg.batch_size, n)
    batches = {batch_size} if data.replacement else {batch_size, n % batch_size} - {0}
    key = "batch_size"
    if 1 not in batches and isinstance(cfg.micro_batch_size, int):
        key = "micro_batch_size"
        batches = {min(size, cfg.micro_batch_size) for size in batches} | {
            size % cfg.micro_batch_size for size in batches
        }
    if 1 not in batches:
        return
    height, width, channels = data.split.train.pixels.shape[1:]
    try:
        bare_model(cfg, data).net.train()(torch.zeros(1, channels, height, width))
    except ValueError as error:
        part = "batch" if key == "batch_size" else "slice"
        reason = f"leaves a {part} of 1 of {n} samples, which {cfg.names.model}'s BatchNorm refuses"
        raise ConfigError(key, cfg[key], f"{reason}; take another") from error
