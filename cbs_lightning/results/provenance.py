"""What is needed to repeat a run: packages, device, commit, configuration."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cbs_lightning.console import count_of
from cbs_lightning.files import PROJECT
from cbs_lightning.results.result import MOVED

PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


@cache
def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


@cache
def commit() -> str | None:
    """The commit of this project's code, with a + if tracked files were changed since."""
    if not (PROJECT / ".git").exists():
        return None  # else git would tell of a repository around it
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return None if head is None else head + ("+" if changed else "")


@cache
def processor() -> str:
    """The processor, with the number of its cores."""
    found = re.search(r"model name\s*: (.*)", _text(Path("/proc/cpuinfo")))
    name = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def machine() -> str:
    """Processor, cores and system."""
    return f"{processor()}, {platform.system()} {platform.release()}"


def machine_of_resumed(origin: Mapping[str, Any], steps: int, threads: int) -> str:
    """The machine of a run that resumes here from a checkpoint after this many steps.

    Of several moves, the latest is recorded. Another version of the system does not count as
    another machine, and what an older checkpoint does not say is unknown.
    """
    before = str(origin.get("machine", machine()))
    if origin.get("processor", processor()) == processor() and origin["threads"] == threads:
        return before
    here = f"{count_of(threads, 'thread')} of {machine()}"
    return f"{before.partition(MOVED)[0]}{MOVED}{steps:,}: {here}"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
