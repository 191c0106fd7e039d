"""Within an epoch the host never waits for a GPU.

Shown without one. `meta` is a device whose values cannot be had at any price: what makes a host
wait for a GPU raises there. What that leaves open is counted.
"""

from collections import Counter
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cbs_lightning.callbacks import TrajectoryRecorder, recorder
from cbs_lightning.config.composition import compose
from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.loader import Images, InMemoryLoader, Normalization
from cbs_lightning.models import Classifier, chunks
from cbs_lightning.optim.groups import make_optimizer
from cbs_lightning.results.result import Status
from cbs_lightning.training.budgeted_trainer import BudgetedTrainer
from cbs_lightning.training.build import optimizer_factory
from cbs_lightning.training.run import run
from tests.optimizers import OPTIMIZERS, chosen

STEPS = 15  # an epoch's, with b = 128, in four chunks
REQUEST = ["batch_size=128", "stop.max_epochs=2", "stop.loss=1e-9", "data.augment=true",
           "data.normalize=true", "model=restless"]  # fmt: skip
# What answers with a value, or with as many values as a tensor's contents say.
WAITING = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2",
    "unique_dim", "unique_consecutive", "bincount", "repeat_interleave",
}  # fmt: skip
# What has the host wait until a GPU is done with it; SOAP sets up its bases by it.
SETS_UP = "_linalg_eigh"


class Waits(TorchDispatchMode):
    """Counts by name what has the host wait, and what is copied from one device to another."""

    def __init__(self):
        super().__init__()
        self.found, self.seen = Counter(), Counter()
        self.set_up = Counter()  # by the number of the step
        self.looking = True
        self.device = "cpu"  # that the run is on

    def _is_on_host(self, args):
        """And nothing is waited for: torch's optimizers keep counters there."""
        return self.device != "cpu" and args[0].device.type == "cpu"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if self.looking:
            self.seen[name] += 1
            if name == SETS_UP and not self._is_on_host(args):
                self.set_up[self.seen["convolution"]] += 1
            if (
                (name in WAITING and not self._is_on_host(args))
                or _is_masked(name, args)
                or _is_moved(name, args, out)
            ):
                self.found[name] += 1
        return out


def _is_masked(name, args):
    masks = (torch.bool, torch.uint8)
    return name.startswith("index") and any(
        isinstance(leaf, torch.Tensor) and leaf.dtype in masks for leaf in tree_leaves(args[1:2])
    )


def _is_moved(name, args, out):
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    return name in ("_to_copy", "copy_") and tensors[-1].device != out.device


def first_steps_that_wait(optimizer):
    return {1} if optimizer == "soap" else set()


@pytest.fixture
def epochs(monkeypatch):
    """Counts from the first chunk of each epoch to the fetching at its end."""
    waits = Waits()
    waits.looking = False
    fetch, training_step = TrajectoryRecorder.fetch, Classifier.training_step
    tensor = torch.tensor

    def look(self, *arguments):
        waits.looking = True
        return training_step(self, *arguments)

    def look_away(self):
        waits.looking = False
        fetch(self)

    def copied_from_the_host(*arguments, **settings):
        made = tensor(*arguments, **settings)
        waits.found["tensor"] += waits.looking and made.device.type == waits.device
        return made

    monkeypatch.setattr(Classifier, "training_step", look)
    monkeypatch.setattr(torch, "tensor", copied_from_the_host)
    monkeypatch.setattr(TrajectoryRecorder, "fetch", look_away)
    return waits


# These have counters on the host, which on a CPU look like any other value.
COUNTING = {"nadam", "radam", "rmsprop"}


@pytest.mark.parametrize("optimizer", sorted({*OPTIMIZERS} - COUNTING))
def test_a_run_on_the_cpu_asks_for_no_values(tiny, epochs, optimizer):
    with epochs:
        assert run(tiny(*REQUEST, *chosen(optimizer))).status is Status.EXHAUSTED
    assert epochs.seen["convolution_backward"] == 2 * STEPS
    assert not epochs.found.total()
    assert {*epochs.set_up} == first_steps_that_wait(optimizer)


class Unreadable(CPUAccelerator):
    def setup_device(self, device):
        pass


@contextmanager
def fused_kernels():
    """Those that torch has for real devices alone."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in ("_fused_sgd_", "_fused_adagrad_"):
            library.impl(name, lambda *_, **__: None, "Meta")
        yield


class OnMeta(SingleDeviceStrategy):
    def teardown(self):
        pass  # would fetch the weights


@pytest.fixture
def fetched(monkeypatch, epochs):
    """Runs are on a device that cannot be read; the losses they fetch are made up, and counted."""
    steps = []
    epochs.device = "meta"

    def on_meta(*given, **settings):
        strategy = OnMeta(torch.device("meta"))
        on_it = {"accelerator": Unreadable(), "strategy": strategy}
        return BudgetedTrainer(*given, **settings | on_it)

    def made_up(tensors, dtype):
        steps.append(sum(map(len, tensors)))
        return np.ones(steps[-1], dtype)

    monkeypatch.setattr("cbs_lightning.training.trainer.BudgetedTrainer", on_meta)
    # Asks the device for a number, once, before the first epoch.
    monkeypatch.setattr("lightning.pytorch.loops.fit_loop.has_len_all_ranks", lambda *_: True)
    monkeypatch.setattr(recorder, "_host", made_up)
    optimizer = import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cuda", "meta"])
    with fused_kernels():
        yield steps


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_on_a_device_that_cannot_be_read(tiny, fetched, epochs, optimizer):
    cfg = tiny(*REQUEST, *chosen(optimizer), "progress.every_seconds=1e-9")
    with epochs:
        assert run(cfg).status is Status.EXHAUSTED
    assert fetched == [STEPS, STEPS] * 2  # losses and correct, once an epoch
    assert epochs.seen["convolution_backward"] == 2 * STEPS
    assert not epochs.found.total()
    assert {*epochs.set_up} == first_steps_that_wait(optimizer)


def test_a_gpu_may_be_looked_at_more_often(tiny, fetched, epochs):
    cfg = tiny(*REQUEST, "stop.look_every=3")
    with epochs:
        assert run(cfg).status is Status.EXHAUSTED
    assert sum(fetched) == 4 * STEPS and len(fetched) > 4
    assert not epochs.found.total()


def test_a_run_that_diverges_ends_with_its_epoch(tiny, fetched, epochs, monkeypatch):
    values = {np.float32: np.nan, np.int32: 0}
    monkeypatch.setattr(recorder, "_host", lambda _, dtype: np.full(STEPS, values[dtype], dtype))
    with epochs:
        assert run(tiny(*REQUEST)).status is Status.DIVERGED
    assert epochs.seen["convolution_backward"] == STEPS


@pytest.mark.parametrize(
    "overrides", ["micro_batch_size=50", "data.replacement=true", "warmup_samples=2000"]
)
def test_other_ways_through_an_epoch(tiny, fetched, epochs, overrides):
    with epochs:
        run(tiny(*REQUEST, *overrides.split()))
    assert len(fetched) == 4 and not epochs.found.total()


@pytest.mark.parametrize(
    "wait",
    [
        lambda loss: loss.item(),
        lambda loss: bool(loss > 0),
        lambda loss: loss.cpu(),
        lambda loss: loss[None][loss[None] > 0],
        lambda loss: loss.tolist(),
        lambda loss: loss.detach().numpy(),
        lambda loss: torch.zeros(2).to(loss.device),
        lambda loss: torch.tensor([1.0, 2.0], device=loss.device),
    ],
)
def test_a_wait_would_be_found(tiny, fetched, epochs, monkeypatch, wait):
    backward = chunks.backward

    def waits(self, *batch):
        loss, correct = backward(self, *batch)
        try:
            wait(loss)
        except (RuntimeError, TypeError):
            epochs.found["cannot be had"] += 1
        return loss, correct

    monkeypatch.setattr(chunks, "backward", waits)
    with epochs:
        run(tiny(*REQUEST))
    assert epochs.found.total() >= 2 * STEPS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_on_a_gpu_that_is_not_there(optimizer):
    """Its tensors have no values; autograd alone needs a real one, so gradients are made up."""
    factory = optimizer_factory(compose(chosen(optimizer)).optimizer)
    with fused_kernels(), FakeTensorMode():
        with torch.device("cuda"):
            net = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10)
            )
            images = Images(torch.zeros(600, 8, 8, 1, dtype=torch.uint8), torch.zeros(600).long())
        chunks = iter(
            InMemoryLoader(
                images,
                16,
                seed=0,
                normalization=Normalization((0.5,), (0.5,)),
                augmentation=Augmentation(1, flip=True),
            )
        )
        next(chunks)  # and with it, at once, the order of the epoch
        steps = make_optimizer(factory, net)
        with Waits() as waits:
            waits.device = "cuda"
            for batch, labels in next(chunks):
                loss = nn.functional.cross_entropy(net(batch), labels)
                assert loss.device.type == "cuda"
                for weight in net.parameters():
                    weight.grad = torch.ones_like(weight)
                steps.step()
    assert not waits.found
    assert {*waits.set_up} == first_steps_that_wait(optimizer)
