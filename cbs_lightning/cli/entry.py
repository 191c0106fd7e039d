"""The command `cbs-train`, which is `python train.py`: one-line errors, exit codes."""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from omegaconf import DictConfig

from cbs_lightning.cli.arguments import readable
from cbs_lightning.cli.jobs import IN_ONE_LINE, run_job
from cbs_lightning.cli.messages import error_line
from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.console import INTERRUPTED
from cbs_lightning.errors import UserError
from cbs_lightning.results.result import Result


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def train(cfg: DictConfig) -> Result | UserError | None:
    return run_job(cfg)


def main() -> None:
    """Train to a loss threshold: one run, or with -m a sweep."""
    make_importable(Path.cwd())
    with one_line_errors():
        train()


def make_importable(directory: Path) -> None:
    """Let `_target_` name modules in the directory; installed packages come first.

    A sweep's workers and its SLURM jobs inherit this.
    """
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn Hydra's errors and this project's into one line, unless HYDRA_FULL_ERROR is set."""
    if os.environ.get("HYDRA_FULL_ERROR"):
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints its own report and exits
    os.environ[IN_ONE_LINE] = "1"
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it prints what it raises as well
    with _terminated_by(signal.SIGTERM), _errors_in_one_line(), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*is not available", module="hydra")
        sys.argv[1:] = readable(sys.argv[1:])
        yield


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (line := error_line(error)) is None:
            raise
        sys.exit(f"error: {line}")
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@contextmanager
def _terminated_by(number: signal.Signals) -> Iterator[None]:
    """While inside, the signal ends the program like an exception, so that it cleans up.

    A launcher that handles the signal itself, as a cluster's may, keeps doing so.
    """
    previous = signal.getsignal(number)
    if previous is signal.SIG_DFL:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _terminate(number: int, _: object) -> None:
    print(INTERRUPTED, file=sys.stderr)
    sys.exit(128 + number)
