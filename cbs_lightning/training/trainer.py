"""The Trainer of a run, with the callbacks that watch it."""

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from cbs_lightning.callbacks import (
    FollowProgress,
    Job,
    LogCurves,
    StopAtThreshold,
    StopOnSignal,
    TimedCheckpoint,
    TrajectoryRecorder,
)
from cbs_lightning.callbacks.progress import PrintProgress, ProgressSink, ReportProgress
from cbs_lightning.callbacks.progress_bar import ShowProgressBar
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import in_terminal
from cbs_lightning.results import store
from cbs_lightning.results.checkpoints import DurableCheckpointIO
from cbs_lightning.results.result import Request, Result


@dataclass(frozen=True)
class Watchers:
    """The callbacks of a run that know why it ends."""

    stop: StopAtThreshold
    signals: StopOnSignal
    checkpoint: TimedCheckpoint


def watchers(
    cfg: RunConfig,
    request: Request,
    blank: Result,
    recorder: TrajectoryRecorder,
    signals: StopOnSignal,
    directory: Path,
    *,
    save_last: bool,
) -> Watchers:
    stop = StopAtThreshold(
        request.threshold,
        request.rule,
        request.window,
        recorder=recorder,
        batch_size=blank.effective_batch_size,
        sfo_limit=signals.job.sfo_limit,
    )
    path, every_seconds = directory / store.CHECKPOINT, cfg.checkpoint.every_seconds
    return Watchers(stop, signals, TimedCheckpoint(stop, signals, path, every_seconds, save_last))


def make_trainer(
    cfg: RunConfig,
    max_steps: int,
    directory: Path,
    title: str,
    watch: Watchers,
    gpu: int | None,
) -> L.Trainer:
    """`gpu` is torch's number of the one to train on; None: the device that comes first."""
    _quieten()
    stop = watch.stop
    assert stop.batch_size is not None
    curves = LogCurves(
        directory,
        stop.recorder,
        cfg.tensorboard.points,
        stop.batch_size,
        cfg.warmup_samples,
    )
    progress = FollowProgress(stop, max_steps, _sinks(cfg, title, watch.signals.job))
    settings = cfg.trainer | ({} if gpu is None else {"devices": [gpu]})
    return L.Trainer(
        **settings,
        max_epochs=-1,
        max_steps=max_steps,
        # In this order: what is recorded is looked at, and what was found may be saved.
        callbacks=[stop.recorder, stop, curves, watch.signals, watch.checkpoint, progress],
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


def _quieten() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for pointless in (".*treespec.*", ".*`srun` command is available.*"):
        warnings.filterwarnings("ignore", module="lightning", message=pointless)
    # Lightning has torch ask NVIDIA's management library whether there is a GPU, and Adam asks at
    # every step: a fifth of a millisecond each, where the answer cannot change.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def _sinks(cfg: RunConfig, title: str, job: Job) -> list[ProgressSink]:
    """A job reports to its sweep, which may show it; else there are lines, or a bar."""
    lines = PrintProgress(title, cfg.progress.every_seconds, job.time_left)
    if job.in_sweep:
        report = ReportProgress(job.update)
        return [report] if job.shown_live else [report, lines]
    return [ShowProgressBar(title)] if in_terminal() else [lines]
