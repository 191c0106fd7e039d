"""A throw-away SLURM of one node, from Debian's slurm-wlm and munge, as root.

`python -m tests.slurm_cluster` keeps one until it is interrupted.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CPUS = 16  # more than there are: jobs of tests mostly sleep
CONFIGURATION = """
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
# A requeued job waits until its credential has expired.
AuthInfo=socket={directory}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
JobRequeue=0
KillWait=20
SchedulerParameters=sched_interval=2,batch_sched_delay=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=10 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP
"""


def obstacle() -> str | None:
    """Why there can be no such cluster here."""
    if os.geteuid() != 0:
        return "root is needed to start a SLURM"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)}: not there; Debian's slurm-wlm and munge" if missing else None


@contextmanager
def cluster(directory: Path) -> Iterator[dict[str, str]]:
    """While inside, there is a cluster for processes with the environment that is given."""
    for name in ("state", "spool", "munge"):
        (directory / name).mkdir(mode=0o700)
    key = directory / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = directory / "slurm.conf"
    ports = _free_ports()
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0], directory=directory, cpus=CPUS,
            controller_port=ports[0], node_port=ports[1],
        )
    )  # fmt: skip
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    munge = directory / "munge"
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--log-file={munge / 'log'}",
         f"--socket={directory / 'munge.socket'}", f"--pid-file={munge / 'pid'}",
         f"--seed-file={munge / 'seed'}"],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D"],
    ]  # fmt: skip
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((directory / f"{command[0]}.log").open("wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(_stop, process)
        _wait_until_idle(environment, directory)
        stack.callback(_end_jobs, environment)
        yield environment


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(2)]
        return [server.getsockname()[1] for server in servers]


def _wait_until_idle(environment: dict[str, str], directory: Path) -> None:
    command = ["sinfo", "--noheader", "--format=%T"]
    for _ in range(120):
        told = subprocess.run(command, env=environment, capture_output=True, text=True)
        if told.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace") for path in directory.glob("*.log"))
    raise RuntimeError(f"the cluster does not come up: {told.stdout}{told.stderr}\n{logs}")


def _end_jobs(environment: dict[str, str]) -> None:
    """They would outlive the cluster."""
    subprocess.run(["scancel", "--me"], env=environment, check=False)
    for _ in range(60):
        left = subprocess.run(["squeue", "--noheader"], env=environment, capture_output=True)
        if not left.stdout:
            return
        time.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    process.kill()
    process.wait()


if __name__ == "__main__":
    if (reason := obstacle()) is not None:
        sys.exit(f"error: {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as directory,
        cluster(Path(directory)) as environment,
        suppress(KeyboardInterrupt),
    ):
        print(f"export SLURM_CONF={environment['SLURM_CONF']}  # until Ctrl-C", flush=True)
        time.sleep(10**9)
