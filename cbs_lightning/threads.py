"""How many CPU threads a run gets."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from cbs_lightning import results


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(cfg: DictConfig, directory: Path) -> int:
    """As asked for; else as the run began with, since sums depend on it; else a fair share."""
    if cfg.threads is not None:
        return int(cfg.threads)
    if (directory / results.CHECKPOINT).exists():
        return int(OmegaConf.select(OmegaConf.load(directory / results.CONFIG), "threads"))
    return max(1, cores() // (cfg.sweep.workers or 1))
