"""torch.compile for a run's net: where each mode works, and what it requires.

A mode is `default`, or `reduce-overhead` (CUDA graphs).
"""

import sysconfig
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._triton import has_triton

from cbs_lightning.models import Classifier
from cbs_lightning.models.modes import CUDA_GRAPHS


def obstacle(mode: str, device: str) -> str | None:
    """Why a mode does not work on this type of device here, in a line; None if it works."""
    if mode == CUDA_GRAPHS and device != "cuda":
        return "CUDA graphs need a CUDA GPU; allowed here: null, default"
    if device == "cuda" and not has_triton():
        return "needs Triton, and a GPU that it works on; allowed here: null"
    if device == "cpu" and not _has_cpp_compiler():
        return "needs a C++ compiler, as $CXX or g++, and Python's headers; allowed here: null"
    if device not in ("cuda", "cpu"):
        return f"is not for the device {device}; allowed here: null"
    return None


def _has_cpp_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except (RuntimeError, OSError):
        return False
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def compile_net(
    model: Classifier, mode: str, *, deterministic: bool, took: Callable[[float], None]
) -> None:
    """Compile the net at its first step, and again for each other batch size.

    A run does not depend on what earlier runs of this process compiled. `took` is called with the
    seconds of each compilation.
    """
    torch.compiler.reset()
    model.cuda_graphs = mode == CUDA_GRAPHS
    model.net.compile(
        dynamic=False,
        # Without the first, Triton's kernels are those that were fastest when they were tried.
        options={"deterministic": deterministic, "triton.cudagraphs": model.cuda_graphs},
    )
    _tell_seconds(took)


def is_of_compiler(error: BaseException) -> bool:
    """Whether torch's or the system's compiler failed, and not the net itself."""
    from torch._dynamo.exc import BackendCompilerFailed

    return isinstance(error, BackendCompilerFailed)


def uncompiled(mode: str | None) -> AbstractContextManager[Any]:
    """While inside, the net is not compiled: for a single pass that is not worth compiling."""
    return torch.compiler.set_stance("force_eager") if mode else nullcontext()


def _tell_seconds(took: Callable[[float], None]) -> None:
    from torch._dynamo.callback import on_compile_end, on_compile_start

    started = 0.0

    def start(_: Any) -> None:
        nonlocal started
        started = time.perf_counter()

    def end(_: Any) -> None:
        took(time.perf_counter() - started)

    on_compile_start(start)
    on_compile_end(end)
