"""The callback that measures gradient noise in anybody's Trainer."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from cbs_lightning import GradientNoise
from tests.quadratic import Exact, Quadratic, points
from tests.strangers import Manual, Plain, loader
from tests.test_probes import Moody

QUIET = {
    "accelerator": "cpu", "max_epochs": -1, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


class Still(Quadratic):
    """Does not move, so that every step measures the same."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-12)


def fit(module, batches, noise, steps, **settings):
    settings = {"logger": False, **QUIET, **settings}
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(callbacks=noise, max_steps=steps, **settings)
    trainer.fit(module, batches)
    return trainer


def drawn(batch_size):
    """Independent batches of the points."""
    data = TensorDataset(points())
    sampler = RandomSampler(data, replacement=True, num_samples=100_000)
    return DataLoader(data, batch_size, sampler=sampler)


@pytest.mark.parametrize(("accumulated", "slices"), [(4, 2), (1, 2), (1, 4)])
def test_its_means_are_the_exact_values(accumulated, slices):
    module, noise = Still(), GradientNoise(every=1, window=1000, slices=slices)
    fit(module, drawn(16), [noise], 300, accumulate_grad_batches=accumulated)
    exact = Exact.at(module)
    assert noise.measured == 300
    assert noise.noise_trace == pytest.approx(exact.noise_trace(), rel=0.2)
    assert noise.gradient_norm2 == pytest.approx(exact.norm2(), rel=0.2)
    low, high = noise.b_simple_interval
    assert low < noise.b_simple < high < 3 * low
    assert low < exact.noise_trace() / exact.norm2() < high


@pytest.mark.parametrize(("accumulated", "slices"), [(4, 2), (1, 4)])
def test_slices_of_shuffled_data_are_no_independent_draws(accumulated, slices):
    """Near the minimum, where |G|² is less than tr Σ/n."""
    module = Still()
    with torch.no_grad():
        module.weight.copy_(points().mean(0) + 0.03)
    exact = Exact.at(module)
    assert exact.norm2() < exact.noise_trace() / len(points())
    noise = GradientNoise(every=1, window=2000, slices=slices)
    shuffled = DataLoader(TensorDataset(points()), 100 // accumulated, shuffle=True)
    fit(module, shuffled, [noise], 400, accumulate_grad_batches=accumulated)
    off = noise.gradient_norm2 - exact.norm2()
    assert abs(off) < 0.4 * exact.noise_trace() / len(points())
    assert noise.noise_trace == pytest.approx(exact.noise_trace(), rel=0.1)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_run_with_it_is_the_same_to_the_bit(accumulated, tmp_path):
    """Dropout, BatchNorm, a metric, what the module counts, and its own log."""
    ends = []
    for noise in ([], [GradientNoise(every=2)]):
        L.seed_everything(1, verbose=False)
        module = Moody()
        trainer = fit(
            module, loader(16, shuffle=True), noise, 40, accumulate_grad_batches=accumulated
        )
        ends.append((module.state_dict(), module.calls, float(module.mean)))
        logged = {key: float(value) for key, value in trainer.callback_metrics.items()}
        ends[-1] += (logged, torch.rand(1).item())
    for name, value in ends[0][0].items():
        assert torch.equal(value, ends[1][0][name]), name
    assert ends[0][1:] == ends[1][1:]


def test_it_is_logged_and_kept_in_checkpoints(tmp_path):
    noise, logger = GradientNoise(every=5), CSVLogger(tmp_path)
    trainer = fit(Still(), drawn(16), [noise], 20, logger=logger)
    assert noise.measured == 4
    logger.save()
    text = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    assert "noise_trace" in text.splitlines()[0] and len(text.splitlines()) == 5
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = GradientNoise(every=5)
    L.Trainer(callbacks=[again], max_steps=20, logger=False, **QUIET).fit(
        Still(), drawn(16), ckpt_path=tmp_path / "last.ckpt", weights_only=True
    )
    assert again.noise_trace == noise.noise_trace and again.measured == 4


def test_what_it_cannot_measure_is_said():
    with pytest.raises(MisconfigurationException, match="needs automatic optimization"):
        fit(Manual(), loader(16), [GradientNoise()], 2)
    for mistake in ({"every": 0}, {"slices": 1}, {"window": 0}, {"every": 2.5}, {"every": "x"}):
        with pytest.raises(ValueError, match="must be a whole number >= "):
            GradientNoise(**mistake)
    assert GradientNoise().b_simple is None and GradientNoise().b_simple_interval is None


class Choosy(Still):
    """Returns no loss for some batches, which Lightning allows."""

    def training_step(self, batch, number):
        (inputs,) = batch
        return None if inputs[:, 0].mean() > 0.3 else super().training_step(batch, number)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_step_without_a_loss_is_left_out_with_one_warning(accumulated, recwarn):
    noise = GradientNoise(every=1)
    fit(Choosy(), drawn(16), [noise], 30, accumulate_grad_batches=accumulated)
    assert noise.measured >= 4 and noise.noise_trace > 0
    said = [str(each.message) for each in recwarn if "GradientNoise" in str(each.message)]
    assert len(said) == (accumulated == 1) and all("returned no loss" in each for each in said)


def test_reentrant_checkpoints_are_measured_and_gradients_left_as_they_were():
    class Keeping(Plain):
        def __init__(self):
            super().__init__()
            self.hidden = torch.nn.Linear(8, 8)

        def training_step(self, batch, number):
            inputs, labels = batch
            hidden = checkpoint(self.hidden, inputs.requires_grad_(), use_reentrant=True)
            return super().training_step((hidden, labels), number)

    ends = []
    for noise in ([], [GradientNoise(every=1)]):
        torch.manual_seed(0)
        module = Keeping()
        fit(module, loader(16), noise, 6)
        ends.append((module.state_dict(), [each.grad for each in module.parameters()]))
    assert noise[0].measured == 6
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def test_several_devices_are_refused():
    of_two = SimpleNamespace(world_size=2)
    with pytest.raises(MisconfigurationException, match="needs one device, not 2"):
        GradientNoise().on_train_start(of_two, Still())
