"""Hands a sweep's jobs to a launcher in batches, so that no job is lost when a worker dies."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from joblib.externals.loky.process_executor import TerminatedWorkerError

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.errors import UserError
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import Result, Status
from cbs_lightning.sweep.job import SweepJob
from cbs_lightning.sweep.launching import ONE_BY_ONE
from cbs_lightning.sweep.live.board import Board, Phase
from cbs_lightning.sweep.stop_file import StopFile
from cbs_lightning.sweep.sweeper import Overrides
from cbs_lightning.training.run import computation, known_already

WORKER_DIED = (
    "a worker process died, perhaps for lack of memory: fewer jobs at a time (jobs=1), "
    "micro_batch_size=auto or activation_checkpointing=true need less"
)

Found = dict[Overrides, Any]  # what each job returned


class Batches:
    """Runs the jobs of a sweep.

    A run that is locked by another process is retried at the end, and then waited for. If two jobs
    are the same computation, the second runs after all others and copies the losses of the first.
    If a worker dies, the jobs that had begun are run again, one by one.
    """

    def __init__(
        self,
        launcher: Launcher,
        jobs: Mapping[Overrides, SweepJob],
        configs: Mapping[Overrides, RunConfig],
        board: Board,
        stop: StopFile | None,
    ) -> None:
        self.launcher = launcher
        self.jobs = jobs
        self.configs = configs
        self.board = board
        self.stop = stop
        self.found: Found = {}
        # With whether to wait for what is locked.
        self._left: list[tuple[list[Overrides], bool]]
        if type(launcher).__name__ in ONE_BY_ONE:  # Hydra may hold another copy of the class
            # The first returns the configurations of all that it ran, the second runs all at once.
            self._left = [([overrides], False) for overrides in jobs]
        else:
            self._left = [(batch, False) for batch in _copies_last(jobs, configs) if batch]

    def run(self) -> Found:
        while self._left:
            batch, waits = self._left.pop(0)
            try:
                self.found |= self._launch(batch, waits)
            except (Exception, KeyboardInterrupt) as error:
                if self.stop is not None and self.stop.received is not None:
                    return dict.fromkeys(self.jobs) | self.found  # a job that had not begun
                if not isinstance(error, TerminatedWorkerError):
                    raise
                print_line(WORKER_DIED)
                self._run_again(batch, waits)
            if not self._left and not waits:
                busy = [job for job, value in self.found.items() if isinstance(value, BusyError)]
                self._left = [(busy, True)] if busy else []
        return self.found

    def _launch(self, batch: list[Overrides], waits: bool) -> Found:
        returns = self.launcher.launch(
            [[*overrides, self._job(overrides, waits).override()] for overrides in batch],
            initial_job_idx=len(self.found),
        )
        return dict(zip(batch, map(_value, returns), strict=True))

    def _job(self, overrides: Overrides, waits: bool) -> SweepJob:
        return replace(self.jobs[overrides], waits=waits)

    def _run_again(self, batch: list[Overrides], waits: bool) -> None:
        """Run what a dead worker left: its own job alone, the others as before."""
        if len(batch) == 1:
            self.found[batch[0]] = None
            self.jobs[batch[0]].ended(Status.FAILED)
            return
        begun = {state.job for state in self.board.jobs() if state.phase is Phase.RUNNING}
        for overrides in batch:
            if (result := self._finished(overrides)) is not None:
                self.found[overrides] = result
        left = [overrides for overrides in batch if overrides not in self.found]
        suspects = [overrides for overrides in left if self.jobs[overrides].number in begun] or left
        for overrides in left:
            self.jobs[overrides].postponed()
        if others := [overrides for overrides in left if overrides not in suspects]:
            self._left.append((others, waits))
        self._left += [([overrides], waits) for overrides in suspects]

    def _finished(self, overrides: Overrides) -> Result | None:
        try:
            return known_already(self.configs[overrides], self.jobs[overrides], quiet=True)
        except (UserError, OSError):
            return None


def _copies_last(
    jobs: Iterable[Overrides], configs: Mapping[Overrides, RunConfig]
) -> tuple[list[Overrides], list[Overrides]]:
    """Split the jobs: those to train, and those that repeat the computation of an earlier one."""
    first: list[Overrides] = []
    last: list[Overrides] = []
    seen = set()
    for overrides in jobs:
        computed = computation(configs[overrides])
        (last if computed in seen else first).append(overrides)
        if computed is not None:
            seen.add(computed)
    return first, last


def _value(job_return: JobReturn) -> Any:
    return job_return.return_value if job_return.status is JobStatus.COMPLETED else None
