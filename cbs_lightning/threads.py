"""How many CPU threads a run gets."""

from joblib import cpu_count


def cores() -> int:
    """CPU cores that this process may use, a container's quota included."""
    return int(cpu_count())


def fair_share(workers: int) -> int:
    """Of the cores, for one of several runs at a time."""
    return max(1, cores() // workers)
