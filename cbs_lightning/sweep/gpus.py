"""Which GPU a job trains on: where a sweep's jobs have several, one with a slot that is free."""

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from omegaconf import DictConfig

from cbs_lightning.config.checks import device_type
from cbs_lightning.results.locks import BusyError

VARIABLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.1


def visible_gpus() -> list[str]:
    """CUDA's GPUs in torch's order: a number or a UUID, as CUDA_VISIBLE_DEVICES names them.

    What torch sees counts. Where the variable names more, CUDA leaves out the first that is not
    there and all after it; where it names fewer, torch did not go by it, and its numbers do.
    """
    count, named = torch.cuda.device_count(), _named()
    return named[:count] if len(named) >= count else [str(gpu) for gpu in range(count)]


def disagreement() -> str | None:
    """In a line, where CUDA_VISIBLE_DEVICES names more GPUs than torch sees, or fewer."""
    count, named = torch.cuda.device_count(), _named()
    if not named or len(named) == count:
        return None
    return f"{VARIABLE}={os.environ[VARIABLE]} names {len(named)}, torch sees {count}: that counts"


def _named() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def gpu_title(gpu: int) -> str:
    name = visible_gpus()[gpu]
    return f"GPU {name}" if name.isdecimal() else name


@contextmanager
def slot_directory() -> Iterator[Path]:
    """For the locks of a sweep's slots: one for each job at a time."""
    with tempfile.TemporaryDirectory(prefix="cbs_lightning-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextmanager
def own_gpu(cfg: DictConfig) -> Iterator[int | None]:
    """torch's number of the GPU that this job has for as long as the context lasts.

    None where the sweep hands out none: the run then takes the device that comes first. Slots are
    taken in the order of their numbers, which go round the GPUs: each GPU has a job before one has
    two. The operating system frees the slot when the process ends, however it ends.
    """
    if not cfg.sweep.slots or device_type(cfg.trainer.accelerator) != "cuda":
        yield None
        return
    slot, lock = _first_free(cfg.sweep)
    try:
        yield slot % cfg.sweep.gpus
    finally:
        # The next job of this process may be on another GPU, and this one's memory another's.
        gc.collect()
        torch.cuda.empty_cache()
        lock.release()


def _first_free(sweep: DictConfig) -> tuple[int, FileLock]:
    """There is one, but for the moment in which a killed process dies."""
    while True:
        for slot in range(sweep.workers):
            lock = FileLock(Path(sweep.slots) / str(slot), fallback_to_soft=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            return slot, lock
        if Path(sweep.stop_file).exists():
            raise BusyError("no GPU was free until the sweep stopped")
        time.sleep(POLL_SECONDS)
