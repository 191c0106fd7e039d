"""Builds the model of a configuration, and slices that fit into memory if that is asked for."""

from functools import cache
from typing import Any, Literal, NoReturn

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch.nn.modules.batchnorm import _BatchNorm

from cbs_lightning.config.datamodule import mistake
from cbs_lightning.config.extensions import scheduler_arguments
from cbs_lightning.config.identity import OWN
from cbs_lightning.config.plain_checks import EPOCHS, SAMPLES
from cbs_lightning.config.schema import AUTO, RunConfig, Settings
from cbs_lightning.console import print_line
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, require
from cbs_lightning.models import Classifier
from cbs_lightning.models.recompute import recompute_blocks
from cbs_lightning.optim.groups import (
    KEY,
    Factory,
    GroupedFactory,
    make_optimizer,
    takes_any_shape,
    with_real_betas,
)
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.optim.schedules import Constant
from cbs_lightning.training.loops import is_classifier
from cbs_lightning.training.resources.memory import automatic_slice
from cbs_lightning.training.source import Extent, Source


def build_model(
    cfg: RunConfig,
    source: Source,
    micro_batch_size: int | Literal["auto"] | None,
    device: torch.device,
    sharing: int = 1,
) -> tuple[L.LightningModule, int | None]:
    """The model and its slices; `sharing` runs at a time share this machine's memory."""
    model = bare_model(cfg, source)
    batch_size = min(cfg.batch_size, source.extent.size)
    if micro_batch_size == AUTO:
        assert isinstance(model, Classifier) and source.images is not None  # as was checked
        shape = source.images.image_shape
        micro_batch_size = automatic_slice(model, device, shape, batch_size, sharing)
        choice = f"slices of {micro_batch_size}" if micro_batch_size else "the whole batch"
        print_line(f"micro_batch_size=auto, b={batch_size}: {choice}")
    if isinstance(model, Classifier):
        model.micro_batch_size = micro_batch_size
    sliced = micro_batch_size is not None and micro_batch_size < batch_size
    if sliced and any(isinstance(module, _BatchNorm) for module in model.modules()):
        _warn_of_slices(cfg.names.model)
    return model, micro_batch_size


def bare_model(cfg: RunConfig, source: Source) -> L.LightningModule:
    if is_classifier(cfg):
        assert source.images is not None  # as was checked
        model: L.LightningModule = bare_classifier(cfg, source.images)
    else:
        model = _strangers_model(cfg, source.extent.size)
    if cfg.activation_checkpointing and not recompute_blocks(getattr(model, "net", model)):
        reason = f"{cfg.names.model} has no blocks to recompute; allowed: false"
        raise ConfigError("activation_checkpointing", True, reason)
    return model


def bare_classifier(cfg: RunConfig, images: ImageDataModule) -> Classifier:
    slice_size = cfg.micro_batch_size
    model: Classifier = instantiate(
        cfg.model,
        in_channels=images.in_channels,
        num_classes=images.num_classes,
        optimizer=_optimizer_of(cfg, images.train_size),
        micro_batch_size=None if slice_size == AUTO else slice_size,
        rate_schedule=rate_schedule(cfg, images.train_size),
        image_size=images.image_shape[1:],
    )
    return model


def _strangers_model(cfg: RunConfig, data_size: int) -> L.LightningModule:
    """A user's model, built from its own settings; a chosen optimizer replaces its own."""
    try:
        model: Any = instantiate({"_convert_": "all", **cfg.model})
    except InstantiationException as error:
        raise mistake(cfg.names.model, "model", error) from error
    if cfg.names.optimizer != OWN:
        factory = _optimizer_of(cfg, data_size)
        model.configure_optimizers = lambda: make_optimizer(factory, model)
    found: L.LightningModule = model
    return found


def _optimizer_of(cfg: RunConfig, data_size: int) -> Factory | GroupedFactory:
    if cfg.names.optimizer == OWN:
        return _no_optimizer
    return optimizer_factory(cfg.optimizer_settings(data_size))


def optimizer_factory(settings: Settings) -> Factory | GroupedFactory:
    """A function that makes the optimizer of a net."""
    own = {key: value for key, value in with_real_betas(settings).items() if key != KEY}
    factory: Factory = instantiate(own, _convert_="all")
    groups = {name: with_real_betas(group) for name, group in settings.get(KEY, {}).items()}
    return GroupedFactory(factory, groups) if groups else factory


def _no_optimizer(_: Any) -> NoReturn:
    raise AssertionError("a module's own optimizer is made by itself")


def rate_schedule(cfg: RunConfig, data_size: int | None) -> RateSchedule:
    """The factor on the learning rate of each step; streams have no size.

    Raises `ConfigError` if the warm-up does not end before the scheduler's horizon, or if the
    horizon is in epochs and the data has none.
    """
    settings = scheduler_arguments(cfg.scheduler)
    epochs = settings.pop(EPOCHS, None)
    if epochs is not None:
        reason = f"{cfg.names.data} is a stream without a length; set scheduler.{SAMPLES} instead"
        require(data_size is not None, f"scheduler.{EPOCHS}", epochs, reason)
        settings[SAMPLES] = max(1, round(epochs * (data_size or 0)))
    horizon = settings.get(SAMPLES)
    if horizon is not None:
        allowed = f"must be less than the scheduler's horizon, {horizon:,} samples"
        require(cfg.warmup_samples < horizon, "warmup_samples", cfg.warmup_samples, allowed)
    return RateSchedule(cfg.warmup_samples, instantiate(settings, _convert_="all"))


def schedule_lines(cfg: RunConfig, extent: Extent, max_steps: int) -> list[str]:
    """Lines about the scheduler, for the start of a run of at most this many steps."""
    name, schedule = cfg.names.scheduler, rate_schedule(cfg, extent.sized).schedule
    horizon = getattr(schedule, SAMPLES, None)
    if isinstance(schedule, Constant):
        if horizon is None:
            return []
        return [f"warning: scheduler={name} has no horizon; its {horizon:,} samples are not used"]
    if not isinstance(horizon, int):
        return [f"learning rate follows scheduler={name}"]
    lines = [f"learning rate follows scheduler={name} over {horizon:,} samples"]
    budget = max_steps * extent.size // extent.steps_per_epoch
    if budget > horizon and schedule.factor(budget) == 0:
        lines.append(
            f"warning: the learning rate is 0 after {horizon:,} samples, and the budget is about "
            f"{budget:,}: set stop.max_epochs to end there, or scheduler.final above 0"
        )
    return lines


@cache
def _warn_of_slices(name: str) -> None:
    """Warn once per process."""
    print_line(
        f"warning: micro_batch_size: the statistics of {name}'s BatchNorm are those of the slices, "
        "so the losses are not those of whole batches"
    )


def check_optimizer_fits(cfg: RunConfig, source: Source) -> None:
    """Raise `ConfigError` if the batch size has no settings, a group has no parameters, or the
    optimizer does not take those of the net."""
    cfg.optimizer_settings(source.extent.size)
    if not depends_on_net(cfg):
        return
    with torch.random.fork_rng(devices=[]):
        model = bare_model(cfg, source)
        if _has_layers_later(model):
            return
        try:
            model.configure_optimizers()
        except ConfigError as error:
            if error.key != "optimizer":
                raise
            raise ConfigError("optimizer", cfg.names.optimizer, error.allowed) from error


def depends_on_net(cfg: RunConfig) -> bool:
    """Whether there may be nets that the optimizer does not fit."""
    if cfg.names.optimizer == OWN:
        return False
    factory = optimizer_factory(cfg.optimizer)
    return isinstance(factory, GroupedFactory) or not takes_any_shape(factory)


def _has_layers_later(model: L.LightningModule) -> bool:
    """Whether a user's module makes layers in a hook of the Trainer's."""
    return not isinstance(model, Classifier) and any(
        getattr(type(model), hook) is not getattr(L.LightningModule, hook)
        for hook in ("configure_model", "setup")
    )


def check_model(cfg: RunConfig, source: Source) -> None:
    """Raise `ConfigError` if the model cannot do what is asked of it.

    Only a model with blocks can recompute them. A warm-up must end before a scheduler does.
    BatchNorm cannot train on one value per channel, so not on a batch or slice of one sample with
    1x1 maps.
    """
    rate_schedule(cfg, source.extent.sized)
    check_optimizer_fits(cfg, source)
    if cfg.activation_checkpointing:
        bare_model(cfg, source)
    images = source.images
    if images is None or not is_classifier(cfg):
        return
    n = images.train_size
    batch_size = min(cfg.batch_size, n)
    batches = {batch_size} if images.replacement else {batch_size, n % batch_size} - {0}
    key, part, value = "batch_size", "batch", cfg.batch_size
    if 1 not in batches and isinstance(cfg.micro_batch_size, int):
        key, part, value = "micro_batch_size", "slice", cfg.micro_batch_size
        batches = {min(size, value) for size in batches} | {size % value for size in batches}
    if 1 not in batches:
        return
    try:
        bare_classifier(cfg, images).net.train()(torch.zeros(1, *images.image_shape))
    except ValueError as error:
        reason = f"leaves a {part} of 1 of {n} samples, which {cfg.names.model}'s BatchNorm refuses"
        raise ConfigError(key, value, f"{reason}; take another") from error
