"""Writes the result of a run, however it ends."""

import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.callbacks.log_curves import SUFFIX
from cbs_lightning.callbacks.log_noise import write_events
from cbs_lightning.callbacks.probes.measure_noise import MeasureNoise
from cbs_lightning.config.identity import config_hash, hyperparameters, run_directory
from cbs_lightning.config.schema import AUTO, RunConfig, recorded
from cbs_lightning.files import write_atomically
from cbs_lightning.results import provenance, store
from cbs_lightning.results.checkpoints import remove_checkpoints
from cbs_lightning.results.events import event_paths, replace_events
from cbs_lightning.results.result import (
    SCHEMA_VERSION,
    UNFINISHED,
    Request,
    Result,
    Run,
    Status,
    answer,
)
from cbs_lightning.training.budgeted_trainer import Budget
from cbs_lightning.training.probes import read_record, write_record
from cbs_lightning.training.source import Source


class Outcome:
    """A run's result, completed step by step.

    The result of an unfinished or abandoned run does not replace a `stored` one that knows more.
    """

    def __init__(
        self,
        directory: Path,
        request: Request,
        stored: Run | None,
        result: Result,
        budget: Budget,
    ) -> None:
        self.directory = directory
        self.request = request
        self.stored = stored
        self.result = result
        self.budget = budget
        self.recorder = TrajectoryRecorder()
        self.probes: MeasureNoise | None = None

    def add(self, **known: Any) -> None:
        self.result = replace(self.result, **known)

    def finish(self, ended: Status) -> Result:
        """Write everything, the result last: a run with a result is complete."""
        trajectory = self.recorder.trajectory
        self.add(
            ended=ended,
            steps_run=len(trajectory),
            epochs_run=len(trajectory) / self.result.steps_per_epoch,
            seconds_per_step=self.recorder.seconds_per_step,
            waited=self.recorder.waited,
            trajectory_digest=trajectory.digest(),
            reads_budget=self.budget.was_read,
        )
        self.result = answer(self.result, trajectory, self.request)
        if ended in UNFINISHED:  # whatever its losses say so far
            self.add(status=ended, steps=None, sfo=None, samples=None)
        if not (ended in (*UNFINISHED, Status.ABANDONED) and self._stored_knows_more()):
            store.write_trajectory(self.directory, trajectory)
            store.publish(self.directory, self.result)
        return self.result

    def finish_probes(self) -> None:
        """Write what the probes measured, after the result; what earlier ones did, once more, since
        readers of event files drop what is older than the latest file of curves."""
        if self.probes is not None:
            write_record(self.directory, self.probes, self.result)
        elif (record := read_record(self.directory)) is not None:
            write_events(self.directory, record.probes)

    def finish_badly(self, ended: Status, error: BaseException) -> Result:
        """Write what can still be written: the device, the disk or the memory may have failed."""
        trace = "".join(traceback.format_exception(error))
        traceback.clear_frames(error.__traceback__)  # which hold the memory of the failed step
        with suppress(Exception):
            self.recorder.pause()
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            if ended is Status.FAILED:
                write_atomically(self.directory / store.ERROR, trace.encode())
            self.finish(ended)
        return self.result

    def tidy(self, *, keep_checkpoint: bool) -> None:
        """Remove what a finished run no longer needs."""
        if self.result.ended is Status.INTERRUPTED:
            return
        with suppress(OSError):  # the run is whole; what is left over does no harm
            (self.directory / store.ERROR).unlink(missing_ok=True)
            if not keep_checkpoint and self.result.ended is not Status.ABANDONED:
                remove_checkpoints(self.directory)

    def _stored_knows_more(self) -> bool:
        """A finished run does where both know the same."""
        if self.stored is None:
            return False
        finished = self.stored.result.ended not in UNFINISHED
        return len(self.stored.trajectory) > len(self.recorder.trajectory) - finished


def blank_result(cfg: RunConfig, request: Request, source: Source, threads: int) -> Result:
    """A result with no steps."""
    extent = source.extent
    effective_batch_size = min(cfg.batch_size, extent.size)
    return Result(
        schema_version=SCHEMA_VERSION,
        status=Status.FAILED,
        ended=Status.FAILED,
        study=cfg.study,
        variant=cfg.names.variant,
        data=cfg.names.data,
        model=cfg.names.model,
        optimizer=cfg.names.optimizer,
        lr=cfg.optimizer_settings(extent.size).get("lr"),
        hyperparameters=hyperparameters(cfg, extent.size),
        batch_size=cfg.batch_size,
        effective_batch_size=effective_batch_size,
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
        steps_per_epoch=extent.steps_per_epoch,
        data_size=extent.size,
        loss=None,
        accuracy=None,
        test_accuracy=None,
        seconds=0.0,
        seconds_per_step=None,
        threads=threads,
        device=cfg.trainer["accelerator"],
        config_hash=config_hash(cfg),
        versions=provenance.versions(),
        commit=provenance.commit(),
        machine=provenance.machine(),
        is_stream=extent.is_stream,
        tokens_per_sample=source.tokens_per_sample,
    )


def as_own(cfg: RunConfig, source: Source, request: Request, other: Run) -> Run:
    """Another run of the same computation, as if it had this configuration; nothing is written."""
    made, trajectory = other.result, other.trajectory
    slice_size = cfg.micro_batch_size
    assert slice_size != AUTO  # which is not known to be the same
    tested = made.test_accuracy_at_end
    result = replace(
        blank_result(cfg, request, source, made.threads),
        ended=made.ended,
        micro_batch_size=slice_size,
        steps_run=len(trajectory),
        epochs_run=len(trajectory) / made.steps_per_epoch,
        test_accuracy_at_end=made.test_accuracy if tested is None else tested,
        seconds_per_step=made.seconds_per_step,
        device=made.device,
        versions=made.versions,
        commit=made.commit,
        machine=made.machine,
        waited=made.waited,
        configuration=recorded(cfg, threads=made.threads),
        trajectory_digest=trajectory.digest(),
        losses_from=made.losses_from or other.directory.name,
        reads_budget=made.reads_budget,
    )
    return Run(run_directory(cfg), result, trajectory)


def fill_from(other: Path, own: Run) -> None:
    """Write a run whose losses came from another directory: the result last, and no checkpoint."""
    directory, result = own.directory, own.result
    write_config(directory, result)
    for path in event_paths(other, SUFFIX)[-1:]:
        replace_events(directory, SUFFIX, path.read_bytes())
    store.write_trajectory(directory, own.trajectory)
    store.publish(directory, result)
    with suppress(OSError):
        (directory / store.ERROR).unlink(missing_ok=True)
        remove_checkpoints(directory)


def write_config(directory: Path, result: Result) -> None:
    text = OmegaConf.to_yaml(OmegaConf.create(result.configuration))
    write_atomically(directory / store.CONFIG, text.encode())
