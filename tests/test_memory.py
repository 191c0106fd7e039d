"""Large batches in small memory: slices, automatic slices, and activation checkpointing."""

import copy
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.models import ResNet18, ResNet20, ResNet20Authors, TorchvisionNet
from cbs_lightning.models.chunks import backward
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.models.recompute import recompute_blocks
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.training import build
from cbs_lightning.training.outcome import Outcome
from cbs_lightning.training.resources import memory
from cbs_lightning.training.resources.memory import automatic_slice, largest_slice, peak_of_step
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.forks import ran
from tests.tiny import Restless, Tiny

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


def made(kind=Tiny, recompute=False, **settings):
    torch.manual_seed(0)
    model = kind(1, 10, lambda parameters: torch.optim.SGD(parameters, lr=0.1), **settings)
    model.manual_backward = lambda loss: loss.backward()
    assert not recompute or recompute_blocks(model.net) > 2
    return model


def images(size, channels=1, side=8):
    rng = torch.Generator().manual_seed(1)
    pixels = torch.rand(size, channels, side, side, generator=rng)
    return pixels.to(memory_format=torch.channels_last), torch.randint(10, (size,), generator=rng)


@pytest.mark.parametrize("slice_size", [1, 3, 8, 16, 19, 20, 500])
@pytest.mark.parametrize("size", [20, 19, 1])
def test_the_gradient_is_that_of_the_batch_whatever_the_slices(size, slice_size):
    pixels, labels = images(size)
    whole, sliced = made().double(), made(micro_batch_size=slice_size).double()
    losses = []
    for model in (whole, sliced):
        loss, correct = backward(model, pixels.double(), labels)
        losses.append((loss.item(), correct.item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for one, other in zip(whole.parameters(), sliced.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-11, atol=1e-13)


def test_slices_of_batch_norm_are_recorded_and_warned_about_once(tiny, capsys):
    build._warn_of_slices.cache_clear()
    request = ("model=restless", "stop.max_steps=2", "micro_batch_size=100")
    results = [run(tiny(*request, f"seed={seed}")) for seed in (0, 1)]
    assert [result.micro_batch_size for result in results] == [100, 100]
    assert capsys.readouterr().out.count("BatchNorm") == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12, 64, 99, 100, 1000])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 64, 100, 4096])
def test_the_largest_even_slice_is_found(batch_size, limit):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= limit

    found = largest_slice(batch_size, fits)
    if batch_size <= limit:
        assert found is None and tried == [batch_size]
    else:
        assert found == -(-batch_size // -(-batch_size // limit)) <= limit
        assert len(tried) <= 3 * np.log2(batch_size) + 3


def test_where_nothing_fits_the_slice_is_one_sample():
    assert largest_slice(64, lambda size: False) == 1


def test_automatic_slices_follow_the_memory_there_is(monkeypatch):
    model = made(ResNet20)
    batch = 1797 * 8 * 8 * 4  # bytes of the whole batch's images
    for room in (3 * 2**20, 30 * 2**20):
        for workers in (1, 2):
            available = int((room + batch) / memory.USABLE * workers)
            monkeypatch.setattr(memory, "available_memory", lambda there=available: there)
            size = automatic_slice(model, CPU, (1, 8, 8), 1797, workers=workers)
            larger = -(-1797 // (-(-1797 // size) - 1))
            need = [peak_of_step(model, images(n)[0]) for n in (size, larger)]
            assert need[0] <= 1.02 * room and need[1] > 0.9 * room
    monkeypatch.setattr(memory, "available_memory", lambda: 2**40)
    assert automatic_slice(model, CPU, (1, 8, 8), 1797, workers=1) is None


class Greedy(nn.Module):
    """Stands in for a net on a GPU with room for `limit` samples."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.layer = nn.Linear(64, 10)

    def forward(self, pixels):
        if len(pixels) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.layer(pixels.flatten(1))


def test_a_gpu_is_tried(monkeypatch):
    model = made()
    model.net = Greedy(limit=30)
    weights = model.net.layer.weight.clone()
    monkeypatch.setattr(memory, "_growth", None)
    device = torch.device("cpu")
    assert largest_slice(100, lambda n: memory._fits(model, device, (1, 8, 8), 100, n)) == 25
    assert torch.equal(weights, model.net.layer.weight)

    class Broken(Greedy):
        def forward(self, pixels):
            raise RuntimeError("the roof fell in")

    model.net = Broken(limit=1)
    with pytest.raises(RuntimeError, match="roof"):
        memory._fits(model, device, (1, 8, 8), 100, 100)


def test_an_automatic_choice_is_stored_and_kept(tiny, monkeypatch, tmp_path):
    choices = iter([100])
    monkeypatch.setattr(build, "automatic_slice", lambda *_: next(choices))
    cfg = tiny("model=restless", "micro_batch_size=auto", "stop.loss=1e-9", "stop.max_steps=4")
    assert run(cfg).micro_batch_size == 100
    longer = tiny("model=restless", "micro_batch_size=auto", "stop.loss=1e-9", "stop.max_steps=8")
    assert run_directory(longer) == run_directory(cfg)
    assert run(longer).micro_batch_size == 100
    asked = tiny(
        "model=restless", "micro_batch_size=100", "stop.loss=1e-9", "stop.max_steps=8",
        f"output_dir={tmp_path / 'asked'}",
    )  # fmt: skip
    run(asked)
    one, other = (read_run(run_directory(c)).trajectory.loss for c in (longer, asked))
    assert np.array_equal(one, other)


def test_looking_for_a_slice_uses_up_no_random_numbers():
    model = made(Restless)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    automatic_slice(model, CPU, (1, 8, 8), 1797, workers=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_slice_of_one_that_batch_norm_cannot_take(tmp_path):
    cfg = compose(
        ["model=resnet20_authors", "batch_size=257", "micro_batch_size=256",
         f"output_dir={tmp_path / 'out'}"]
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"micro_batch_size=256.*a slice of 1"):
        run(cfg)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "kind",
    [ResNet20, ResNet20Authors, ResNet18, lambda *a, **k: TorchvisionNet("mobilenet_v2",
     in_channels=a[0], num_classes=a[1], optimizer=a[2], **k)],
    ids=["resnet20", "resnet20_authors", "resnet18", "mobilenet_v2"],
)  # fmt: skip
def test_activation_checkpointing_changes_no_bit(kind):
    """Gradients, weights and BatchNorm's running statistics, dropout included."""
    plain, saving = made(kind), made(kind, recompute=True)
    state = copy.deepcopy(plain.state_dict())
    assert state.keys() == saving.state_dict().keys()
    pixels, labels = images(24, side=32)
    for model in (plain, saving):
        torch.manual_seed(3)
        optimizer = model.configure_optimizers()
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, pixels, labels)
            optimizer.step()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, saving.state_dict()[name]), name
        if name.endswith("num_batches_tracked"):
            assert value == 3
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    plain.eval(), saving.eval()
    assert torch.equal(plain(pixels), saving(pixels))


def test_activation_checkpointing_of_a_run_shares_its_directory_and_losses(tmp_path):
    runs = []
    for switch in ("false", "true"):
        cfg = compose(
            [f"activation_checkpointing={switch}", "stop.max_steps=4", "batch_size=64",
             "threads=1", f"output_dir={tmp_path / switch}"]
        )  # fmt: skip
        run(cfg)
        runs.append((run_directory(cfg).name, read_run(run_directory(cfg)).trajectory.loss))
    assert runs[0][0] == runs[1][0]
    assert np.array_equal(runs[0][1], runs[1][1])


def test_a_net_without_blocks_cannot_recompute_any(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"activation_checkpointing=true: tiny has no blocks"):
        run(tiny("activation_checkpointing=true", f"output_dir={tmp_path / 'out'}"))
    assert not (tmp_path / "out").exists()


def test_activation_checkpointing_halves_the_memory_of_activations():
    """He et al.'s ResNet-20 on images of CIFAR-10's size; b = 4096 is measured by a slow test."""
    plain, saving = made(ResNet20), made(ResNet20, recompute=True)
    pixels, _ = images(32, side=32)
    ratio = peak_of_step(saving, pixels) / peak_of_step(plain, pixels)
    assert 0.3 < ratio < 0.5


PEAK = """
import resource, sys
sys.argv = ["train.py", *sys.argv[1:]]
from cbs_lightning.training import train as training
from train import train
training.room_for_freed_blocks = lambda *_: False  # as where memory is short
train()
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_of_a_whole_process_at_batch_size_4096(real_data, tmp_path):
    """One step of He et al.'s ResNet-20 on CIFAR-10, all of the process's memory counted."""
    if memory.available_memory() < 10 * 2**30:
        pytest.skip("10 GB of free memory are needed")
    peaks = {}
    for switch in ("false", "true"):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, "data=cifar10", "batch_size=4096", "stop.max_steps=1",
             f"activation_checkpointing={switch}", f"output_dir={tmp_path / switch}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
            env=os.environ | {"CBS_DATA_DIR": str(real_data)},
        )  # fmt: skip
        peaks[switch] = int(done.stdout.split("PEAK")[1])
    print(peaks)
    assert peaks["true"] <= 0.6 * peaks["false"], peaks


def test_out_of_memory_is_a_failed_run_and_one_line_that_says_what_to_set(forks, tmp_path):
    arguments = [*TINY, "model=resnet20", "batch_size=1797", "stop.max_steps=1"]
    ended = ran(forks, arguments, tmp_path / "out", memory=120 * 2**20)
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith("error: batch_size=1797: out of memory; set micro_batch_size=auto")
    assert "or set activation_checkpointing=true" in line and "fewer jobs" not in line
    (directory,) = (tmp_path / "out").glob("*/*")
    stored = read_run(directory).result
    assert stored.status is Status.FAILED and stored.steps_run == 0
    assert "memory" in (directory / "error.txt").read_text()
    ended = ran(forks, [*arguments, "micro_batch_size=64"], tmp_path / "out", memory=120 * 2**20)
    assert ended.code == 0, ended.err


def test_what_a_failed_step_held_is_freed_before_the_result_is_written(tiny, monkeypatch):
    """Else there may be no memory left to write it with."""
    held, freed = [], []

    def no_room(*_):
        activations = torch.zeros(1000)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    finish = Outcome.finish
    monkeypatch.setattr("cbs_lightning.models.Classifier.training_step", no_room)
    monkeypatch.setattr(
        Outcome, "finish", lambda *given: (freed.append(held[0]() is None), finish(*given))
    )
    cfg = tiny()
    with pytest.raises(UserError, match="out of memory"):
        run(cfg)
    assert freed == [True]
    assert "no_room" in (run_directory(cfg) / "error.txt").read_text()


def test_an_error_raised_from_a_lack_of_memory_means_one_too():
    try:
        try:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        except RuntimeError as lack:
            raise TypeError("Error in call to target 'Net'") from lack
    except TypeError as error:
        assert is_out_of_memory(error)
    assert not is_out_of_memory(TypeError("Error in call to target 'Net'"))


def test_a_choice_that_ran_out_of_memory_is_made_again(tiny, monkeypatch):
    choices = iter([None, 100])
    monkeypatch.setattr(build, "automatic_slice", lambda *_: next(choices))
    cfg = tiny("micro_batch_size=auto", "activation_checkpointing=false", "stop.max_steps=2")

    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("cbs_lightning.models.Classifier.training_step", no_room)
        with pytest.raises(UserError, match="out of memory; set a smaller number as micro_batch"):
            run(cfg)
    assert run(cfg).micro_batch_size == 100


def test_a_finished_run_stays_finished_where_going_on_runs_out_of_memory(tiny, monkeypatch):
    cfg = tiny("stop.loss=2.2", "checkpoint.keep=true")
    finished = run(cfg)

    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("cbs_lightning.models.Classifier.training_step", no_room)
        with pytest.raises(UserError, match="out of memory"):
            run(tiny("stop.loss=1.5", "checkpoint.keep=true"))
    assert read_run(run_directory(cfg)).result == finished
