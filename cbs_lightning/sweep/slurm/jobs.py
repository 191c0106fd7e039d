"""A sweep's jobs in SLURM's queue: finding them again, waiting, and reporting how they ended."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from submitit import Job, SlurmJob

from cbs_lightning.config.identity import run_directory, run_title
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import count_of, print_line
from cbs_lightning.errors import UserError
from cbs_lightning.files import inside, scratch_of
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import Result, Status, describe
from cbs_lightning.sweep.job import SweepJob
from cbs_lightning.sweep.slurm import queue as slurm
from cbs_lightning.sweep.slurm.queue import Queued
from cbs_lightning.training.run import known_already

OUTPUT = "_0_log.out"  # how submitit names what a job's only task prints
LOOK_SECONDS = 1.0  # between two looks for what jobs have left
ASK_SECONDS = 10.0  # between two questions to SLURM
PENDING = "PENDING"
FORGOTTEN = Queued("no longer known")
OVER = {*slurm.ENDED, FORGOTTEN.state}
# How reasons begin for which a job may wait for ever, or until somebody does something.
TELLING = (
    "Account", "Assoc", "BadConstraints", "DependencyNeverSatisfied", "JobHeld", "Nodes required",
    "Partition", "QOS", "ReqNodeNotAvail", "launch failed",
)  # fmt: skip
PATIENCE = 15.0  # seconds in which what a job has left is to be seen on another machine


class RunJob:
    """A run and its job in the queue, which may belong to an earlier sweep.

    `log` is a link to the output of the latest job; such a job is found again through it.
    """

    def __init__(self, overrides: list[str], cfg: RunConfig, sweep_job: SweepJob) -> None:
        self.overrides = overrides
        self.cfg = cfg
        self.sweep_job = sweep_job
        self.directory = run_directory(cfg)
        self.log = self.directory.parent / slurm.FOLDER / f"{self.directory.name}.log"
        self.job: Job[JobReturn] | None = None
        self.earlier = False  # whether an earlier sweep submitted it
        self.value: Result | UserError | None = None  # once it has ended

    def find(self, queue: dict[str, Queued]) -> None:
        """Take over the run's latest job if it is still in the queue.

        SLURM starts counting from 1 again at some point, so another job may have the same id.
        """
        self.job, self.earlier = None, False
        with suppress(OSError):
            output = self.log.parent / self.log.readlink()
            found = queue.get(name := output.name.removesuffix(OUTPUT))
            if found is None or found.state in {*slurm.ENDED, "COMPLETING"}:
                return
            job: Job[JobReturn] = SlurmJob(output.parent, name)
            if _is_submitted_by(Path(found.script), job) and not _has_result(job):
                self.job, self.earlier = job, True

    def submitted(self, job: Job[JobReturn]) -> None:
        self.job, self.earlier = job, False
        link = scratch_of(self.log)
        inside(self.directory.parent, slurm.FOLDER).mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(job.paths.stdout.resolve(), self.log.parent.resolve()))
        link.replace(self.log)

    def has_left_result(self) -> bool:
        assert self.job is not None
        return _has_result(self.job)

    def seen(self, queue: dict[str, Queued]) -> Queued:
        assert self.job is not None
        return queue.get(self.job.job_id, FORGOTTEN)

    def end(self, state: str | None) -> None:
        """Find out how the job ended, from its state or from the files it left, and print it."""
        assert self.job is not None
        if self.earlier or state is not None:
            with suppress(UserError, OSError):
                self.value = known_already(self.cfg, self.sweep_job)
            if self.value is not None or state is None:
                return
            self.value = UserError(f"SLURM ended its job {self.job.job_id} ({state})")
        else:
            self.value = _left_by(self.job)
        title = self.sweep_job.title(run_title(self.cfg))
        if isinstance(self.value, Result):
            print_line(f"{title}: {describe(self.value)}")
        elif isinstance(self.value, BusyError):
            print_line(f"{title}: locked by another process; retrying at the end")
        else:
            self.sweep_job.ended(Status.FAILED)
            print_line(f"{title}: failed: {self.value}; its log: {self.log}")

    def returned(self) -> JobReturn:
        returned = JobReturn(status=JobStatus.COMPLETED)
        returned.return_value = self.value
        return returned


def wait(jobs: Sequence[RunJob]) -> None:
    """Wait until all jobs have ended, and print a line on how each did."""
    left = list(jobs)
    queue: dict[str, Queued] = {}
    printed: set[str] = set()  # reasons to wait
    gone: dict[RunJob, float] = {}  # since when SLURM does not have it in its queue
    asked = time.monotonic()
    while left:
        now = time.monotonic()
        if now - asked >= ASK_SECONDS:
            asked = now
            with suppress(UserError):  # a controller may be away for a while
                queue = slurm.queue()
                gone = {job: gone.get(job, now) for job in left if job.seen(queue).state in OVER}
                _print_reasons(left, queue, printed)
        for job in list(left):
            if job.seen(queue).state == PENDING:
                continue
            if job.has_left_result():
                job.end(None)
            elif job in gone and now - gone[job] >= PATIENCE:
                job.end(job.seen(queue).state)
            else:
                continue
            left.remove(job)
            gone.pop(job, None)
        if left:
            time.sleep(LOOK_SECONDS)


def patient_queue() -> dict[str, Queued]:
    """SLURM's queue, as soon as it answers."""
    said = False
    while True:
        try:
            return slurm.queue()
        except UserError as error:
            if not said:
                print_line(f"{error}; retrying until it answers")
            said = True
            time.sleep(ASK_SECONDS)


def ids(jobs: Sequence[RunJob]) -> str:
    """The jobs' ids as a shell and scancel take them: '12_[0,2]' are two jobs of the array 12."""
    of_array: dict[str, list[str]] = {}
    for job in jobs:
        assert job.job is not None
        array, _, index = job.job.job_id.partition("_")
        of_array.setdefault(array, []).append(index)
    return " ".join(starmap(_elements, of_array.items()))


def _elements(array: str, indices: list[str]) -> str:
    if len(indices) > 1:
        return f"'{array}_[{','.join(indices)}]'"
    return f"{array}_{indices[0]}" if indices[0] else array


def _print_reasons(jobs: Sequence[RunJob], queue: dict[str, Queued], printed: set[str]) -> None:
    """Print each reason for which jobs may wait forever, once."""
    waiting: dict[str, list[RunJob]] = {}
    for job in jobs:
        if (seen := job.seen(queue)).state == PENDING:
            reason, *_ = seen.reason.split(",")  # details may follow
            waiting.setdefault(reason, []).append(job)
    for reason in sorted(waiting.keys() - printed):
        if reason.startswith(TELLING):
            printed.add(reason)
            number = count_of(len(waiting[reason]), "job")
            print_line(f"SLURM keeps {number} waiting ({reason}): {ids(waiting[reason])}")


def _is_submitted_by(script: Path, job: Job[JobReturn]) -> bool:
    """Whether sbatch got the script that submitit wrote for the job, which is now a link."""
    return (
        script.resolve().name == job.paths.submission_file.name
        and job.paths.folder.resolve().is_relative_to(script.parent.resolve())
    )


def _has_result(job: Job[JobReturn]) -> bool:
    folder = job.paths.folder
    with suppress(OSError):  # has a network file system look at the folder anew
        folder.chmod(folder.stat().st_mode)
    return job.paths.result_pickle.exists()


def _left_by(job: Job[JobReturn]) -> Result | UserError:
    try:
        value = job.result()._return_value  # the public one prints where it is an error
    except Exception as error:  # of submitit's, with the trace that is in the log, too
        value = error
    if isinstance(value, Result | UserError):
        return value
    reason, *trace = str(value).splitlines() or [""]
    return UserError(f"{type(value).__name__}: {reason if not trace else 'see there'}")
