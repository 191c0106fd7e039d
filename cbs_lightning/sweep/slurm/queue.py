"""Questions to SLURM: whether it would accept a sweep's jobs, and what state they are in."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbs_lightning.console import print_line
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.files import PROJECT

if TYPE_CHECKING:
    from submitit import SlurmExecutor

FOLDER = "_slurm"  # of a study: what jobs leave there beside its runs
KEY = "hydra.launcher"
LEAST = {
    "timeout_min": 1, "array_parallelism": 1, "signal_delay_s": 1, "max_num_timeout": 0,
    "cpus_per_task": 1, "gpus_per_node": 0, "mem_gb": 1,
}  # fmt: skip
ALONE = ("nodes", "tasks_per_node")
OF_LAUNCHER = ("_target_", "submitit_folder", "max_num_timeout")  # the others are of a job
SECONDS = 60  # that SLURM has to answer in
# How sbatch --test-only says that no node can have a job now; sbatch may put it into the queue
# nevertheless, but not if it calls a setting invalid.
UNPLACED, INVALID = "allocation failure: ", "Invalid"
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip


@dataclass(frozen=True)
class Queued:
    """A job in SLURM's queue: its state, why it is waiting, and what was passed to sbatch."""

    state: str
    reason: str = "None"
    script: str = ""


def check(launcher: str, settings: Mapping[str, Any], jobs: int) -> None:
    """Raise `UserError` if SLURM would never accept an array of this many jobs; submits nothing."""
    for key, least in LEAST.items():
        value = settings[key]
        if value is not None and value < least:
            raise ConfigError(f"{KEY}.{key}", value, f"must be a whole number >= {least}")
    for key in ALONE:
        if settings[key] != 1:
            raise ConfigError(f"{KEY}.{key}", settings[key], "a run has 1 device, so 1 process")
    if settings["signal_delay_s"] > (most := _most_delay(settings["timeout_min"])):
        allowed = f"must be <= {most} where {KEY}.timeout_min={settings['timeout_min']}"
        raise ConfigError(f"{KEY}.signal_delay_s", settings["signal_delay_s"], allowed)
    check_programs(launcher)
    try:
        queue()
    except UserError as error:
        reason = "no SLURM answers here; run it on a login node, or here without this launcher"
        raise ConfigError("hydra/launcher", launcher, f"{reason} ({error})") from error
    submission = executor(settings, Path())
    submission.parameters["map_count"] = jobs
    try:
        _asked("sbatch", "--test-only", text=submission._make_submission_file_text("true", ""))
    except _RefusedError as refused:
        _check_partition(settings["partition"])
        _check_cores(settings["partition"], settings["cpus_per_task"])
        if UNPLACED not in str(refused) or INVALID in str(refused):
            raise UserError(f"{KEY}: sbatch refuses these settings: {refused}") from refused
        print_line(f"warning: SLURM has no place for these jobs at the moment: {refused}")


def check_programs(launcher: str) -> None:
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        reason = "there is no sbatch here; run it where SLURM is, such as a cluster's login node"
        raise ConfigError("hydra/launcher", launcher, reason)


def executor(settings: Mapping[str, Any], folder: Path) -> "SlurmExecutor":
    """The object that submits jobs with these settings and keeps their files in the folder."""
    # Of the extra `slurm`; and it takes its time, which who needs no cluster need not wait for.
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    shared = {field.name for field in fields(BaseQueueConf)}
    parameters = {
        name if name in shared else f"slurm_{name}": value
        for name, value in settings.items()
        if name not in OF_LAUNCHER
    }
    setup = [
        f"export PYTHONPATH={shlex.quote(_importable())}${{PYTHONPATH:+:$PYTHONPATH}}",
        # Since SLURM 22.05 srun does not look at what sbatch was asked for.
        '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
    ]
    parameters["slurm_setup"] = setup + list(settings["setup"] or [])
    made = submitit.AutoExecutor(
        folder, cluster="slurm", slurm_max_num_timeout=settings["max_num_timeout"]
    )
    made.update_parameters(**parameters)
    assert isinstance(made._executor, submitit.SlurmExecutor)
    return made._executor


def _importable() -> str:
    """Where a job finds this project, and what `_target_` names in the current directory."""
    return os.pathsep.join([str(PROJECT), str(Path.cwd())])


def queue() -> dict[str, Queued]:
    """This user's jobs by id, including those that ended recently.

    Raises `UserError` if SLURM does not answer.
    """
    try:
        lines = _asked(
            "squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r|%o"
        ).splitlines()
    except _RefusedError as refused:
        raise UserError(f"squeue: {refused}") from refused
    jobs = (line.split("|", maxsplit=3) for line in lines)
    return {job_id: Queued(*details) for job_id, *details in jobs}


def _most_delay(minutes: int) -> int:
    """The largest number of seconds at which submitit still takes a warning for a time-out.

    submitit does so in the last fifth of the time limit, or in its last ten minutes. SLURM may send
    the warning a minute early, and submitit starts counting late.
    """
    return min(60 * minutes - 1, max(12 * minutes, 600) - 120)


def _check_partition(partition: str | None) -> None:
    if partition is None:
        return
    try:
        there = set(_asked("sinfo", "--noheader", "--format=%R").split())
    except _RefusedError:
        return
    if missing := set(partition.split(",")) - there:
        allowed = f"no such partition; allowed: {', '.join(sorted(there))}"
        raise ConfigError(f"{KEY}.partition", ",".join(sorted(missing)), allowed)


def _check_cores(partition: str | None, cores: int | None) -> None:
    of_partition = [] if partition is None else [f"--partition={partition}"]
    try:
        node_cores = _asked("sinfo", "--Node", "--noheader", "--format=%c", *of_partition).split()
    except _RefusedError:
        return
    if node_cores and cores is not None and cores > (most := max(map(int, node_cores))):
        raise ConfigError(
            f"{KEY}.cpus_per_task", cores, f"no node has that many; allowed: <= {most}"
        )


class _RefusedError(Exception):
    """What one of SLURM's programs said, in one line."""


def _asked(*command: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _RefusedError(str(error)) from error
    if done.returncode != 0:
        said = [line.removeprefix(f"{command[0]}: ") for line in done.stderr.splitlines()]
        raise _RefusedError("; ".join(line.removeprefix("error: ") for line in said if line))
    return done.stdout
