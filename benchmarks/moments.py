"""Moments of a process: when they were, what it had used by then; told in lines, and read back."""

import os
import time
from pathlib import Path
from typing import NamedTuple

FIRST_STEP, ENDED = "moment: first step", "moment: ended"


class Moment(NamedTuple):
    what: str
    at: float  # seconds since 1970
    cpu_seconds: float
    resident: float  # MiB


def resident(what: str) -> float:
    """MiB: VmRSS is what this process has now, VmHWM the most that it had.

    Not `ru_maxrss`, which begins with that of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{what}:"))
    return int(kib) / 2**10


def print_moment(what: str) -> None:
    times = os.times()
    print(what, time.time(), times.user + times.system, resident("VmRSS"), flush=True)


def read(text: str) -> list[Moment]:
    lines = [line.rsplit(" ", 3) for line in text.splitlines()]
    return [
        Moment(what, float(at), float(cpu_seconds), float(resident))
        for what, at, cpu_seconds, resident in (
            line for line in lines if line[0] in (FIRST_STEP, ENDED)
        )
    ]
