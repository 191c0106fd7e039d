"""What goes wrong in a probe costs that probe, and never the run."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cbs_lightning.callbacks.probes.attempt import smaller_slices
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.models.recompute import recompute_blocks
from cbs_lightning.results.result import Status
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.quadratic import SPECTRUM, Quadratic, objective
from tests.strangers import Plain
from tests.test_any_module import STRANGE, model
from tests.test_probes import PROBES, RESTLESS, record_of
from tests.test_restart import assert_same_runs


@pytest.mark.parametrize(
    "error", [ValueError("no\nluck"), torch.AcceleratorError("device error"), KeyError("loss")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_leaves_a_probe_out_with_a_line_and_the_run_goes_on(
    tmp_path, monkeypatch, capsys, error
):
    gradient, calls = Objective.gradient, []

    def fails_at_first(self, number):
        calls.append(number)
        if len(calls) == 2:
            raise error
        return gradient(self, number)

    without = compose([*RESTLESS, f"output_dir={tmp_path / 'without'}"])
    run(without)
    monkeypatch.setattr(Objective, "gradient", fails_at_first)
    cfg = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path / 'probed'}"])
    assert run(cfg).status is Status.REACHED
    assert_same_runs(tmp_path / "without", tmp_path / "probed")
    record = record_of(run_directory(cfg))
    assert len(record.probes) == 2 and "2 of 3 probes were made" in record.shortfall
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "no probe at step" in each]
    assert type(error).__name__ in line and line.endswith("the run goes on")


def test_an_interrupt_in_a_probe_is_not_taken_for_its_error(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Objective, "gradient", interrupted)
    with pytest.raises(Interrupted):
        run(compose([*RESTLESS, *PROBES, f"output_dir={tmp_path}"]))


class Blocks(Quadratic):
    """Whose loss depends on a block with BatchNorm."""

    def __init__(self, *, recomputed):
        super().__init__()
        torch.manual_seed(0)
        wide = len(SPECTRUM)
        block = nn.Sequential(nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.Tanh())
        self.net = nn.Sequential(nn.Sequential(block)).double()
        self.net[0][0] = Block(block)
        if recomputed:
            assert recompute_blocks(self.net) == 1

    def training_step(self, batch, _):
        (points,) = batch
        return super().training_step((self.net(points) + self.weight,), 0)


class Block(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, points):
        return self.layers(points)


def test_blocks_that_are_recomputed_have_second_derivatives_too():
    found = []
    for recomputed in (False, True):
        probe = objective(Blocks(recomputed=recomputed), 0, 8)
        vectors = [torch.linspace(-1, last, 60, dtype=torch.float64) for last in (1, 2)]
        found.append(probe.curvatures(0, vectors, 8))
    assert found[0] == pytest.approx(found[1]) and 0 not in found[0]


@pytest.mark.parametrize("first", [True, False])
def test_gradients_through_a_reentrant_checkpoint_are_those_without(first):
    """Where it comes first, torch raises nothing and takes its weights for unused."""

    class Net(Quadratic):
        def __init__(self, *, reentrant):
            super().__init__()
            torch.manual_seed(0)
            self.reentrant = reentrant
            self.before, self.after = (
                nn.Linear(len(SPECTRUM), len(SPECTRUM)).double() for _ in range(2)
            )

        def training_step(self, batch, _):
            (points,) = batch
            points = points.detach().requires_grad_() if first else self.before(points)
            hidden = checkpoint(self.after, points, use_reentrant=self.reentrant)
            return super().training_step((hidden,), 0)

    probes = [objective(Net(reentrant=each), 0, 8) for each in (False, True)]
    probes[1].module.weight.grad = torch.ones(len(SPECTRUM)).double()
    (loss, row), (same_loss, same_row) = (each.gradient(0) for each in probes)
    assert loss == same_loss and torch.equal(row, same_row) and row.count_nonzero() > 40
    assert probes[1].module.weight.grad.sum() == len(SPECTRUM)
    with pytest.raises(NotImplementedError, match="reentrant"):
        probes[1].curvatures(0, [row], 8)


class Reentrant(Plain):
    """Recomputes in the way that torch's documentation warns of."""

    def __init__(self, lr=0.5):
        super().__init__(lr)
        self.hidden = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))

    def training_step(self, batch, number):
        inputs, labels = batch
        hidden = checkpoint(self.hidden, inputs.requires_grad_(), use_reentrant=True)
        return super().training_step((hidden, labels), number)


@pytest.mark.parametrize("error", [None, "ValueError: Expected more than 1 value"])
def test_a_module_with_reentrant_checkpoints_is_probed(tmp_path, capsys, error):
    """And one sample is too few for its BatchNorm: those probes are left out."""
    same = [*STRANGE, *model("Plain"), f"model._target_={__name__}.Reentrant", "stop.max_steps=60",
            "stop.rule=window", "stop.window=64", "stop.loss=0.1"]  # fmt: skip
    more = ["noise.samples=4", *(["noise.batch_size=1"] if error else [])]
    without = compose([*same, f"output_dir={tmp_path / 'without'}"])
    cfg = compose([*same, "noise.probes=3", *more, f"output_dir={tmp_path / 'probed'}"])
    run(without)
    run(cfg)
    assert_same_runs(tmp_path / "without", tmp_path / "probed")
    record = record_of(run_directory(cfg))
    assert (len(record.probes) > 0) is (error is None)
    if error:
        assert error in capsys.readouterr().out
    else:
        assert {(each.batches, each.batch_size) for each in record.probes} == {(2, 2)}


def test_slices_where_memory_is_short_have_at_least_two_samples():
    assert list(smaller_slices(None, 64)) == [32, 16, 8]
    assert list(smaller_slices(16, 64)) == [8, 4, 2]
    assert list(smaller_slices(None, 5)) == [3]  # 2 would leave one alone
    assert list(smaller_slices(None, 2)) == list(smaller_slices(None, 1)) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("no primitive today"), False),
    ],
)
def test_what_means_a_lack_of_memory(error, expected):
    assert is_out_of_memory(error) is expected
