"""The Trainer of a run, with the callbacks that watch it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger, WandbLogger

from cbs_lightning.callbacks import (
    FollowProgress,
    FollowSchedule,
    Job,
    LogCurves,
    StepwiseCheckpoint,
    StopAtThreshold,
    StopOnSignal,
    SwitchWeights,
    TimedCheckpoint,
    TrajectoryRecorder,
    WeighMicroBatches,
)
from cbs_lightning.callbacks.probes.measure_noise import MeasureNoise
from cbs_lightning.callbacks.progress import PrintProgress, ProgressSink, ReportProgress
from cbs_lightning.callbacks.progress_bar import ShowProgressBar
from cbs_lightning.config.identity import NEUTRAL, flatten
from cbs_lightning.config.schema import RunConfig, recorded
from cbs_lightning.console import in_terminal
from cbs_lightning.errors import ConfigError
from cbs_lightning.files import inside
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.results import store
from cbs_lightning.results.checkpoints import DurableCheckpointIO
from cbs_lightning.results.result import Request, Result
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.training.budgeted_trainer import Budget, BudgetedTrainer, quieten


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
    stepwise: bool,
) -> Watchers:
    stop = StopAtThreshold(
        request.threshold,
        request.rule,
        None if request.rule is RuleName.EPOCH else request.window,
        recorder=recorder,
        batch_size=blank.effective_batch_size,
        sfo_limit=signals.job.sfo_limit,
        look_every=cfg.stop.look_every,
    )
    path, every_seconds = directory / store.CHECKPOINT, cfg.checkpoint.every_seconds
    kind = StepwiseCheckpoint if stepwise else TimedCheckpoint
    return Watchers(stop, signals, kind(stop, signals, path, every_seconds, save_last))


def make_trainer(
    cfg: RunConfig,
    max_steps: int,
    directory: Path,
    title: str,
    watch: Watchers,
    rates: RateSchedule,
    gpu: int | None,
    slices: int = 1,
    more: Sequence[L.Callback] = (),
    probes: MeasureNoise | None = None,
    *,
    budget: Budget,
) -> L.Trainer:
    """The Trainer of a run, which tells a module this `budget`.

    `gpu` is torch's number of the GPU to train on; None for the first device. A batch is handed
    over in this many `slices`; 1 means one batch, or a chunk of batches, at a time.
    """
    quieten()
    stop = watch.stop
    assert stop.effective_batch_size is not None
    curves = LogCurves(
        directory,
        stop.recorder,
        cfg.tensorboard.points,
        stop.effective_batch_size,
        rates,
    )
    progress = FollowProgress(stop, max_steps, _sinks(cfg, title, watch.signals.job), probes)
    # In this order: what is recorded is looked at, and what was found may be saved.
    own: list[L.Callback] = [
        SwitchWeights(), stop.recorder, stop, curves, watch.signals, watch.checkpoint, progress,
    ]  # fmt: skip
    if probes is not None:  # what they found may be saved too
        own.insert(own.index(curves), probes)
    if slices > 1:
        own.insert(0, WeighMicroBatches(stop.recorder))
    if isinstance(watch.checkpoint, StepwiseCheckpoint) and not rates.is_constant:
        own.insert(0, FollowSchedule(rates, stop.recorder))
    added = [*more, *_added_callbacks(cfg)]
    settings = cfg.trainer | ({} if gpu is None else {"devices": [gpu]})
    return BudgetedTrainer(
        budget,
        max_steps,
        **settings,
        callbacks=[*own, *added],
        accumulate_grad_batches=slices,
        plugins=[DurableCheckpointIO()],
        default_root_dir=directory,
        logger=_loggers(cfg, directory, title),
        enable_checkpointing=any(isinstance(each, Checkpoint) for each in added),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def _added_callbacks(cfg: RunConfig) -> list[L.Callback]:
    return [
        instantiate({k: v for k, v in settings.items() if k != NEUTRAL}, _convert_="all")
        for settings in cfg.callbacks.values()
    ]


def _loggers(cfg: RunConfig, directory: Path, title: str) -> list[Logger]:
    """The loggers, which write to folders of the run's directory and receive its configuration."""
    loggers = []
    for name, settings in cfg.logger.items():
        folder = inside(directory, name)
        folder.mkdir(exist_ok=True)
        where_null = {
            "name": title, "run_name": title, "project": cfg.study, "experiment_name": cfg.study,
            "tracking_uri": f"sqlite:///{folder.resolve() / 'mlflow.db'}",
            "artifact_location": str(folder.resolve() / "artifacts"),
        }  # fmt: skip
        filled = {k: where_null.get(k) if v is None else v for k, v in settings.items()}
        try:
            logger: Logger = instantiate(filled, save_dir=str(folder), _convert_="all")
            logger.log_hyperparams(flatten(recorded(cfg)))
        except Exception as error:  # of a server that is not there, say
            reason = " ".join(str(error.__cause__ or error).split())
            raise ConfigError(f"logger.{name}", settings["_target_"], reason) from error
        loggers.append(logger)
    return loggers


def close_loggers(trainer: L.Trainer) -> None:
    """Close loggers: Lightning leaves a run of wandb open for whatever the process does next."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()


def _sinks(cfg: RunConfig, title: str, job: Job) -> list[ProgressSink]:
    """Where progress goes: to the sweep if there is one, otherwise to lines or a bar."""
    lines = PrintProgress(title, cfg.progress.every_seconds, job.time_left)
    if job.in_sweep:
        report = ReportProgress(job.update)
        return [report] if job.shown_live else [report, lines]
    return [ShowProgressBar(title)] if in_terminal() else [lines]
