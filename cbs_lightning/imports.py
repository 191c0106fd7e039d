"""Imports torch, torchvision and Lightning in a way that saves a second."""

import gc
from functools import cache

from cbs_lightning.signals import held_back


@cache
def load_frameworks() -> None:
    """Import them once per process; later imports work as usual.

    A signal takes effect afterwards: compiled code would swallow an exception while it is imported.
    """
    with held_back():
        _import()


def _import() -> None:
    was_enabled = gc.isenabled()
    gc.disable()  # among the million objects that imports make, looking for garbage takes long
    try:
        # In this order: a custom operator of torch registers itself by a look through all modules
        # there are, and Lightning has its metrics bring in thousands.
        import torch  # noqa: F401
        import torchvision  # noqa: F401

        import lightning  # noqa: F401  # isort: skip
    finally:
        gc.freeze()  # nor are they looked through later
        if was_enabled:
            gc.enable()
