"""What makes steps cheap stays so, and changes no loss."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from cbs_lightning import training
from cbs_lightning.allocator import freed_memory_kept
from cbs_lightning.results import read_run
from cbs_lightning.run import run, run_directory
from tests.tiny import Tiny


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
    given = ["stop.max_steps=12", "batch_size=256", "model=resnet20"]
    usual = losses(tiny(*given, f"output_dir={tmp_path / 'usual'}"))
    switched = losses(tiny(*given, switch, f"output_dir={tmp_path / 'switched'}"))
    assert switched[:4] == pytest.approx(usual[:4], rel=1e-4)


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


def test_freed_memory_is_given_back_at_the_end():
    with freed_memory_kept():
        torch.ones(2**22)
    # Nothing to see from here but that neither a block nor an error is left behind.
    assert torch.ones(2**22).sum() == 2**22
