"""How many CPU threads a run gets."""

import os

from joblib import cpu_count

# Operations of a step from which on several threads are faster than one: below, they wait for each
# other longer than they compute.
WORTH_SHARING = 2e9


def cores() -> int:
    """CPU cores that this process may use, within a container's quota or a SLURM job's share."""
    return min(int(cpu_count()), int(os.environ.get("SLURM_CPUS_PER_TASK", cpu_count())))


def fair_share(workers: int) -> int:
    """The share of the cores for one of several runs at a time."""
    return max(1, cores() // workers)


def useful(share: int, operations: float) -> int:
    """How many threads of a share are worth using for steps of this many operations."""
    return share if operations >= WORTH_SHARING else 1
