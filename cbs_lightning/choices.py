"""Automatic choices: made once for a run, stored, and kept when it goes on."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cbs_lightning import results
from cbs_lightning.threads import fair_share

AUTO = "auto"


def resolve(cfg: DictConfig, directory: Path) -> None:
    """Set the threads, and `micro_batch_size: auto` where the run began with a choice.

    Sums depend on both, so a run goes on with what it began with.
    """
    begun = _stored(directory)
    if cfg.threads is None:
        known = begun.get("threads")
        cfg.threads = known if isinstance(known, int) else fair_share(cfg.sweep.workers or 1)
    if cfg.micro_batch_size == AUTO and "micro_batch_size" in begun:
        known = begun["micro_batch_size"]
        if known is None or isinstance(known, int):
            cfg.micro_batch_size = known


def _stored(directory: Path) -> dict[str, Any]:
    path = directory / results.CONFIG
    try:
        values = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
    except Exception as error:  # whatever a garbled file makes yaml and omegaconf raise
        print(f"{path}: damaged ({type(error).__name__}); written anew", flush=True)
        return {}
    return {str(key): values[key] for key in values} if isinstance(values, dict) else {}
