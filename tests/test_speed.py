"""What makes steps cheap stays so, and changes no loss."""

import ctypes
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs_lightning.config.identity import run_directory
from cbs_lightning.results.store import read_run
from cbs_lightning.training import train as training
from cbs_lightning.training.run import run
from tests.tiny import Tiny

ROOT = Path(__file__).parents[1]


def losses(cfg) -> np.ndarray:
    run(cfg)
    return read_run(run_directory(cfg)).trajectory.loss


def test_what_is_only_faster_changes_no_bit(tiny, tmp_path, monkeypatch):
    given = ["stop.max_steps=12", "batch_size=64"]
    fast = losses(tiny(*given, f"output_dir={tmp_path / 'fast'}"))
    monkeypatch.setattr(training, "freed_memory_kept", nullcontext)
    monkeypatch.setattr(Tiny, "on_train_start", fill_memory, raising=False)
    slow = losses(tiny(*given, f"output_dir={tmp_path / 'slow'}"))
    assert fast.tobytes() == slow.tobytes()


def fill_memory(_) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("switch", ["threads=2", "optimizer.fused=false"])
def test_what_changes_bits_changes_no_more(tiny, tmp_path, switch):
    given = ["stop.max_steps=12", "batch_size=256"]
    usual = losses(tiny(*given, f"output_dir={tmp_path / 'usual'}"))
    switched = losses(tiny(*given, switch, f"output_dir={tmp_path / 'switched'}"))
    assert switched == pytest.approx(usual, rel=1e-4)


def test_memory_is_not_filled_before_it_is_used(tiny):
    fill_memory(None)
    run(tiny("stop.max_steps=1"))
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_no_step_asks_for_gpus(tiny, monkeypatch, optimizer):
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: asked.append("how many") or 0)
    counts = []
    for steps in (2, 40):
        asked.clear()
        run(tiny(f"stop.max_steps={steps}", "batch_size=16", f"optimizer={optimizer}"))
        counts.append(len(asked))
    assert counts[0] == counts[1]


FAULTS = """
import resource, torch
from cbs_lightning.training.allocator import freed_memory_kept
def faults_of(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.ones(2**21)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with freed_memory_kept():
    faults_of(20)
    print(faults_of(10))
print(faults_of(10))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_is_kept_for_the_next_step_and_given_back_at_the_end():
    """In a process of its own: how often memory is handed out depends on what came before."""
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    kept, given_back = map(int, done.stdout.split())
    assert kept < 0.2 * given_back
