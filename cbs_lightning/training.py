"""Training: a configuration becomes a model and a trainer, and leaves a result."""

import importlib.metadata
import logging
import platform
import signal
import traceback
import warnings
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from torch import nn

from cbs_lightning import results
from cbs_lightning.callbacks import (
    LogCurves,
    ShowProgress,
    StopAtThreshold,
    StopOnSignal,
    TimedCheckpoint,
    TrajectoryRecorder,
)
from cbs_lightning.config import config_hash, hyperparameters
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.models import Classifier
from cbs_lightning.results import Request, Result, Run, Status
from cbs_lightning.tensorboard import publish
from cbs_lightning.threads import threads
from cbs_lightning.trajectory import Rule, RuleName

PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """A signal ended the run; what it had is stored."""

    def __init__(self, result: Result, signal_number: int) -> None:
        super().__init__(result, signal_number)
        self.result = result
        self.exit_code = 128 + signal_number


def step_budget(stop: DictConfig, steps_per_epoch: int) -> int:
    budgets = []
    if stop.max_epochs is not None:
        budgets.append(stop.max_epochs * steps_per_epoch)
    if stop.max_steps is not None:
        budgets.append(stop.max_steps)
    return int(min(budgets))


def train(
    cfg: DictConfig, data: ImageDataModule, directory: Path, title: str, stored: Run | None
) -> Result:
    """Train to the threshold or to the end of the budget.

    However it ends there is a result; one of an unfinished run does not replace a `stored` one
    that knows more. A signal ends in `Interrupted`, after the run was saved.
    """
    cfg = cfg.copy()
    cfg.threads = threads(cfg, directory)
    torch.set_num_threads(cfg.threads)
    L.seed_everything(cfg.seed, verbose=False)
    data.setup("fit")
    n = len(data.split.train)
    steps_per_epoch = -(-n // min(cfg.batch_size, n))
    request = Request(
        cfg.stop.loss,
        RuleName(cfg.stop.rule),
        cfg.stop.window or n,
        step_budget(cfg.stop, steps_per_epoch),
    )
    result = _blank_result(cfg, request, n, steps_per_epoch)
    recorder = TrajectoryRecorder()
    signals = StopOnSignal()
    try:
        model = _model(cfg, data)
        _make_directory(directory)
        OmegaConf.save(cfg, directory / results.CONFIG)
        rule = Rule(request.rule, steps_per_epoch, request.window)
        stop = StopAtThreshold(recorder, request.threshold, rule, result.effective_batch_size)
        trainer = _trainer(cfg, request, directory, title, stop, signals)
        result = replace(result, device=_device_name(trainer.strategy.root_device))
        resume = _usable(directory / results.CHECKPOINT)
        if resume is not None:
            print(f"{title}: goes on from {resume}", flush=True)
        trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
        ended = stop.status or (Status.INTERRUPTED if signals.received else Status.EXHAUSTED)
        if ended in (Status.REACHED, Status.EXHAUSTED) and data.split.test is not None:
            (tested,) = trainer.test(model, datamodule=data, verbose=False)
            result = replace(result, test_accuracy=tested["test_accuracy"])
    except UserError:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning turns the first into the second
        with suppress(Exception):
            recorder.pause()
        result = _finish(directory, result, Status.INTERRUPTED, request, recorder, stored)
        raise Interrupted(result, signals.received or signal.SIGINT) from error
    except Exception:
        with suppress(Exception):  # a device in trouble may not give its values any more
            recorder.pause()
        _finish(directory, result, Status.FAILED, request, recorder, stored)
        (directory / results.ERROR).write_text(traceback.format_exc())
        raise
    result = _finish(directory, result, ended, request, recorder, stored)
    if ended is not Status.INTERRUPTED:
        for leftover in (results.CHECKPOINT, results.ERROR):
            (directory / leftover).unlink(missing_ok=True)
    if signals.received:
        raise Interrupted(result, signals.received)
    return result


def _blank_result(cfg: DictConfig, request: Request, n: int, steps_per_epoch: int) -> Result:
    """A result of no steps."""
    return Result(
        schema_version=results.SCHEMA_VERSION,
        status=Status.FAILED,
        ended=Status.FAILED,
        study=cfg.study,
        variant=cfg.names.variant,
        data=cfg.names.data,
        model=cfg.names.model,
        optimizer=cfg.names.optimizer,
        lr=cfg.optimizer.lr,
        hyperparameters=hyperparameters(cfg),
        batch_size=cfg.batch_size,
        effective_batch_size=min(cfg.batch_size, n),
        micro_batch_size=cfg.micro_batch_size,
        seed=cfg.seed,
        threshold=request.threshold,
        rule=request.rule,
        window=request.window,
        steps=None,
        sfo=None,
        samples=None,
        steps_run=0,
        epochs_run=0.0,
        steps_per_epoch=steps_per_epoch,
        data_size=n,
        loss=None,
        accuracy=None,
        test_accuracy=None,
        seconds=0.0,
        seconds_per_step=None,
        threads=cfg.threads,
        device=cfg.trainer.accelerator,
        config_hash=config_hash(cfg),
        versions=_versions(),
    )


def _finish(
    directory: Path,
    result: Result,
    ended: Status,
    request: Request,
    recorder: TrajectoryRecorder,
    stored: Run | None,
) -> Result:
    """Write what there is, result last: a run with a result is whole."""
    steps_run = len(recorder.trajectory)
    result = replace(
        result,
        ended=ended,
        steps_run=steps_run,
        epochs_run=steps_run / result.steps_per_epoch,
        seconds_per_step=recorder.seconds_per_step,
    )
    result = results.answer(result, recorder.trajectory, request)
    if ended in results.UNFINISHED:  # whatever its losses say so far
        result = replace(result, status=ended, steps=None, sfo=None, samples=None)
        if stored is not None and len(stored.trajectory) > steps_run:
            return result
    _make_directory(directory)
    results.write_trajectory(directory, recorder.trajectory)
    publish(directory, result)
    return result


def _model(cfg: DictConfig, data: ImageDataModule) -> Classifier:
    model: Classifier = instantiate(
        cfg.model,
        in_channels=data.in_channels,
        num_classes=data.num_classes,
        optimizer=instantiate(cfg.optimizer, _convert_="all"),
        micro_batch_size=cfg.micro_batch_size,
    )
    n = len(data.split.train)
    batch_size = min(cfg.batch_size, n)
    if batch_size == 1 or (n % batch_size == 1 and not data.replacement):
        _check_single_sample(cfg, model, data)
    if model.micro_batch_size is not None and model.micro_batch_size < batch_size:
        _warn_of_slices(model)
    return model


def _check_single_sample(cfg: DictConfig, model: Classifier, data: ImageDataModule) -> None:
    """BatchNorm cannot train on one value per channel, so on one sample of 1x1 maps."""
    height, width, channels = data.split.train.pixels.shape[1:]
    try:
        deepcopy(model.net)(torch.zeros(1, channels, height, width))
    except ValueError as error:
        n = len(data.split.train)
        reason = f"leaves a batch of 1 of {n} samples, which {cfg.names.model}'s BatchNorm refuses"
        raise ConfigError("batch_size", cfg.batch_size, f"{reason}; take another") from error


def _warn_of_slices(model: Classifier) -> None:
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        print(
            f"warning: micro_batch_size={model.micro_batch_size} with BatchNorm: its statistics "
            "are those of the slices, so the losses differ from those of whole batches",
            flush=True,
        )


def _trainer(
    cfg: DictConfig,
    request: Request,
    directory: Path,
    title: str,
    stop: StopAtThreshold,
    signals: StopOnSignal,
) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning", message=".*treespec.*")
    recorder = stop.recorder
    checkpoint = directory / results.CHECKPOINT
    live = Console().is_terminal and (cfg.sweep.workers or 1) == 1
    assert request.max_steps is not None
    return L.Trainer(
        **cfg.trainer,
        max_epochs=-1,
        max_steps=request.max_steps,
        callbacks=[
            recorder,
            stop,
            LogCurves(
                directory,
                recorder,
                cfg.tensorboard.points_per_epoch,
                stop.rule.steps_per_epoch,
                stop.effective_batch_size,
            ),
            signals,
            TimedCheckpoint(recorder, signals, checkpoint, cfg.checkpoint.every_seconds),
            ShowProgress(title, stop, request.max_steps, cfg.progress.every_seconds, live),
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def _usable(checkpoint: Path) -> Path | None:
    """The checkpoint if it can be read; one that cannot is set aside."""
    if not checkpoint.exists():
        return None
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:
        aside = checkpoint.with_suffix(".corrupt")
        checkpoint.replace(aside)
        print(f"{checkpoint}: cannot be read ({type(error).__name__}), kept as {aside.name}")
        return None
    return checkpoint


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir: {directory}: {error.strerror}") from error


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **versions}
