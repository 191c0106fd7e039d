"""How many CPU threads a run gets."""

import os


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fair_share(workers: int) -> int:
    """Of the cores, for one of several runs at a time."""
    return max(1, cores() // workers)
