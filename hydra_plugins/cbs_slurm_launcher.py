"""A Hydra launcher: jobs on a SLURM cluster, which outlive the process that submitted them.

Hydra also imports this for single runs, so nothing here may take long to import.
"""

import io
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from cbs_lightning.config import complete
from cbs_lightning.console import count_of, print_line
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.signals import TO_STOP, hand_over, held_back
from cbs_lightning.sweep.slurm import queue as slurm

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ModuleNotFoundError:  # without the extra `slurm` nobody can choose this launcher
    BaseSubmititLauncher = Launcher

if TYPE_CHECKING:
    from cbs_lightning.sweep.slurm.jobs import RunJob

ASKED_TO_STOP = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # how a run exits that was told to stop


class SlurmLauncher(BaseSubmititLauncher):  # type: ignore[misc]
    """Submits the jobs that are not already in the queue, and waits for all of them."""

    def __call__(self, *arguments: Any) -> JobReturn:
        """One job, in a process of its own.

        A signal does not end it unless SLURM does: a run that was told to stop has saved itself,
        and its job goes to the queue again.
        """
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGUSR2))
        try:
            returned: JobReturn = super().__call__(*arguments)
            return returned
        except (SystemExit, KeyboardInterrupt) as ended:
            asked = isinstance(ended, KeyboardInterrupt) or ended.code in ASKED_TO_STOP
            if asked and _goes_on():
                hand_over(signal.SIGUSR2)
            raise

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        from cbs_lightning.sweep.slurm import jobs as slurm_jobs

        jobs = [self._run_job(list(overrides)) for overrides in job_overrides]
        left = jobs
        while left:
            queue = slurm_jobs.patient_queue()
            for job in left:
                job.find(queue)
            if earlier := [job for job in left if job.earlier]:
                number = count_of(len(earlier), "job")
                print_line(f"{number} in SLURM's queue already: {slurm_jobs.ids(earlier)}")
            try:
                if new := [job for job in left if not job.earlier]:
                    with held_back(), _kept_from_programs():
                        self._submit(new, initial_job_idx)
                slurm_jobs.wait(left)
            except (KeyboardInterrupt, SystemExit):
                running = [job for job in left if job.value is None]
                print_line(
                    f"the jobs go on; to cancel them: scancel {slurm_jobs.ids(running)}; "
                    "the same command waits for them"
                )
                raise
            # What an earlier sweep's job was to find out may be another thing.
            left = [job for job in left if job.value is None]
        return [job.returned() for job in jobs]

    def _run_job(self, overrides: list[str]) -> "RunJob":
        from cbs_lightning.sweep.job import SweepJob
        from cbs_lightning.sweep.slurm.jobs import RunJob

        assert self.config is not None and self.hydra_context is not None
        cfg = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        return RunJob(overrides, complete(cfg, cfg.hydra), SweepJob.parse(cfg.sweep))

    def _submit(self, jobs: Sequence["RunJob"], first: int) -> None:
        study = jobs[0].directory.parent
        folder = self.params["submitit_folder"].replace("<study>", study.name)
        arguments = [
            (job.overrides, "hydra.sweep.dir", number, "", Singleton.get_state())
            for number, job in enumerate(jobs, first)
        ]
        try:
            executor = slurm.executor(self.params, Path(folder))
            with redirect_stderr(io.StringIO()):  # submitit prints what it raises as well
                submitted = executor.map_array(self, *zip(*arguments, strict=True))
        except RuntimeError as error:  # of submitit's, with what sbatch said
            said = " ".join((str(error) or str(error.__cause__)).split())
            raise UserError(f"sbatch: {said.removeprefix('sbatch: error: ')}") from error
        except OSError as error:
            raise ConfigError(f"{slurm.KEY}.submitit_folder", folder, str(error)) from error
        for job, handle in zip(jobs, submitted, strict=True):
            job.submitted(handle)
        ids = ", ".join(dict.fromkeys(handle.job_id.partition("_")[0] for handle in submitted))
        print_line(f"submitted as {ids}; logs: {jobs[0].log.with_name('<run>.log')}")


@contextmanager
def _kept_from_programs() -> Iterator[None]:
    """While inside, new programs do not get the signals that a terminal sends to all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _goes_on() -> bool:
    """Whether SLURM lists this job as running."""
    from submitit import JobEnvironment

    try:
        found = slurm.queue().get(JobEnvironment().job_id)
    except UserError:
        return False
    return found is not None and found.state == "RUNNING"
