"""How much memory there is and how much of it is free, as far as the system says."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Bytes that this process could still allocate."""
    limits = [_physical_memory()]
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    limits += [limit - used for limit, used in _cgroup_limits()]
    return max(0, min(limits))


def total_memory() -> int:
    """Bytes that this process and others like it can have at most, whatever is free now."""
    return min([_physical_memory(), *(limit for limit, _ in _cgroup_limits())])


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Bytes allowed and bytes used, for every control group around this process that has a limit.

    In a container, the group's path may be the host's, of which only the top is visible.
    """
    with suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, names = CGROUP, ("memory.max", "memory.current")
            elif controllers == "memory":  # version 1
                root, names = CGROUP / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            group = root / path.lstrip("/")
            while group.is_relative_to(root):
                with suppress(OSError, ValueError):  # "max" is no number: no limit
                    limit, used = (int((group / name).read_text()) for name in names)
                    yield limit, used
                group = group.parent
