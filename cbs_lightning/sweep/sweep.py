"""A sweep: its jobs are checked together, run by any launcher, shown, and summed up."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from cbs_lightning.config.checks import check_all
from cbs_lightning.config.identity import run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import INTERRUPTED, count_of, print_line
from cbs_lightning.errors import ConfigError, UserError, output_errors
from cbs_lightning.files import inside
from cbs_lightning.reporting.live_study import LiveStudy
from cbs_lightning.results.result import UNFINISHED, Result
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.signals import hand_over
from cbs_lightning.sweep.batches import Batches
from cbs_lightning.sweep.concurrency import Concurrency
from cbs_lightning.sweep.gpus import disagreement
from cbs_lightning.sweep.job import SweepJob
from cbs_lightning.sweep.launching import concurrency_of, is_on_cluster, with_launcher
from cbs_lightning.sweep.live.board import JobState
from cbs_lightning.sweep.live.watcher import watched_board
from cbs_lightning.sweep.report import report
from cbs_lightning.sweep.scratch import scratch_directory
from cbs_lightning.sweep.slurm import queue as slurm
from cbs_lightning.sweep.stop_file import StopFile, stop_file_on_signal
from cbs_lightning.sweep.sweeper import Overrides
from cbs_lightning.training.build import check_optimizer_fits, depends_on_net
from cbs_lightning.training.loops import loop_line
from cbs_lightning.training.run import find_data, known_already

NOWHERE = Path(os.devnull) / "board"  # a directory that cannot be
Configs = dict[Overrides, RunConfig]
Listener = Callable[[], None]  # called while a sweep runs, as `Watcher` says


class Sweep:
    """Runs jobs, after all of them have been checked."""

    def __init__(
        self, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def run(self, configs: Configs) -> list[Result | None]:
        """The results of the jobs, with None for a job that failed."""
        concurrency = self.check(configs)
        print_start(f"{count_of(len(configs), 'job')}, {concurrency}", configs, concurrency)
        with shown_in_tensorboard(configs) as listeners:
            found = self.launch(configs, concurrency, listeners)
        report_on(configs, found)
        if any(map(has_failed, found)):
            raise SystemExit(1)
        return found

    def check(self, configs: Configs) -> Concurrency:
        """Raise `UserError` unless all jobs can start; return how many run at a time."""
        here = not is_on_cluster(self.config)
        check_all(configs.values(), here=here)
        data = {repr((cfg.data, cfg.data_dir, cfg.batch_size)): cfg for cfg in configs.values()}
        for cfg in data.values():
            find_data(cfg)
        _check_optimizers(configs.values())
        return concurrency_of(self.config, list(configs.values()))

    def launch(
        self,
        configs: Configs,
        concurrency: Concurrency,
        listeners: Sequence[Listener] = (),
        part: str = "sweep",
        sfo_limits: Mapping[Overrides, SfoLimit] | None = None,
    ) -> list[Result | None]:
        """Run jobs that were checked; return their results, with None for a job that failed."""
        limits = sfo_limits or {}
        workers, on_cluster = concurrency.runs, concurrency.on_cluster
        started, stop = time.time(), None
        states = [_waiting(number, cfg, part) for number, cfg in enumerate(configs.values(), 1)]
        below = _shared_folder(configs) if on_cluster else None
        with (
            scratch_directory(_first_study(configs), below) as scratch,
            watched_board(states, workers, started, listeners, scratch or NOWHERE) as board,
            ExitStack() as stack,
        ):
            jobs = {
                overrides: SweepJob(
                    number, len(configs), workers, started, part, on_cluster,
                    output_dir=configs[overrides].output_dir, board_directory=str(board.directory),
                    sfo_limit_file=str(limits[overrides].path) if overrides in limits else None,
                )
                for number, overrides in enumerate(configs, 1)
            }  # fmt: skip
            found = finished_already(configs, jobs) if workers > 1 or on_cluster else {}
            left = {overrides: job for overrides, job in jobs.items() if overrides not in found}
            runs = min(workers, len(left))
            if runs > 1 and not on_cluster:
                stop = stack.enter_context(stop_file_on_signal(_needed(scratch, configs)))
                left = {o: replace(job, stop_file=str(stop.path)) for o, job in left.items()}
            if runs > 1 and concurrency.gpus > 1:
                slots, gpus = str(scratch), concurrency.gpus
                left = {o: replace(job, gpus=gpus, slots=slots) for o, job in left.items()}
            if runs > 0:
                launcher = self._launcher(runs, scratch)
                found |= Batches(launcher, left, configs, board, stop).run()
        _exit_if_stopped(stop)
        return [value if isinstance(value := found[o], Result) else None for o in configs]

    def _launcher(self, runs: int, scratch: Path | None) -> Launcher:
        return Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=with_launcher(self.config, runs, scratch),
        )


def _check_optimizers(configs: Iterable[RunConfig]) -> None:
    """Raise `ConfigError` unless each optimizer fits its net and batch size; equal ones are checked
    once, whatever their learning rates."""
    seen = set()
    for cfg in configs:
        settings = {key: value for key, value in cfg.optimizer.items() if key != "lr"}
        kind = repr((cfg.model, settings, cfg.data, cfg.rules, cfg.rules.any and cfg.batch_size))
        if kind in seen:
            continue
        seen.add(kind)
        if not (cfg.rules.any or depends_on_net(cfg)):
            continue
        source = find_data(cfg)
        source.setup()
        check_optimizer_fits(cfg, source)


def print_start(line: str, configs: Configs, concurrency: Concurrency) -> None:
    print_line(line)
    for loop in dict.fromkeys(filter(None, map(loop_line, configs.values()))):
        print_line(loop)
    if concurrency.gpus and (different := disagreement()):
        print_line(f"warning: {different}")


@contextmanager
def shown_in_tensorboard(configs: Configs) -> Iterator[list[Listener]]:
    """While inside, listeners that update the studies in TensorBoard as their runs finish."""
    with ExitStack() as stack:
        live = [LiveStudy(study) for study, wanted in _studies(configs).items() if wanted]
        for each in live:
            stack.callback(each.close)
        yield list(live)


def report_on(configs: Configs, found: list[Result | None]) -> None:
    if not configs:  # a search whose budget allowed none
        return
    directories = [run_directory(cfg) for cfg in configs.values()]
    within = next(iter(configs.values())).answer_within
    report(found, directories, _studies(configs), within)


def has_failed(result: Result | None) -> bool:
    return result is None or result.status in UNFINISHED


def finished_already(
    configs: Configs, jobs: Mapping[Overrides, SweepJob]
) -> dict[Overrides, Result]:
    """Results that are already stored, so that no worker has to start for them."""
    found: dict[Overrides, Result] = {}
    for overrides, cfg in configs.items():
        job = jobs[overrides]
        with suppress(UserError, OSError), job.printing_beside_table():  # else the job tells why
            if (result := known_already(cfg, job)) is not None:
                found[overrides] = result
    return found


def _exit_if_stopped(stop: StopFile | None) -> None:
    if stop is None or stop.received is None:
        return
    print(INTERRUPTED, file=sys.stderr)
    if stop.received == signal.SIGUSR2:
        hand_over(signal.SIGUSR2)
    raise SystemExit(128 + stop.received)


def _shared_folder(configs: Configs) -> Path:
    """A folder in which jobs on other machines can report their progress."""
    folder = inside(_first_study(configs), slurm.FOLDER)
    with output_errors(folder.parents[1]):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _first_study(configs: Configs) -> Path:
    return run_directory(next(iter(configs.values()))).parent


def _needed(scratch: Path | None, configs: Configs) -> Path:
    """Raise unless there is a directory: without one, parallel jobs cannot be told to stop."""
    if scratch is None:
        output_dir = _first_study(configs).parent
        raise ConfigError("output_dir", output_dir, "no room for a parallel sweep's own files")
    return scratch


def _studies(configs: Configs) -> dict[Path, bool]:
    """The directories of the studies, and whether a report of each is wanted."""
    return {run_directory(cfg).parent: cfg.report for cfg in configs.values()}


def _waiting(number: int, cfg: RunConfig, part: str) -> JobState:
    return JobState(number, cfg.names.variant, cfg.batch_size, cfg.seed, cfg.stop.loss, part)
