"""Training: a configuration becomes a model and a trainer, and leaves a result."""

import logging
import os
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.callbacks import (
    LogCurves,
    PrintProgress,
    ShowProgressBar,
    StopAtThreshold,
    StopOnSignal,
    TellBoard,
    TimedCheckpoint,
    TrajectoryRecorder,
)
from cbs_lightning.config.compose import config_hash, hyperparameters
from cbs_lightning.console import in_terminal, say
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.files import write_atomically
from cbs_lightning.models.compilation import compile_net, is_of_compiler, uncompiled
from cbs_lightning.optim.learning_rate import learning_rate, told
from cbs_lightning.results import provenance as record
from cbs_lightning.results import store
from cbs_lightning.results.checkpoints import (
    Checkpoint,
    DurableCheckpointIO,
    latest_checkpoint,
    remove_checkpoints,
)
from cbs_lightning.results.result import (
    SCHEMA_VERSION,
    UNFINISHED,
    Request,
    Result,
    Run,
    Status,
    answer,
)
from cbs_lightning.results.sfo_limit import most_sfo_of
from cbs_lightning.results.store import publish
from cbs_lightning.results.trajectory import Rule, RuleName
from cbs_lightning.signals import held_back, signal_of
from cbs_lightning.sweep.gpus import gpu_title
from cbs_lightning.sweep.live.board import board_of
from cbs_lightning.sweep.live.time_left import sweep_left
from cbs_lightning.training.allocator import freed_memory_kept
from cbs_lightning.training.build import build_model
from cbs_lightning.training.choices import resolve
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.memory import is_out_of_memory
from cbs_lightning.training.work import operations_of_step


def step_budget(stop: DictConfig, steps_per_epoch: int) -> int:
    budgets = []
    if stop.max_epochs is not None:
        budgets.append(stop.max_epochs * steps_per_epoch)
    if stop.max_steps is not None:
        budgets.append(stop.max_steps)
    return int(min(budgets))


def train(
    cfg: DictConfig,
    data: ImageDataModule,
    directory: Path,
    title: str,
    stored: Run | None,
    gpu: int | None = None,
) -> Result:
    """Train to the threshold or to the end of the budget, in a directory that is this process's.

    `gpu` is torch's number of the one to train on; None: the device that comes first.
    However it ends there is a result; one of an unfinished or abandoned run does not replace a
    `stored` one that knows more. A signal ends in `Interrupted`, after the run was saved.
    """
    identity = config_hash(cfg)
    checkpoint = latest_checkpoint(directory, identity)
    cfg, asked = cfg.copy(), cfg.micro_batch_size
    data.setup("fit")
    resolve(cfg, checkpoint, stored, partial(operations_of_step, cfg, data))
    torch.set_num_threads(cfg.threads)
    L.seed_everything(cfg.seed, verbose=False)
    # Where algorithms are deterministic, torch fills all memory that it takes, lest it be read
    # before it is written. Nothing here does that, and it takes up to an eighth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    n = len(data.split.train)
    steps_per_epoch = -(-n // min(cfg.batch_size, n))
    request = Request(
        cfg.stop.loss,
        RuleName(cfg.stop.rule),
        cfg.stop.window or n,
        step_budget(cfg.stop, steps_per_epoch),
    )
    result = _blank_result(cfg, identity, request, n, steps_per_epoch)
    recorder = TrajectoryRecorder()
    signals = StopOnSignal(Path(cfg.sweep.stop_file) if cfg.sweep.stop_file else None)
    finish = partial(_finish, directory, request, recorder, stored)
    try:
        rule = Rule(request.rule, steps_per_epoch, request.window)
        stop = StopAtThreshold(
            recorder, request.threshold, rule, result.effective_batch_size, most_sfo_of(cfg)
        )
        checkpointing = TimedCheckpoint(
            stop,
            signals,
            directory / store.CHECKPOINT,
            cfg.checkpoint.every_seconds,
            save_last=cfg.checkpoint.keep or data.split.test is not None,
        )
        trainer = _trainer(cfg, request, directory, title, (stop, signals, checkpointing), gpu)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # else the first GPU, or that of the run before, is used
        device_name = record.device_name(device)
        model = build_model(cfg, data, device)
        if cfg.compile is not None:
            deterministic = bool(cfg.trainer.get("deterministic"))
            compile_net(model, cfg.compile, deterministic=deterministic, took=recorder.leave_out)
        result = replace(
            result,
            micro_batch_size=model.micro_batch_size,
            device=device_name if gpu is None else f"{device_name}, {gpu_title(gpu)}",
            configuration=_recorded(cfg),
        )
        text = OmegaConf.to_yaml(OmegaConf.create(result.configuration))
        write_atomically(directory / store.CONFIG, text.encode())
        checkpointing.origin = {
            "config_hash": identity,
            "threads": cfg.threads,
            "micro_batch_size": model.micro_batch_size,
            "device": device_name,
            **result.versions,
        }
        _say_where_it_begins(title, checkpoint, stored, cfg.checkpoint.keep)
        if rate := told(cfg, n):
            say(f"{title}: {rate}")
        resume = checkpoint.path if checkpoint is not None else None
        with freed_memory_kept() if device.type == "cpu" else nullcontext():
            trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
        ended = stop.status or (Status.INTERRUPTED if signals.received else Status.EXHAUSTED)
        if ended in (Status.REACHED, Status.EXHAUSTED) and data.split.test is not None:
            with uncompiled(cfg.compile):
                (tested,) = trainer.test(model, datamodule=data, verbose=False)
            result = replace(result, test_accuracy=tested["test_accuracy"])
    except ConfigError:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning turns the first into the second
        result = _finish_badly(finish, directory, recorder, result, Status.INTERRUPTED)
        raise Interrupted(result, signals.received or signal_of(error)) from error
    except Exception as error:
        _finish_badly(finish, directory, recorder, result, Status.FAILED)
        if is_out_of_memory(error):
            raise UserError(f"batch_size={cfg.batch_size}: {_needs_less(cfg, asked)}") from error
        if cfg.compile is not None and is_of_compiler(error):
            where = directory / store.ERROR
            reason = f"the net cannot be compiled here, see {where}; allowed: null"
            raise ConfigError("compile", cfg.compile, reason) from error
        raise
    with held_back():
        result = finish(result, ended)
    if ended is not Status.INTERRUPTED:
        with suppress(OSError):  # the run is whole; what is left over does no harm
            (directory / store.ERROR).unlink(missing_ok=True)
            if not cfg.checkpoint.keep and ended is not Status.ABANDONED:
                remove_checkpoints(directory)
    if signals.received:
        raise Interrupted(result, signals.received)
    return result


def _say_where_it_begins(
    title: str, checkpoint: Checkpoint | None, stored: Run | None, keep: bool
) -> None:
    finished = stored is not None and stored.result.ended not in UNFINISHED
    why = "the stored losses end too soon to tell; " if finished else ""
    if checkpoint is not None:
        say(f"{title}: {why}goes on from {checkpoint.path}")
    elif finished:
        advice = "" if keep else " (checkpoint.keep=true keeps it)"
        say(f"{title}: {why}there is no checkpoint{advice}, so it is trained anew")


def _needs_less(cfg: DictConfig, asked: int | str | None) -> str:
    """What a user who asked for these slices can still do about a want of memory."""
    slices = "micro_batch_size=auto" if asked is None else "a smaller number as micro_batch_size"
    ways = [f"set {slices} (with BatchNorm that changes the losses)"]
    if not cfg.activation_checkpointing and cfg.compile is None:
        ways.append("set activation_checkpointing=true (that does not)")
    if (cfg.sweep.workers or 1) > 1 and not cfg.sweep.elsewhere:
        ways.append("run fewer jobs at a time (jobs=1)")
    return f"out of memory; {', or '.join(ways)}"


def _blank_result(
    cfg: DictConfig, identity: str, request: Request, n: int, steps_per_epoch: int
) -> Result:
    """A result of no steps."""
    return Result(
        schema_version=SCHEMA_VERSION,
        status=Status.FAILED,
        ended=Status.FAILED,
        study=cfg.study,
        variant=cfg.names.variant,
        data=cfg.names.data,
        model=cfg.names.model,
        optimizer=cfg.names.optimizer,
        lr=learning_rate(cfg, n),
        hyperparameters=hyperparameters(cfg),
        batch_size=cfg.batch_size,
        effective_batch_size=min(cfg.batch_size, n),
        micro_batch_size=None,
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
        config_hash=identity,
        versions=record.versions(),
        commit=record.commit(),
        machine=record.machine(),
    )


def _finish(
    directory: Path,
    request: Request,
    recorder: TrajectoryRecorder,
    stored: Run | None,
    result: Result,
    ended: Status,
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
    result = answer(result, recorder.trajectory, request)
    if ended in UNFINISHED:  # whatever its losses say so far
        result = replace(result, status=ended, steps=None, sfo=None, samples=None)
    cut_short = ended in (*UNFINISHED, Status.ABANDONED)
    if cut_short and stored is not None and _knows_more(stored, steps_run):
        return result
    store.write_trajectory(directory, recorder.trajectory)
    publish(directory, result)
    return result


def _knows_more(stored: Run, steps_run: int) -> bool:
    """Than an unfinished run of these steps; a finished run does where both know the same."""
    finished = stored.result.ended not in UNFINISHED
    return len(stored.trajectory) > steps_run - finished


def _finish_badly(
    finish: Callable[[Result, Status], Result],
    directory: Path,
    recorder: TrajectoryRecorder,
    result: Result,
    ended: Status,
) -> Result:
    """Write what can still be written: the device or the disk may be in trouble."""
    with suppress(Exception):
        recorder.pause()
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        if ended is Status.FAILED:
            write_atomically(directory / store.ERROR, traceback.format_exc().encode())
        result = finish(result, ended)
    return result


def _trainer(
    cfg: DictConfig,
    request: Request,
    directory: Path,
    title: str,
    callbacks: tuple[StopAtThreshold, StopOnSignal, TimedCheckpoint],
    gpu: int | None,
) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for pointless in (".*treespec.*", ".*`srun` command is available.*"):
        warnings.filterwarnings("ignore", module="lightning", message=pointless)
    # Lightning has torch ask NVIDIA's management library whether there is a GPU, and Adam asks at
    # every step: a fifth of a millisecond each, where the answer cannot change.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    stop, signals, checkpointing = callbacks
    assert request.max_steps is not None
    curves = LogCurves(
        directory,
        stop.recorder,
        cfg.tensorboard.points,
        stop.effective_batch_size,
        cfg.warmup_samples,
    )
    progress = _progress(cfg, title, stop, request.max_steps)
    settings = dict(cfg.trainer) | ({} if gpu is None else {"devices": [gpu]})
    return L.Trainer(
        **settings,
        max_epochs=-1,
        max_steps=request.max_steps,
        # In this order: what is recorded is looked at, and what was found may be saved.
        callbacks=[stop.recorder, stop, curves, signals, checkpointing, *progress],
        # Under SLURM, Lightning would look for checkpoints of its own, of whatever run.
        plugins=[DurableCheckpointIO(), LightningEnvironment()],
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def _progress(
    cfg: DictConfig, title: str, stop: StopAtThreshold, max_steps: int
) -> list[L.Callback]:
    """A job tells its sweep, which may show it; else there are lines, or a bar in a terminal."""
    board = board_of(cfg)
    lines = PrintProgress(
        title, stop, max_steps, cfg.progress.every_seconds, partial(sweep_left, cfg), cfg.sweep.part
    )
    if board is not None:
        telling = TellBoard(board, cfg.sweep.job, stop, max_steps)
        return [telling] if board.live else [telling, lines]
    return [ShowProgressBar(title, stop, max_steps)] if in_terminal() else [lines]


def _recorded(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, without what the run does not depend on."""
    values = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(values, dict)
    left_out = ("sweep", "jobs", "jobs_per_gpu", "repeat")
    return {str(key): values[key] for key in values if key not in left_out}
