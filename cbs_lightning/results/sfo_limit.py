"""The SFO beyond which a search abandons a run: one number, which may change while the run trains.

A run is abandoned when its K·b is known to be more than that: by the rule `middle` half a window
later than when it cost as much.

It is in a file beside the runs, so that jobs on other machines see it too. The search writes it;
`StopAtThreshold` reads it during training, and so does the code that answers from stored losses.
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
    """The limit in a file; there is no limit as long as the file does not exist."""

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
        """Whether this SFO exceeds the limit. Reads the file once a second at most."""
        if time.monotonic() - self._read_at >= SECONDS_BETWEEN_READS:
            self._latest = self.read()
            self._read_at = time.monotonic()
        return self._latest is not None and sfo > self._latest

    def abandoned(self, result: Result) -> Result | None:
        """A stored run that missed its threshold, as an abandoned one; None if its K·b may be
        within the limit."""
        limit = self.read()
        if limit is None or result.sfo_exceeded <= limit:
            return None
        return replace(result, status=Status.ABANDONED, ended=Status.ABANDONED)
