"""What is needed to run a run again: packages, device, commit, configuration."""

import importlib.metadata
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import torch

from cbs_lightning.files import PROJECT

PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


@cache
def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


@cache
def commit() -> str | None:
    """The commit of this project's code, with a + where tracked files were changed since."""
    if not (PROJECT / ".git").exists():
        return None  # else git would tell of a repository around it
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return None if head is None else head + ("+" if changed else "")


@cache
def machine() -> str:
    """Processor, cores and system."""
    found = re.search(r"model name\s*: (.*)", _text(Path("/proc/cpuinfo")))
    processor = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


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
