"""How many CPU threads a run gets."""

import os

from joblib import cpu_count

# Operations of a step from which on several threads are faster than one: below, they wait for each
# other longer than they compute.
WORTH_SHARING = 2e9


def cores() -> int:
    """CPU cores that this process may use, a container's quota and a SLURM job's included."""
    return min(int(cpu_count()), int(os.environ.get("SLURM_CPUS_PER_TASK", cpu_count())))


def fair_share(workers: int) -> int:
    """Of the cores, for one of several runs at a time."""
    return max(1, cores() // workers)


def useful(share: int, operations: float) -> int:
    """Of a share of the cores, for steps of so many floating-point operations."""
    return share if operations >= WORTH_SHARING else 1
