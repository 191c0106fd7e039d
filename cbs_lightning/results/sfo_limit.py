"""The SFO beyond which a search gives a run up: one number, which may fall while the run trains.

It is in a file beside the runs, where jobs on other machines see it too. The search writes it; a
run reads it as it trains (`StopAtThreshold`), and so does what answers from stored losses.
"""

import math
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cbs_lightning.files import inside, write_atomically
from cbs_lightning.results.result import Result, Status

SECONDS_BETWEEN_READS = 1


class SfoLimit:
    """No limit as long as there is no such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._latest: float | None = None
        self._read_at = -math.inf

    def read(self) -> float | None:
        with suppress(OSError, ValueError):
            return float(self.path.read_text())
        return None

    def write(self, sfo: float | None) -> None:
        inside(self.path.parents[1], self.path.parent.name)
        if sfo is None:
            self.path.unlink(missing_ok=True)
        elif sfo != self.read():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, f"{sfo}\n".encode())

    def is_exceeded(self, sfo: int) -> bool:
        """By this SFO. Looks at the file once a second at most, since training asks often."""
        if time.monotonic() - self._read_at >= SECONDS_BETWEEN_READS:
            self._latest = self.read()
            self._read_at = time.monotonic()
        return self._latest is not None and sfo > self._latest

    def abandoned(self, result: Result) -> Result | None:
        """The result of a stored run that has not reached its threshold, as one that is given up;
        None where it has not cost more than the limit."""
        limit = self.read()
        if limit is None or result.steps_run * result.effective_batch_size <= limit:
            return None
        return replace(result, status=Status.ABANDONED, ended=Status.ABANDONED)
