"""Keeps memory that a step frees for the next step, which would otherwise have to fault it in
again."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
DEFAULT = 128 * 2**10  # bytes, of both thresholds
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # larger blocks come from the system every time
USUAL_MMAPS = 2**16  # blocks at a time that may
NEVER = -1
told_to_keep_large = False  # what glibc was told last, which it cannot be asked for


@contextmanager
def freed_memory_kept(*, large_blocks: bool = False) -> Iterator[None]:
    """While inside, glibc keeps freed memory; afterwards it is returned to the system.

    This is for runs on a CPU: torch itself keeps a GPU's memory. Without glibc, nothing changes.

    Args:
        large_blocks: Also those above 32 MiB. Blocks of many sizes then share one heap, which takes
            up to a half more memory than they do.
    """
    global told_to_keep_large
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    libc.mallopt(M_MMAP_MAX, 0 if large_blocks else USUAL_MMAPS)
    told_to_keep_large = large_blocks
    try:
        yield
    finally:
        told_to_keep_large = False
        libc.mallopt(M_MMAP_MAX, USUAL_MMAPS)
        libc.mallopt(M_MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(M_TRIM_THRESHOLD, DEFAULT)
        libc.malloc_trim(0)
