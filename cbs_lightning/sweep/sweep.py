"""A sweep: jobs that are checked as a whole, run by any launcher, shown, and summed up."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from joblib.externals.loky.process_executor import TerminatedWorkerError
from omegaconf import DictConfig

from cbs_lightning.config.checks import check
from cbs_lightning.console import INTERRUPTED, count_of, say
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.reporting.live_study import LiveSweep
from cbs_lightning.results import store
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import UNFINISHED, Result, Status
from cbs_lightning.signals import hand_over
from cbs_lightning.sweep.concurrency import AtATime
from cbs_lightning.sweep.gpus import disagreement, slot_directory
from cbs_lightning.sweep.job_loader import Job
from cbs_lightning.sweep.launching import ONE_BY_ONE, chosen, elsewhere, with_launcher
from cbs_lightning.sweep.live.board import Board, JobState, Phase, printing_beside_table
from cbs_lightning.sweep.live.watcher import watched_board
from cbs_lightning.sweep.report import report
from cbs_lightning.sweep.slurm import queue as slurm
from cbs_lightning.sweep.stopping import StopFile, stop_file_on_signal
from cbs_lightning.training.run import find_data, known_already, run_directory

FOR_WANT_OF_MEMORY = (
    "perhaps killed for want of memory: fewer jobs at a time (jobs=1), micro_batch_size=auto or "
    "activation_checkpointing=true need less"
)


class Sweep:
    """Everything is checked before the first job runs. `on_finished` are called while it runs, as
    `Watcher` says.
    """

    def __init__(
        self, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config
        self.on_finished: list[Callable[[], None]] = []

    def run(self, configs: dict[Job, DictConfig]) -> list[Result | None]:
        """The jobs' results, None where one failed."""
        at_a_time = self.check(configs)
        self.say_beginning(f"{count_of(len(configs), 'job')}, {at_a_time}")
        with self.watched(configs):
            found = self.launch(configs)
        self.report(configs, found)
        if any(map(has_failed, found)):
            raise SystemExit(1)
        return found

    def check(self, configs: dict[Job, DictConfig]) -> AtATime:
        """Raise `UserError` unless all of them can start; how many do at a time."""
        here = not elsewhere(self.config)
        for cfg in configs.values():
            check(cfg, here=here)
        for cfg in configs.values():
            find_data(cfg)
        at_a_time = chosen(self.config, list(configs.values()))
        self.workers, self.gpus = at_a_time.runs, at_a_time.gpus
        self.elsewhere = at_a_time.elsewhere
        return at_a_time

    def say_beginning(self, line: str) -> None:
        say(line)
        if self.gpus and (different := disagreement()):
            say(f"warning: {different}")

    @contextmanager
    def watched(self, configs: dict[Job, DictConfig]) -> Iterator[None]:
        """While inside, the studies are shown in TensorBoard as their runs finish."""
        with ExitStack() as stack:
            for live in [LiveSweep(study) for study, want in _studies(configs).items() if want]:
                self.on_finished.append(live)
                stack.callback(live.close)
            yield

    def report(self, configs: dict[Job, DictConfig], found: list[Result | None]) -> None:
        report(found, [run_directory(cfg) for cfg in configs.values()], _studies(configs))

    def _launcher(self, runs: int) -> Launcher:
        return Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=with_launcher(self.config, runs),
        )

    def launch(self, configs: dict[Job, DictConfig]) -> list[Result | None]:
        """The jobs' results, None where one failed; they are as `check` found them."""
        states = [_waiting(number, cfg) for number, cfg in enumerate(configs.values(), 1)]
        started = time.time()
        sweep = {"jobs": len(configs), "workers": self.workers, "started": started}
        sweep["elsewhere"] = self.elsewhere
        stop: StopFile | None = None
        below = _shared_folder(configs) if self.elsewhere else None
        with (
            watched_board(states, self.workers, started, self.on_finished, below) as board,
            ExitStack() as stack,
        ):
            parts = {
                job: sweep | {"job": number, "board": str(board.directory)}
                for number, job in enumerate(configs, 1)
            }
            found: dict[Job, Any] = (
                _known(configs, parts) if self.workers > 1 or self.elsewhere else {}
            )
            left = {job: run_directory(cfg) for job, cfg in configs.items() if job not in found}
            runs = min(self.workers, len(left))
            if runs > 1 and not self.elsewhere:
                stop = stack.enter_context(stop_file_on_signal())
                for part in parts.values():
                    part["stop_file"] = str(stop.path)
            if runs > 1 and self.gpus > 1:
                slots = stack.enter_context(slot_directory())
                for part in parts.values():
                    part |= {"gpus": self.gpus, "slots": str(slots)}
            if runs > 0:
                found |= self._launch_all(self._launcher(runs), left, parts, board, stop)
        if stop is not None and stop.received is not None:
            print(INTERRUPTED, file=sys.stderr)
            if stop.received == signal.SIGUSR2:
                hand_over(signal.SIGUSR2)
            raise SystemExit(128 + stop.received)
        return [value if isinstance(value := found[job], Result) else None for job in configs]

    def _launch_all(
        self,
        launcher: Launcher,
        jobs: dict[Job, Path],
        parts: dict[Job, dict[str, Any]],
        board: Board,
        stop: StopFile | None,
    ) -> dict[Job, Any]:
        """What each job returned. What another process works on comes last, and is waited for.

        A worker that dies does not take other jobs along: those that had begun run again alone.
        """
        numbers = {job: parts[job]["job"] for job in jobs}
        overrides = {job: [*job, *_overrides("sweep", parts[job])] for job in jobs}
        found: dict[Job, Any] = {}
        batches = [(list(jobs), False)]
        if type(launcher).__name__ in ONE_BY_ONE:  # Hydra may hold another copy of the class
            # The first returns the configurations of all that it ran, the second runs all at once.
            batches = [([job], False) for job in jobs]
        while batches:
            batch, wait = batches.pop(0)
            launched = time.time()
            try:
                returns = launcher.launch(
                    [[*overrides[job], f"sweep.wait={wait}"] for job in batch],
                    initial_job_idx=len(found),
                )
                found |= dict(zip(batch, map(_value, returns), strict=True))
            except (Exception, KeyboardInterrupt) as error:
                if stop is not None and stop.received is not None:
                    return dict.fromkeys(jobs) | found  # a worker that had not begun its job
                if not isinstance(error, TerminatedWorkerError):
                    raise
                say(f"a worker process died, {FOR_WANT_OF_MEMORY}")
                if len(batch) == 1:
                    found[batch[0]] = None
                    board.tell(numbers[batch[0]], phase=Phase.FINISHED, status=Status.FAILED)
                else:
                    found |= {j: run for j in batch if (run := _new_result(jobs[j], launched))}
                    left = [job for job in batch if job not in found]
                    for job in left:
                        board.tell(numbers[job], phase=Phase.WAITING)
                    suspects = [job for job in left if _started(jobs[job], launched)] or left
                    if waiting := [job for job in left if job not in suspects]:
                        batches.append((waiting, wait))
                    batches += [([job], wait) for job in suspects]
            if not batches:
                busy = [job for job in found if isinstance(found[job], BusyError)]
                batches = [(busy, True)] if busy and not wait else []
        return found


def _shared_folder(configs: dict[Job, DictConfig]) -> Path:
    """Where jobs on other machines can tell how far they are."""
    first = next(iter(configs.values()))
    folder = run_directory(first).parent / slurm.FOLDER
    with output_errors(Path(first.output_dir)):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def has_failed(result: Result | None) -> bool:
    return result is None or result.status in UNFINISHED


def _studies(configs: dict[Job, DictConfig]) -> dict[Path, bool]:
    """The studies' directories, and whether a report of each is wanted."""
    return {run_directory(cfg).parent: bool(cfg.report) for cfg in configs.values()}


def _waiting(number: int, cfg: DictConfig) -> JobState:
    return JobState(
        number, cfg.names.variant, cfg.batch_size, cfg.seed, cfg.stop.loss, cfg.sweep.part
    )


def _known(configs: dict[Job, DictConfig], parts: dict[Job, dict[str, Any]]) -> dict[Job, Result]:
    """Results that are stored already, for which no worker has to be started."""
    found: dict[Job, Result] = {}
    for job, cfg in configs.items():
        cfg = cfg.copy()
        cfg.sweep.update(parts[job])
        with suppress(UserError, OSError), printing_beside_table(cfg):  # else the job tells why
            if (result := known_already(cfg)) is not None:
                found[job] = result
    return found


def _overrides(group: str, values: dict[str, Any]) -> list[str]:
    return [f"{group}.{key}={quoted(value)}" for key, value in values.items()]


def quoted(value: Any) -> str:
    """Spaces, commas and equals signs have a meaning to Hydra."""
    if not isinstance(value, str):
        return str(value)
    text = value.replace("'", "\\'")
    return f"'{text}'"


def _started(directory: Path, since: float) -> bool:
    config = directory / store.CONFIG
    return config.exists() and config.stat().st_mtime >= since


def _new_result(directory: Path, since: float) -> Result | None:
    path = directory / store.RESULT
    if not path.exists() or path.stat().st_mtime < since:
        return None
    try:
        result = store.read_run(directory).result
    except (ValueError, OSError):
        return None
    return None if result.ended in UNFINISHED else result


def _value(job_return: JobReturn) -> Any:
    return job_return.return_value if job_return.status is JobStatus.COMPLETED else None
