"""Runs the jobs that Hydra composed; a job that fails does not end its sweep."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from cbs_lightning.cli.messages import error_line
from cbs_lightning.config.composition import complete
from cbs_lightning.config.identity import run_directory, run_title
from cbs_lightning.config.plain_checks import check_tuning
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import one_line, print_line
from cbs_lightning.errors import UserError, check_writable
from cbs_lightning.imports import load_frameworks
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import Request, Result, Status, answer, describe
from cbs_lightning.results.store import ERROR
from cbs_lightning.signals import TO_STOP, hand_over
from cbs_lightning.sweep.sweeper import BASIC
from cbs_lightning.training.interrupted import Interrupted

if TYPE_CHECKING:
    from cbs_lightning.sweep.job import SweepJob

SEARCH = "critical_batch"  # the sweeper
IN_ONE_LINE = "CBS_ONE_LINE_ERRORS"  # set unless tracebacks are asked for


def run_job(cfg: DictConfig) -> Result | UserError | None:
    """Run a configuration that Hydra composed.

    In a sweep, a job that did not start because the sweep is stopping returns None, one that failed
    returns the reason, and one whose run is locked by another process returns `BusyError`.
    """
    return _run_in_sweep(cfg) if cfg.sweep else _run_alone(cfg)


def _run_alone(cfg: DictConfig) -> Result:
    completed = _completed(cfg)
    try:
        _check_alone()
        check_tuning(HydraConfig.get().overrides.task, [completed])
        # else it may be answered
        if not os.path.isdir(Path(completed.output_dir) / completed.study):  # noqa: PTH112
            check_writable(Path(completed.output_dir))
    except UserError as error:
        sys.exit(f"error: {error_line(error)}")
    # Only now, so that a mistake that Hydra finds is reported at once.
    load_frameworks()
    from cbs_lightning.training.run import run

    try:
        return run(completed)
    except Interrupted as interrupted:
        _print_interrupted(completed, run_title(completed), interrupted.result)
        if interrupted.signal_number == signal.SIGUSR2:
            hand_over(signal.SIGUSR2)
        sys.exit(interrupted.exit_code)
    except UserError as error:
        sys.exit(f"error: {error_line(error)}")
    except Exception as error:
        where = run_directory(completed) / ERROR
        if IN_ONE_LINE not in os.environ or not where.exists():
            raise
        sys.exit(f"error: {run_title(completed)}: {_failure(error, where)}")


def _failure(error: Exception, where: Path) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}; see {where}"


def _run_in_sweep(cfg: DictConfig) -> Result | UserError | None:
    if json.loads(cfg.sweep).get("stop_file"):
        # A worker leaves these to the sweep, also where they are sent to all of a group, and while
        # it imports: one that dies of Ctrl-C ends the others before they have saved themselves.
        for number in TO_STOP:
            signal.signal(number, signal.SIG_IGN)
    load_frameworks()
    from cbs_lightning.sweep.job import SweepJob

    job = SweepJob.parse(cfg.sweep)
    if job.stop_requested():
        return None
    with job.printing_beside_table():
        job.began()
        completed = _completed(cfg)
        if job.output_dir is not None:
            completed = replace(completed, output_dir=job.output_dir)
        return _run_job(completed, job)


def _run_job(cfg: RunConfig, job: "SweepJob") -> Result | UserError:
    from cbs_lightning.training.run import run

    title = job.title(run_title(cfg))
    try:
        return run(cfg, job)
    except Interrupted as interrupted:
        job.ended(Status.INTERRUPTED)
        _print_interrupted(cfg, title, interrupted.result)
        if job.leaves_signals:
            return interrupted.result
        if interrupted.signal_number == signal.SIGUSR2:
            hand_over(signal.SIGUSR2)
        sys.exit(interrupted.exit_code)
    except BusyError as busy:
        job.postponed()
        print_line(f"{title}: locked by another process; retrying at the end")
        return busy
    except UserError as error:
        reason = str(error)
    except Exception as error:
        reason = _failure(error, run_directory(cfg) / ERROR)
    job.ended(Status.FAILED)
    print_line(f"{title}: failed: {reason}")
    return UserError(reason)


def _completed(cfg: DictConfig) -> RunConfig:
    try:
        return complete(cfg, HydraConfig.get())
    except UserError as error:
        sys.exit(f"error: {error_line(error)}")


def _print_interrupted(cfg: RunConfig, title: str, result: Result) -> None:
    from cbs_lightning.training.run import stored_run

    stored = stored_run(cfg)
    request = Request(result.threshold, result.rule, result.window)
    found = answer(stored.result, stored.trajectory, request) if stored is not None else result
    if found.status is Status.REACHED:
        what = f"{describe(found)}, before it was interrupted"
        print_line(f"{title}: {what}; run the same command to finish it")
        return
    print_line(f"{title}: {describe(result)}; run the same command to resume")


def _check_alone() -> None:
    """Refuse a search or a launcher for a single run."""
    choices = HydraConfig.get().runtime.choices
    if choices["hydra/sweeper"] == SEARCH:
        raise UserError(f"hydra/sweeper={SEARCH}: a search needs -m")
    if (launcher := choices["hydra/launcher"]) != BASIC:
        raise UserError(f"hydra/launcher={launcher}: a launcher needs -m")
