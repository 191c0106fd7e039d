"""Moments of a process: when they were, what it had used by then; told in lines, and read back."""

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

FIRST_STEP, ENDED = "moment: first step", "moment: ended"


class Moment(NamedTuple):
    what: str
    at: float  # seconds since 1970
    cpu_seconds: float
    resident: float  # MiB


def tell(what: str) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * resource.getpagesize() / 2**20
    times = os.times()
    print(what, time.time(), times.user + times.system, resident, flush=True)


def read(text: str) -> list[Moment]:
    lines = [line.rsplit(" ", 3) for line in text.splitlines()]
    return [
        Moment(what, float(at), float(cpu_seconds), float(resident))
        for what, at, cpu_seconds, resident in (
            line for line in lines if line[0] in (FIRST_STEP, ENDED)
        )
    ]
