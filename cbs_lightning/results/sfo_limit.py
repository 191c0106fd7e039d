"""The SFO beyond which a search gives a run up, in a file that its jobs look at.

The file is beside the runs, where jobs on other machines see it too.
"""

from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from cbs_lightning.files import write_atomically


class MostSfo:
    """One number, or none as long as there is no such bound."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> float | None:
        with suppress(OSError, ValueError):
            return float(self.path.read_text())
        return None

    def write(self, sfo: float | None) -> None:
        if sfo is None:
            self.path.unlink(missing_ok=True)
        elif sfo != self.read():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, f"{sfo}\n".encode())


def most_sfo_of(cfg: DictConfig) -> MostSfo | None:
    """That of the search which the configuration is a job of."""
    return MostSfo(Path(cfg.sweep.most_sfo_file)) if cfg.sweep.most_sfo_file else None
