"""Which GPU a job trains on: the first one with a free slot."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cbs_lightning.callbacks.job import Gpu
from cbs_lightning.results.locks import BusyError

VARIABLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.1


def visible_gpus() -> list[str]:
    """CUDA's GPUs in torch's order: numbers or UUIDs, as CUDA_VISIBLE_DEVICES names them.

    What torch sees counts. If the variable names more GPUs, CUDA leaves out the first one that does
    not exist and all after it. If it names fewer, torch did not use it, and torch's numbers are
    returned.
    """
    count, named = _device_count(), _named()
    return named[:count] if len(named) >= count else [str(gpu) for gpu in range(count)]


def disagreement() -> str | None:
    """A line if CUDA_VISIBLE_DEVICES names more or fewer GPUs than torch sees; otherwise empty."""
    count, named = _device_count(), _named()
    if not named or len(named) == count:
        return None
    return f"{VARIABLE}={os.environ[VARIABLE]} names {len(named)}, torch sees {count}: that counts"


def _device_count() -> int:
    import torch

    return torch.cuda.device_count()


def _named() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def gpu_title(number: int) -> str:
    name = visible_gpus()[number]
    return f"GPU {name}" if name.isdecimal() else name


@contextmanager
def own_gpu(
    slots: Path, workers: int, gpus: int, stop_requested: Callable[[], bool]
) -> Iterator[Gpu | None]:
    """The GPU of this job, for as long as the context lasts.

    Slots are taken in order, and their numbers go round the GPUs, so each GPU gets one job before
    any gets two. The operating system frees the slot when the process ends, however it ends.
    """
    import torch

    slot, lock = _first_free(slots, workers, stop_requested)
    number = slot % gpus
    try:
        yield Gpu(number, gpu_title(number))
    finally:
        # The next job of this process may be on another GPU, and this one's memory another's.
        gc.collect()
        torch.cuda.empty_cache()
        lock.release()


def _first_free(
    slots: Path, workers: int, stop_requested: Callable[[], bool]
) -> tuple[int, FileLock]:
    """The first free slot. There always is one, except while a killed process is still dying."""
    while True:
        for slot in range(workers):
            lock = FileLock(slots / str(slot), fallback_to_soft=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            return slot, lock
        if stop_requested():
            raise BusyError("no GPU was free until the sweep stopped")
        time.sleep(POLL_SECONDS)
