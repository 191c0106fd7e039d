"""Recognises errors that mean a lack of memory."""

import torch

SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "could not create a primitive",  # oneDNN, which does not say why
    "could not create a memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error, or what it was raised from, means a lack of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    if isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
