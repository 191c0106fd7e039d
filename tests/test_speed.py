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
from cbs_lightning.models import ResNet20
from cbs_lightning.results.store import read_run
from cbs_lightning.training import train as training
from cbs_lightning.training.resources import memory
from cbs_lightning.training.run import run
from tests.tiny import Tiny

ROOT = Path(__file__).parents[1]


def losses(cfg) -> np.ndarray:
    run(cfg)
    return read_run(run_directory(cfg)).trajectory.loss


def test_what_is_only_faster_changes_no_bit(tiny, tmp_path, monkeypatch):
    given = ["stop.max_steps=12", "batch_size=64"]
    fast = losses(tiny(*given, f"output_dir={tmp_path / 'fast'}"))
    monkeypatch.setattr(training, "freed_memory_kept", lambda **_: nullcontext())
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
from cbs_lightning.training.resources.allocator import freed_memory_kept
def faults_of(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.ones(ELEMENTS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with freed_memory_kept(large_blocks=LARGE):
    faults_of(20)
    print(faults_of(10))
print(faults_of(10))
"""
BITS = """
import sys, torch
from torch.nn.functional import cross_entropy
from cbs_lightning.models.resnet20 import ResNet20Net
from cbs_lightning.training.resources.allocator import freed_memory_kept
torch.set_num_threads(1)
torch.manual_seed(0)
net = ResNet20Net(3, 10).to(memory_format=torch.channels_last).train()
optimizer = torch.optim.Adam(net.parameters(), fused=True)
images = torch.rand(640, 3, 32, 32).contiguous(memory_format=torch.channels_last)
labels = torch.randint(10, (640,))
with freed_memory_kept(large_blocks=sys.argv[1] == "all"):
    for _ in range(2):  # 40 MiB a block
        optimizer.zero_grad()
        loss = cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
print(loss.item().hex(), sum(float(p.double().sum()) for p in net.parameters()).hex())
"""


glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")


def printed(code: str, *arguments: str) -> str:
    """By a process of its own: how often memory is handed out depends on what came before."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def faults(elements: int, large: bool) -> list[int]:
    code = FAULTS.replace("ELEMENTS", str(elements)).replace("LARGE", str(large))
    return [int(found) for found in printed(code).split()]


@glibc
@pytest.mark.parametrize(("elements", "large"), [(2**21, False), (2**21, True), (2**24, True)])
def test_freed_memory_is_kept_for_the_next_step_and_given_back_at_the_end(elements, large):
    kept, given_back = faults(elements, large)
    assert kept < 0.2 * given_back


@glibc
def test_large_blocks_are_given_back_unless_they_are_to_be_kept():
    inside, outside = faults(2**24, large=False)
    assert inside > 0.8 * outside > 10_000


@glibc
def test_keeping_large_blocks_changes_no_bit():
    assert printed(BITS, "all") == printed(BITS, "small")


@pytest.mark.parametrize(
    ("batch_size", "available", "sharing", "kept"),
    [
        (2048, 64 * 2**30, 1, True),
        (2048, 64 * 2**30, 2, True),
        (2048, 12 * 2**30, 1, True),
        (2048, 12 * 2**30, 2, False),
        (2048, 4 * 2**30, 1, False),
        (32, 64 * 2**30, 1, False),  # too small to have such blocks
    ],
)
def test_large_blocks_are_kept_where_memory_allows(
    monkeypatch, batch_size, available, sharing, kept
):
    model = ResNet20(3, 10, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    monkeypatch.setattr(memory, "available_memory", lambda: available)
    assert memory.room_for_freed_blocks(model, (3, 32, 32), batch_size, sharing) is kept


@pytest.mark.parametrize("room", [True, False])
def test_a_run_asks_for_room_and_keeps_what_it_may(tiny, monkeypatch, room):
    asked, told = [], []
    monkeypatch.setattr(
        training, "room_for_freed_blocks", lambda *arguments: asked.append(arguments[1:]) or room
    )

    def kept(*, large_blocks):
        told.append(large_blocks)
        return nullcontext()

    monkeypatch.setattr(training, "freed_memory_kept", kept)
    run(tiny("stop.max_steps=1", "batch_size=5000"))
    assert asked == [((1, 8, 8), 1797, 1)] and told == [room]


def test_a_net_that_cannot_be_measured_trains_all_the_same(tiny, monkeypatch):
    def fails(*_):
        raise TypeError("not a net of images")

    monkeypatch.setattr(training, "room_for_freed_blocks", fails)
    assert run(tiny("stop.max_steps=1")).steps_run == 1
