"""Between Hydra and a run: a user's mistake ends in one line, a job's failure stays its own."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbs_lightning.config.composition import complete, compose_whole
from cbs_lightning.config.identity import run_directory, run_title
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import INTERRUPTED, print_line, visible
from cbs_lightning.errors import UserError
from cbs_lightning.imports import load_frameworks
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import Result, Status, describe
from cbs_lightning.results.store import ERROR
from cbs_lightning.search import settings as search_settings
from cbs_lightning.signals import TO_STOP, hand_over
from cbs_lightning.sweep.sweeper import BASIC
from cbs_lightning.training.interrupted import Interrupted

if TYPE_CHECKING:
    from cbs_lightning.sweep.job import SweepJob

SEARCH = "critical_batch"  # the sweeper
GROUP_CHOICE = r"(data|model|optimizer|hydra/sweeper|hydra/launcher)=\w+|hydra\.searchpath=.*"


def run_job(cfg: DictConfig) -> Result | UserError | None:
    """Run a configuration that Hydra composed.

    In a sweep a job that was not begun because the sweep stops returns None, one that failed the
    reason, and one that another process works on `BusyError`.
    """
    return _run_in_sweep(cfg) if cfg.sweep else _run_alone(cfg)


def _run_alone(cfg: DictConfig) -> Result:
    completed = _completed(cfg)
    try:
        _check_alone()
    except UserError as error:
        sys.exit(f"error: {error}")
    # Only now, so that a mistake that Hydra finds is reported at once.
    load_frameworks()
    from cbs_lightning.training.run import run

    try:
        return run(completed)
    except Interrupted as interrupted:
        _print_interrupted(run_title(completed), interrupted.result)
        if interrupted.signal_number == signal.SIGUSR2:
            hand_over(signal.SIGUSR2)
        sys.exit(interrupted.exit_code)
    except UserError as error:
        sys.exit(f"error: {error}")


def _run_in_sweep(cfg: DictConfig) -> Result | UserError | None:
    load_frameworks()
    from cbs_lightning.sweep.job import SweepJob

    job = SweepJob.parse(cfg.sweep)
    if job.leaves_signals:
        # A worker leaves these to the sweep, also where they are sent to all of a group.
        for number in TO_STOP:
            signal.signal(number, signal.SIG_IGN)
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
        _print_interrupted(title, interrupted.result)
        if job.leaves_signals:
            return interrupted.result
        if interrupted.signal_number == signal.SIGUSR2:
            hand_over(signal.SIGUSR2)
        sys.exit(interrupted.exit_code)
    except BusyError as busy:
        job.postponed()
        print_line(f"{title}: another process works on it; comes last")
        return busy
    except UserError as error:
        reason = str(error)
    except Exception as error:
        where = run_directory(cfg) / ERROR
        reason = f"{type(error).__name__}: {_one_line(str(error))}; see {where}"
    job.ended(Status.FAILED)
    print_line(f"{title}: failed: {reason}")
    return UserError(reason)


def _completed(cfg: DictConfig) -> RunConfig:
    try:
        return complete(cfg, HydraConfig.get())
    except UserError as error:
        sys.exit(f"error: {error}")


def _print_interrupted(title: str, result: Result) -> None:
    print_line(f"{title}: {describe(result)}; the same command goes on")


def _check_alone() -> None:
    """A run of its own is no search, and no launcher's."""
    choices = HydraConfig.get().runtime.choices
    if choices["hydra/sweeper"] == SEARCH:
        raise UserError(f"hydra/sweeper={SEARCH}: a search needs -m")
    if (launcher := choices["hydra/launcher"]) != BASIC:
        raise UserError(f"hydra/launcher={launcher}: a launcher needs -m")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn Hydra's errors and this project's into one line, unless HYDRA_FULL_ERROR is set."""
    if os.environ.get("HYDRA_FULL_ERROR"):
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints its own report and exits
    sys.argv[1:] = map(_quoted, sys.argv[1:])
    with _terminated_by(signal.SIGTERM), _errors_in_one_line():
        yield


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        sys.exit(f"error: {visible(describe_hydra_error(error))}")
    except UserError as error:
        sys.exit(f"error: {error}")
    except ValueError as error:
        if "Config group override must be" not in str(error):  # what Hydra says to group=null
            raise
        typed = [word for word in sys.argv[1:] if word.endswith("=null")]
        sys.exit(f"error: {' '.join(typed)}: a group needs one of its options, or leave it out")
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@contextmanager
def _terminated_by(number: signal.Signals) -> Iterator[None]:
    """While inside, the signal ends the program as an exception does, with its cleaning up.

    A launcher that listens to it, as a cluster's may, goes on doing so.
    """
    previous = signal.getsignal(number)
    if previous is signal.SIG_DFL:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _quoted(word: str) -> str:
    """A run directory's name may have = and commas, to which Hydra gives a meaning."""
    if not re.match("repeat=[^'\"]", word):
        return word
    key, _, path = word.partition("=")
    return f"{key}='{path}'"


def _terminate(number: int, _: object) -> None:
    print(INTERRUPTED, file=sys.stderr)
    sys.exit(128 + number)


def describe_hydra_error(error: Exception) -> str:
    """One line: the key, the value and what is allowed, as far as Hydra says."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if group and error.options:
            return f"{group}={name}: allowed: {', '.join(sorted(error.options))}"
    if isinstance(error, OverrideParseException):
        reason = _one_line(str(error).partition("\n")[0])
        return f"{error.override}: cannot be read as key=value ({reason})"
    ambiguous = re.match(r"Ambiguous value for argument '([^']+)'", str(error))
    if ambiguous:
        return f"{ambiguous[1]}: several values make a sweep, which needs -m"
    unknown = re.match(r"Could not override '([^']+)'", str(error))
    if unknown:
        key = unknown[1]
        typed = next((word for word in sys.argv[1:] if word.startswith(f"{key}=")), key)
        return f"{typed}: no such key; allowed: {_siblings(key)}"
    if (merged := re.match("Error merging override (.+)", str(error))) and error.__cause__:
        return f"{merged[1]}: {str(error.__cause__).partition(chr(10))[0]}"
    return _one_line(str(error))


def _siblings(key: str) -> str:
    """The keys that exist where `key` does not."""
    parent, _, _ = key.rpartition(".")
    GlobalHydra.instance().clear()
    groups = [word for word in sys.argv[1:] if re.fullmatch(GROUP_CHOICE, word)]
    try:
        cfg = compose_whole(groups)
    except (HydraException, OmegaConfBaseException, UserError):
        return "see python train.py --help"
    node = OmegaConf.select(cfg, parent) if parent else cfg
    while parent and node is None:
        parent, _, _ = parent.rpartition(".")
        node = OmegaConf.select(cfg, parent) if parent else cfg
    if not isinstance(node, DictConfig):
        return f"none, {parent} is {node}"
    hidden = ("hydra", "sweep", "_target_", "_partial_")
    names = sorted(f"{parent}.{name!s}".lstrip(".") for name in node if name not in hidden)
    return ", ".join(names) + _of_a_search(key)


def _of_a_search(key: str) -> str:
    """A hint, where it is one of a search's settings without what they begin with, or without
    the search."""
    name = key.removeprefix("hydra.sweeper.")
    if name not in search_settings.KEYS:
        return ""
    return f"; a search has hydra.sweeper.{name}, with hydra/sweeper=critical_batch"


def _one_line(text: str) -> str:
    return " ".join(text.split())
