"""A Hydra sweeper: a grid of rows, checked whole, run by any launcher, and summed up.

Hydra imports it for a run of its own as well: what takes long to import is imported where it is
used.
"""

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from cbs_lightning import frameworks, results
from cbs_lightning.board import Board, JobState, Phase
from cbs_lightning.config import complete
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.job_loader import JobLoader
from cbs_lightning.locks import BusyError
from cbs_lightning.results import Result, Status
from cbs_lightning.signals import hand_over
from cbs_lightning.stopping import StopFile, stop_file_on_signal
from cbs_lightning.threads import cores
from cbs_lightning.wording import INTERRUPTED, count_of, say

Job = tuple[str, ...]  # the overrides of one run
Values = dict[str, list[str]]  # what a key is swept over, as key=value
FOR_WANT_OF_MEMORY = (
    "perhaps killed for want of memory: fewer jobs at a time, micro_batch_size=auto or "
    "activation_checkpointing=true need less"
)


class GridSweeper(Sweeper):
    """Runs the product of what the command line sweeps with each row of `grid`.

    All that the command line names is run. For keys that it names, a row that has those values
    gives the others; where no row has them, all rows do. Everything is checked before the first
    job runs. `on_finished` are called while it runs, as `Watcher` says.
    """

    def __init__(self, grid: Sequence[DictConfig] = ()) -> None:
        self.grid = [{str(key): str(value) for key, value in row.items()} for row in grid]
        self.launcher: Launcher | None = None
        self.on_finished: list[Callable[[], None]] = []

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config_loader = JobLoader(hydra_context.config_loader.get_search_path())
        self.config = config
        self.hydra_context = HydraContext(self.config_loader, hydra_context.callbacks)
        self.task_function = task_function

    def sweep(self, arguments: list[str]) -> list[Result | None]:
        configs = self._checked(self._jobs(arguments))
        from cbs_lightning.live_sweep import LiveSweep
        from cbs_lightning.run import run_directory
        from cbs_lightning.sweep_report import print_report, write_and_tell

        jobs = {job: run_directory(cfg) for job, cfg in configs.items()}
        self.workers = min(self._workers(), len(jobs))
        self.launcher = self._launcher()
        say(f"{count_of(len(jobs), 'job')}, {self.workers} at a time")
        studies = {jobs[job].parent: bool(cfg.report) for job, cfg in configs.items()}
        states = [_waiting(number, cfg) for number, cfg in enumerate(configs.values(), 1)]
        with ExitStack() as stack:
            for live in [LiveSweep(study) for study, wanted in studies.items() if wanted]:
                self.on_finished.append(live)
                stack.callback(live.close)
            found = self._launch(jobs, states)
        print_report(found, list(jobs.values()))
        write_and_tell(studies)
        if not all(result and result.status not in results.UNFINISHED for result in found):
            raise SystemExit(1)
        return found

    def _jobs(self, arguments: list[str]) -> list[Job]:
        parser = OverridesParser.create(config_loader=self.config_loader)
        command = _values(parser.parse_overrides(arguments))
        if len(experiments := command.get("experiment", ())) > 1:
            raise UserError(f"{' '.join(experiments)}: one experiment per sweep")
        rows = [
            _values(parser.parse_overrides([f"{key}={value}" for key, value in row.items()]))
            for row in self.grid
        ]
        return cells(rows, command)

    def _checked(self, jobs: list[Job]) -> dict[Job, DictConfig]:
        """The jobs' configurations, after a check of them all."""
        configs = {job: self._config(job) for job in jobs}
        # Only now, so that a mistake that Hydra finds is told at once.
        frameworks.load()
        from cbs_lightning.checks import check
        from cbs_lightning.run import find_data

        for cfg in configs.values():
            check(cfg)
        for cfg in configs.values():
            find_data(cfg)
        return configs

    def _config(self, job: Job) -> DictConfig:
        assert self.config is not None  # the base class says it may be
        cfg = self.config_loader.load_sweep_config(self.config, list(job))
        return complete(cfg, cfg.hydra)

    def _workers(self) -> int:
        assert self.config is not None
        n_jobs = self.config.hydra.launcher.get("n_jobs", 1)
        if not isinstance(n_jobs, int) or n_jobs == 0:
            raise ConfigError("hydra.launcher.n_jobs", n_jobs, "must be a whole number, not 0")
        return n_jobs if n_jobs > 0 else max(1, cores() + 1 + n_jobs)

    def _launcher(self) -> Launcher:
        """One that has no idle workers, which a signal to all of a group would kill."""
        assert self.config is not None and self.hydra_context is not None
        config = self.config.copy()
        if "n_jobs" in config.hydra.launcher:
            config.hydra.launcher.n_jobs = self.workers
        return Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=self.task_function, config=config
        )

    def _launch(self, jobs: dict[Job, Path], states: list[JobState]) -> list[Result | None]:
        """The jobs' results, None where one failed."""
        from cbs_lightning.watching import watched_board

        started = time.time()
        sweep = {"jobs": len(jobs), "workers": self.workers, "started": started}
        shared = [f"sweep.{key}={value}" for key, value in sweep.items()]
        stop: StopFile | None = None
        with (
            watched_board(states, self.workers, started, self.on_finished) as board,
            ExitStack() as stack,
        ):
            shared.append(f"sweep.board={_quoted(board.directory)}")
            if self.workers > 1:
                stop = stack.enter_context(stop_file_on_signal())
                shared.append(f"sweep.stop_file={_quoted(stop.path)}")
            found = self._launch_all(jobs, shared, board, stop)
        if stop is not None and stop.received is not None:
            print(INTERRUPTED, file=sys.stderr)
            if stop.received == signal.SIGUSR2:
                hand_over(signal.SIGUSR2)
            raise SystemExit(128 + stop.received)
        return [value if isinstance(value := found[job], Result) else None for job in jobs]

    def _launch_all(
        self, jobs: dict[Job, Path], shared: list[str], board: Board, stop: StopFile | None
    ) -> dict[Job, Any]:
        """What each job returned. What another process works on comes last, and is waited for.

        A worker that dies does not take other jobs along: those that had begun run again alone.
        """
        from hydra._internal.core_plugins.basic_launcher import BasicLauncher
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        assert self.launcher is not None
        numbers = {job: number for number, job in enumerate(jobs, 1)}
        overrides = {job: [*job, *shared, f"sweep.job={numbers[job]}"] for job in jobs}
        found: dict[Job, Any] = {}
        batches = [(list(jobs), False)]
        if isinstance(self.launcher, BasicLauncher):
            # One by one, since what it returns holds the configurations of all that it ran.
            batches = [([job], False) for job in jobs]
        while batches:
            batch, wait = batches.pop(0)
            launched = time.time()
            try:
                returns = self.launcher.launch(
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


def cells(rows: list[Values], command: Values) -> list[Job]:
    """The jobs that the rows of a grid and the command line make together, each once."""
    named = [key for key in command if any(key in row for row in rows)]
    others = [values for key, values in command.items() if key not in named]
    jobs: list[Job] = []
    for choice in itertools.product(*(command[key] for key in named)):
        chosen = dict(zip(named, choice, strict=True))
        having = [r for r in rows if all(v in r.get(key, [v]) for key, v in chosen.items())]
        for row in having or rows or [{}]:
            rest = [values for key, values in row.items() if key not in chosen]
            jobs += [(*choice, *job) for job in itertools.product(*rest, *others)]
    return list(dict.fromkeys(jobs))


def _values(overrides: Iterable[Override]) -> Values:
    """Each override's key, as it was typed, with the `key=value` strings it stands for."""
    values: Values = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UserError(f"{override.input_line}: a grid needs a list of values or a range")
    return values


def _waiting(number: int, cfg: DictConfig) -> JobState:
    return JobState(number, cfg.names.variant, cfg.batch_size, cfg.seed, cfg.stop.loss)


def _quoted(path: Path) -> str:
    """For an override: spaces, commas and equals signs have a meaning to Hydra."""
    text = str(path).replace("'", "\\'")
    return f"'{text}'"


def _started(directory: Path, since: float) -> bool:
    config = directory / results.CONFIG
    return config.exists() and config.stat().st_mtime >= since


def _new_result(directory: Path, since: float) -> Result | None:
    path = directory / results.RESULT
    if not path.exists() or path.stat().st_mtime < since:
        return None
    try:
        result = results.read_run(directory).result
    except (ValueError, OSError):
        return None
    return None if result.ended in results.UNFINISHED else result


def _value(job_return: JobReturn) -> Any:
    return job_return.return_value if job_return.status is JobStatus.COMPLETED else None
