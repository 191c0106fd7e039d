from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from cbs_lightning.config import checks
from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import Classifier
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.test_run import interrupt_after

NORMED = ["model=restless", "+model.dropout=0.0", "stop.loss=1e-9", "stop.max_epochs=2"]


def trajectory(cfg):
    return read_run(run_directory(cfg)).trajectory


def graphs_of(cfg):
    """Do a run; how many graphs did it compile?"""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    run(cfg)
    return counters["stats"]["unique_graphs"] - before


def weights(cfg):
    path = run_directory(cfg) / store.CHECKPOINT
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A run of two epochs of seven batches of 256 and a short one."""
    out = tmp_path_factory.mktemp("compiled")
    cfg = compose([*TINY, *NORMED, f"output_dir={out}", "compile=default", "checkpoint.keep=true"])
    assert graphs_of(cfg) == 2  # one for each size of a batch
    return cfg


def test_a_compiled_net_trains_as_the_plain_one_does(tiny, compiled):
    plain = tiny(*NORMED, "checkpoint.keep=true")
    assert graphs_of(plain) == 0
    one, other = trajectory(plain), trajectory(compiled)
    assert (other.size.reshape(2, 8) == [256] * 7 + [5]).all()
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-4)
    assert abs(one.correct - other.correct).max() <= 1
    shapes, other_shapes = (
        {name: weight.shape for name, weight in weights(cfg).items()} for cfg in (plain, compiled)
    )
    assert shapes == other_shapes


def test_a_compiled_run_goes_on_as_if_nothing_had_happened(tiny, compiled, monkeypatch):
    cfg = tiny(*NORMED, "compile=default", "checkpoint.keep=true")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 12)
        with pytest.raises(Interrupted):
            run(cfg)
    assert len(trajectory(cfg)) == 12
    assert run(cfg).status is Status.EXHAUSTED
    assert np.array_equal(trajectory(cfg).loss, trajectory(compiled).loss)
    for name, weight in weights(compiled).items():
        assert torch.equal(weights(cfg)[name], weight), name


def test_what_was_compiled_before_has_no_effect(tiny, compiled):
    other = tiny(*NORMED, "compile=default", "batch_size=5", "stop.max_steps=2")
    assert graphs_of(other) == 1
    cfg = tiny(*NORMED, "compile=default")
    assert graphs_of(cfg) == 2
    assert np.array_equal(trajectory(cfg).loss, trajectory(compiled).loss)


def test_compiling_is_not_counted_as_training(compiled):
    result = read_run(run_directory(compiled)).result
    assert 0 < result.seconds < 2  # compiling takes longer, if only for reading it from a cache


@pytest.fixture
def traced_only():
    """What is traced for compilation is run as it is: that takes no time."""
    with torch.compiler.set_stance("default", force_backend="eager"):
        yield


def test_more_batch_sizes_than_torch_compiles_in_one_process(tiny, traced_only):
    for batch_size in range(100, 109):
        cfg = tiny("compile=default", f"batch_size={batch_size}", "stop.max_steps=1")
        assert graphs_of(cfg) == 1


def test_slices_are_compiled(tiny, traced_only):
    cfg = tiny("compile=default", "micro_batch_size=100", "stop.max_epochs=1")
    assert graphs_of(cfg) == 3  # of 100, of 56, and the batch of 5
    plain = tiny("micro_batch_size=100", "stop.max_epochs=1")
    run(plain)
    assert np.array_equal(trajectory(cfg).loss, trajectory(plain).loss)


def test_the_test_pass_is_not_compiled(tiny, traced_only, monkeypatch):
    from cbs_lightning.data import Digits
    from cbs_lightning.data.datamodule import Split

    load = Digits.load
    monkeypatch.setattr(
        Digits, "load", classmethod(lambda cls, path: Split(load(path).train, load(path).train))
    )
    monkeypatch.setattr("cbs_lightning.data.datamodule._loaded", lambda data, path: data.load(path))
    cfg = tiny("compile=default", "stop.max_epochs=1")
    assert graphs_of(cfg) == 2
    assert read_run(run_directory(cfg)).result.test_accuracy_at_end > 0


class Overwritten(torch.autograd.Function):
    """A linear layer that puts its results where it put the last ones, as a CUDA graph does."""

    memory: ClassVar[dict] = {}

    @classmethod
    def put(cls, name, values):
        kept = cls.memory.setdefault((name, values.shape), torch.empty_like(values))
        kept.copy_(values)
        # Another tensor of the same memory: a gradient that nobody else holds is not copied.
        return torch.empty(0).set_(kept.untyped_storage(), 0, kept.shape, kept.stride())

    @staticmethod
    def forward(ctx, images, weight):
        ctx.save_for_backward(images)
        return Overwritten.put("logits", images @ weight.T)

    @staticmethod
    def backward(ctx, gradient):
        (images,) = ctx.saved_tensors
        return None, Overwritten.put("gradient", gradient.T @ images)


class Linear(nn.Module):
    def __init__(self, features, classes, overwritten):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, features * classes).view(classes, -1))
        self.overwritten = overwritten

    def forward(self, images):
        images = images.flatten(1)
        if self.overwritten:
            return Overwritten.apply(images, self.weight)
        return images @ self.weight.T


class Graphed(Classifier):
    def __init__(self, overwritten=True, **classifier):
        self.overwritten = overwritten
        super().__init__(**classifier)

    def build_net(self, in_channels, num_classes):
        return Linear(64 * in_channels, num_classes, self.overwritten)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_steps_survive_that_a_cuda_graph_overwrites_its_outputs(
    tiny, tmp_path, monkeypatch, optimizer
):
    monkeypatch.setattr(checks, "obstacle", lambda *_: None)
    marked = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(1))
    request = [
        "model._target_=tests.test_compilation.Graphed", "stop.max_epochs=2", "stop.loss=1e-9",
        f"optimizer={optimizer}",
    ]  # fmt: skip
    plain = tiny(*request, "+model.overwritten=false", f"output_dir={tmp_path / 'plain'}")
    run(plain)
    assert not marked
    graphed = tiny(*request, "compile=reduce-overhead")
    with torch.compiler.set_stance("force_eager"):
        run(graphed)
    assert len(marked) == 16
    assert np.array_equal(trajectory(graphed).loss, trajectory(plain).loss)
    assert np.array_equal(trajectory(graphed).correct, trajectory(plain).correct)


def test_without_a_cpp_compiler_there_is_one_line():
    from torch._inductor import config

    missing = config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with (
        missing,
        pytest.raises(ConfigError, match=r"^compile=default: needs a C\+\+ compiler.*null$"),
    ):
        check(compose(["compile=default", "trainer.accelerator=cpu"]))


def test_a_compiler_that_fails_is_told_of_in_one_line(tiny, monkeypatch):
    from torch._inductor.exc import InductorError

    def fails(*_, **__):
        raise InductorError(IndexError("list index out of range"), None)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    with pytest.raises(ConfigError, match=r"^compile=default: the net cannot be compiled.*null$"):
        run(tiny("compile=default", "batch_size=77", "stop.max_steps=1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    ["model=restless", "model=resnet20", "model=restless micro_batch_size=100"],
)
def test_compiled_nets_of_all_kinds_go_on(tiny, tmp_path, monkeypatch, overrides):
    """With random numbers of their own, which are not those of the plain net; and in slices."""
    request = [*overrides.split(), "compile=default", "stop.loss=1e-9", "stop.max_epochs=2"]
    undisturbed = tiny(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = tiny(*request)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        with pytest.raises(Interrupted):
            run(cfg)
    run(cfg)
    assert np.array_equal(trajectory(cfg).loss, trajectory(undisturbed).loss)
    if "restless" not in overrides:
        plain = tiny(*request, "compile=null")
        run(plain)
        # Later losses differ by per cents, as they do with another number of threads.
        first = [trajectory(found).loss[:3] for found in (plain, cfg)]
        np.testing.assert_allclose(*first, rtol=1e-3)
