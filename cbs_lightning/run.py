"""One run: a configuration becomes a model and its data, trains, and leaves its result."""

import importlib.metadata
import logging
import platform
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
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
from cbs_lightning.callbacks.progress import duration, is_terminal
from cbs_lightning.config import check, config_hash, hyperparameters
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.models import Classifier
from cbs_lightning.results import Result, Run, Status
from cbs_lightning.tensorboard import write_hparams
from cbs_lightning.threads import threads
from cbs_lightning.trajectory import Rule, RuleName

PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


UNFINISHED = (Status.FAILED, Status.INTERRUPTED)


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """A signal ended the run after it was saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


def run(cfg: DictConfig) -> Result:
    """Answer the configuration's request: from what is stored, else by training."""
    data = check_run(cfg)
    directory = run_directory(cfg)
    title = run_title(cfg)
    stored = _stored_run(directory)
    if stored is not None:
        result = answer_from_store(cfg, stored)
        if result is not None:
            if result != stored.result:
                _write(directory, result)
            print(f"{title}: {describe(result)}, known already", flush=True)
            return result
    result = _train(cfg, data, directory, title)
    print(f"{title}: {describe(result)}{_sweep_time_left(cfg)}", flush=True)
    return result


def check_run(cfg: DictConfig) -> ImageDataModule:
    """Raise `UserError` unless the run can start; writes nothing but downloaded data."""
    check(cfg)
    data: ImageDataModule = instantiate(
        cfg.data, data_dir=cfg.data_dir, batch_size=cfg.batch_size, seed=cfg.seed
    )
    data.prepare_data()
    return data


def run_directory(cfg: DictConfig) -> Path:
    return results.run_directory(
        Path(cfg.output_dir),
        cfg.study,
        cfg.names.variant,
        cfg.batch_size,
        cfg.seed,
        config_hash(cfg),
    )


def run_title(cfg: DictConfig) -> str:
    number = f"[{cfg.sweep.job}/{cfg.sweep.jobs}] " if cfg.sweep.jobs else ""
    seed = f" seed={cfg.seed}" if cfg.seed else ""
    return f"{number}{cfg.names.variant} b={cfg.batch_size}{seed}"


def describe(result: Result) -> str:
    if result.status is Status.REACHED:
        found = f"reached {result.threshold:g} after {result.steps:,} steps, SFO {result.sfo:,}"
    else:
        loss = f", loss {result.loss:.3g}" if result.loss is not None else ""
        found = f"{result.status} after {result.steps_run:,} steps{loss}"
    return f"{found}, {duration(result.seconds)}"


def _sweep_time_left(cfg: DictConfig) -> str:
    """As if the jobs to come took as long as those before; early on, that is not worth telling."""
    sweep = cfg.sweep
    if not sweep.jobs or not sweep.jobs / 4 <= sweep.job < sweep.jobs:
        return ""
    seconds = (time.time() - sweep.started) / sweep.job * (sweep.jobs - sweep.job)
    return f"; about {duration(seconds)} left"


def _stored_run(directory: Path) -> Run | None:
    try:
        return results.read_run(directory)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        print(f"{directory}: cannot be read ({error}); training it anew", flush=True)
        return None


def answer_from_store(cfg: DictConfig, stored: Run) -> Result | None:
    """The request's answer where the stored losses hold it, else None."""
    if stored.result.status in UNFINISHED:
        return None
    max_steps = step_budget(cfg, stored.result.steps_per_epoch)
    result = results.answer(
        stored.result,
        stored.trajectory,
        threshold=cfg.stop.loss,
        rule=RuleName(cfg.stop.rule),
        window=cfg.stop.window or stored.result.window,
        max_steps=max_steps,
    )
    if result.status is Status.EXHAUSTED and len(stored.trajectory) < max_steps:
        return None  # a larger budget
    return result if result.status is not None else None


def step_budget(cfg: DictConfig, steps_per_epoch: int) -> int:
    budgets = []
    if cfg.stop.max_epochs is not None:
        budgets.append(cfg.stop.max_epochs * steps_per_epoch)
    if cfg.stop.max_steps is not None:
        budgets.append(cfg.stop.max_steps)
    return int(min(budgets))


def _train(cfg: DictConfig, data: ImageDataModule, directory: Path, title: str) -> Result:
    cfg = cfg.copy()
    cfg.threads = threads(cfg, directory)
    torch.set_num_threads(cfg.threads)
    L.seed_everything(cfg.seed, verbose=False)
    data.setup("fit")
    n = len(data.split.train)
    effective_batch_size = min(cfg.batch_size, n)
    steps_per_epoch = -(-n // effective_batch_size)
    max_steps = step_budget(cfg, steps_per_epoch)
    rule = Rule(RuleName(cfg.stop.rule), steps_per_epoch, cfg.stop.window or n)
    model: Classifier = instantiate(
        cfg.model,
        in_channels=data.in_channels,
        num_classes=data.num_classes,
        optimizer=instantiate(cfg.optimizer, _convert_="all"),
        micro_batch_size=cfg.micro_batch_size,
    )
    _warn_of_ghost_batch_norm(model, effective_batch_size)

    recorder = TrajectoryRecorder()
    stop = StopAtThreshold(recorder, cfg.stop.loss, rule, effective_batch_size)
    signals = StopOnSignal()
    checkpoint = directory / results.CHECKPOINT
    saver = TimedCheckpoint(recorder, signals, checkpoint, cfg.checkpoint.every_seconds)
    live = is_terminal() and (cfg.sweep.workers or 1) == 1
    trainer = _trainer(
        cfg,
        max_steps,
        TensorBoardLogger(directory, name="", version=""),
        [
            recorder,
            stop,
            LogCurves(recorder, cfg.tensorboard.points_per_epoch, effective_batch_size),
            signals,
            saver,
            ShowProgress(title, stop, max_steps, cfg.progress.every_seconds, live),
        ],
    )

    _make_directory(directory)
    OmegaConf.save(cfg, directory / results.CONFIG)
    result = Result(
        schema_version=results.SCHEMA_VERSION,
        status=Status.FAILED,
        study=cfg.study,
        variant=cfg.names.variant,
        data=cfg.names.data,
        model=cfg.names.model,
        optimizer=cfg.names.optimizer,
        lr=cfg.optimizer.lr,
        hyperparameters=hyperparameters(cfg),
        batch_size=cfg.batch_size,
        effective_batch_size=effective_batch_size,
        micro_batch_size=cfg.micro_batch_size,
        seed=cfg.seed,
        threshold=cfg.stop.loss,
        rule=rule.name,
        window=rule.window,
        steps=None,
        sfo=None,
        samples=None,
        steps_run=0,
        epochs_run=0.0,
        steps_per_epoch=steps_per_epoch,
        loss=None,
        accuracy=None,
        test_accuracy=None,
        seconds=0.0,
        seconds_per_step=None,
        threads=cfg.threads,
        device=_device_name(trainer.strategy.root_device),
        config_hash=config_hash(cfg),
        versions=_versions(),
    )
    try:
        resume = str(checkpoint) if checkpoint.exists() else None
        trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
        status = stop.status or (Status.INTERRUPTED if signals.received else Status.EXHAUSTED)
        testable = status in (Status.REACHED, Status.EXHAUSTED) and data.split.test is not None
        if testable:
            (tested,) = trainer.test(model, datamodule=data, verbose=False)
            result = replace(result, test_accuracy=tested["test_accuracy"])
    except Exception:
        with suppress(Exception):  # a device in trouble may not give its values any more
            recorder.pause()
        _finish(directory, replace(result, status=Status.FAILED), recorder)
        (directory / results.ERROR).write_text(traceback.format_exc())
        raise
    result = _finish(directory, replace(result, status=status), recorder)
    if status is Status.INTERRUPTED:
        assert signals.received is not None
        print(f"{title}: {describe(result)}; the same command goes on from here", flush=True)
        raise Interrupted(signals.received)
    for leftover in (checkpoint, directory / results.ERROR):
        leftover.unlink(missing_ok=True)
    return result


def _finish(directory: Path, result: Result, recorder: TrajectoryRecorder) -> Result:
    """Write what there is, result last: a run with a result is whole."""
    steps_run = len(recorder.trajectory)
    result = replace(
        result,
        steps_run=steps_run,
        epochs_run=steps_run / result.steps_per_epoch,
        seconds_per_step=recorder.seconds / steps_run if steps_run else None,
    )
    answered = results.answer(
        result,
        recorder.trajectory,
        threshold=result.threshold,
        rule=result.rule,
        window=result.window,
    )
    if result.status in UNFINISHED:  # whatever its losses say so far
        answered = replace(answered, status=result.status, steps=None, sfo=None, samples=None)
    result = answered
    results.write_trajectory(directory, recorder.trajectory)
    _write(directory, result)
    return result


def _write(directory: Path, result: Result) -> None:
    results.write_result(directory, result)
    write_hparams(directory, result)


def _trainer(
    cfg: DictConfig, max_steps: int, logger: TensorBoardLogger, callbacks: list[L.Callback]
) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning", message=".*treespec.*")
    settings: dict[str, Any] = {"deterministic": "warn"} | dict(cfg.trainer)
    try:
        return L.Trainer(
            **settings,
            max_epochs=-1,
            max_steps=max_steps,
            logger=logger,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            use_distributed_sampler=False,
        )
    except MisconfigurationException as error:
        raise ConfigError("trainer.accelerator", cfg.trainer.accelerator, str(error)) from error


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir: {directory}: {error.strerror}") from error


def _warn_of_ghost_batch_norm(model: Classifier, effective_batch_size: int) -> None:
    sliced = model.micro_batch_size is not None and model.micro_batch_size < effective_batch_size
    if sliced and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        print(
            f"warning: micro_batch_size={model.micro_batch_size} with BatchNorm: its statistics "
            "are those of the slices, so the losses differ from those of whole batches",
            flush=True,
        )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **versions}
