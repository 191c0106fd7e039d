"""Runs with every optimizer: they train, and go on after a stop or a kill as if there was none."""

import signal
from pathlib import Path

import pytest
import torch

from cbs_lightning.data.datamodule import Split
from cbs_lightning.data.digits import Digits
from cbs_lightning.data.loader import Images, InMemoryLoader
from cbs_lightning.models.batch_statistics import estimate_statistics, restore_statistics
from cbs_lightning.optim import Muon
from cbs_lightning.results import store
from cbs_lightning.training.build import bare_model
from cbs_lightning.training.run import find_data, run
from tests.forks import ran
from tests.optimizers import OPTIMIZERS, chosen
from tests.test_restart import RUN, assert_same_runs

FIRST_RELEASE = {"sgd", "momentum", "momentum_ema", "adam", "amsgrad", "adam_monotone", "adamw"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_resnet_20_on_digits(tiny, name):
    faster = ["optimizer.lr=0.1"] if name in ("sgd", "momentum_ema") else []
    run_of = ["model=resnet20", "batch_size=32", "stop.max_steps=24"]
    cfg = tiny(f"optimizer={name}", *run_of, *faster)
    result = run(cfg)
    directory = next(iter((Path(cfg.output_dir) / cfg.study).iterdir()))
    losses = store.read_run(directory).trajectory.loss
    assert len(losses) == 24 and losses[-6:].mean() < 0.97 * losses[:4].mean()
    assert result.optimizer == name and "_target_" not in result.hyperparameters


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - FIRST_RELEASE))
def test_a_run_goes_on_from_what_was_kept(cli, tmp_path, name):
    command = [*RUN, "checkpoint.every_seconds=60", "batch_size=128", *chosen(name)]
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*command, "stop.max_steps=19", f"output_dir={in_one}").code == 0
    assert cli(*command, "stop.max_steps=7", f"output_dir={in_two}").code == 0
    outcome = cli(*command, "stop.max_steps=19", f"output_dir={in_two}")
    assert outcome.code == 0, outcome.err
    assert "resuming from" in outcome.out
    assert_same_runs(in_one, in_two)


@pytest.mark.parametrize("name", ["muon", "schedule_free", "soap", "nadam", "adafactor"])
def test_a_killed_run_ends_as_if_it_never_was(forks, tmp_path, name):
    arguments = [*RUN, "batch_size=128", "stop.max_epochs=3", "warmup_samples=3000", *chosen(name)]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    points = ran(forks, arguments, undisturbed).points
    saved = [number for number, point in enumerate(points, 1) if "os.remove .last.ckpt" in point]
    ended = ran(forks, arguments, disturbed, kill_at=saved[len(saved) // 2])
    assert ended.code == -signal.SIGKILL
    ended = ran(forks, arguments, disturbed)
    assert ended.code == 0, ended.err
    assert_same_runs(undisturbed, disturbed)


def test_two_groups_warm_up_each_to_its_own_rate(tiny, monkeypatch):
    seen, step = [], Muon.step

    def watched(self, *arguments):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *arguments)

    monkeypatch.setattr(Muon, "step", watched)
    run(tiny(*chosen("muon"), "batch_size=100", "warmup_samples=400", "stop.max_steps=6"))
    shares = [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert seen == [pytest.approx([0.02 * share, 0.001 * share]) for share in shares]


def test_the_result_has_the_settings_of_both_groups(tiny):
    cfg = tiny(*chosen("muon"), "optimizer.groups.rest.lr=0.005", "stop.max_steps=2")
    found = run(cfg)
    assert cfg.names.variant == "muon matrices.hidden=false rest.lr=0.005"
    assert found.lr == 0.02
    assert found.hyperparameters["groups.rest.lr"] == 0.005
    assert found.hyperparameters["groups.matrices.algorithm"] == "muon"


class DigitsToTest(Digits):
    """Some of the images are a test set as well."""

    @classmethod
    def load(cls, data_dir):
        train = super().load(data_dir).train
        return Split(train, Images(train.pixels[:300], train.labels[:300], train.scale))


@pytest.mark.parametrize("loop", [[], ["trainer.gradient_clip_val=1e9"]], ids=["fast", "general"])
def test_the_test_set_sees_the_average_with_statistics_of_its_own(tiny, loop):
    cfg = tiny(
        "optimizer=schedule_free", "model=restless", "batch_size=64", "stop.max_epochs=3",
        "stop.loss=1e-9", "checkpoint.keep=true", f"data._target_={__name__}.DigitsToTest",
        *loop,
    )  # fmt: skip
    tested = run(cfg).test_accuracy_at_end
    (directory,) = (Path(cfg.output_dir) / cfg.study).iterdir()
    saved = torch.load(directory / store.CHECKPOINT, weights_only=True)
    source = find_data(cfg)
    source.setup()
    model, split = bare_model(cfg, source), source.images.split
    model.load_state_dict(saved["state_dict"])
    optimizer = model.configure_optimizers()
    optimizer.load_state_dict(saved["optimizer_states"][0])
    assert all(group["training"] for group in optimizer.param_groups)  # what is saved trains on
    optimizer.eval()
    batches = [images for chunk in InMemoryLoader(split.train, 64, seed=0) for images, _ in chunk]
    estimate_statistics(model.net, batches[:50])
    model.eval()
    with torch.no_grad():
        right = [
            (model(images).argmax(1) == labels).sum()
            for chunk in InMemoryLoader(split.test, 100)
            for images, labels in chunk
        ]
    assert tested == pytest.approx(sum(right).item() / 300) and tested > 0.5


def test_statistics_are_estimated_and_restored():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.Dropout(0.5)).eval()
    batches = [torch.randn(8, 2, 3, 3) * 2 + 5 for _ in range(6)]
    before = {key: value.clone() for key, value in net.state_dict().items()}
    kept = estimate_statistics(net, batches)
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(net[0].running_mean, means)
    assert not net.training and net[0].momentum == 0.1
    restore_statistics(kept)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
