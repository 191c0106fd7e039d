"""Memory that a step frees is kept for the next one, which would else have to fault it in again."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
DEFAULT = 128 * 2**10  # bytes, of both
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # larger blocks come from the system every time
NEVER = 2**31 - 1


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """While inside, glibc keeps what is freed; afterwards the system has it back.

    For runs on a CPU: a GPU's memory is kept by torch itself. Without glibc nothing changes.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(M_TRIM_THRESHOLD, DEFAULT)
        libc.malloc_trim(0)
