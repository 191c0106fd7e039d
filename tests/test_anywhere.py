"""The threshold callback in anybody's Trainer: K beside a count by hand."""

from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils.data import DataLoader, IterableDataset

from cbs_lightning import StopAtThreshold
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from tests.strangers import SAMPLES, Logged, Manual, Odd, Plain, Scheduled, WithAccuracy, loader

LOSS, WINDOW = 0.35, 60


def trainer(stop, **settings):
    given = {"max_epochs": 20, "logger": False, "accelerator": "cpu", "log_every_n_steps": 7}
    return L.Trainer(
        callbacks=[stop], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **(given | settings),
    )  # fmt: skip


def steps_by_hand(noted, accumulate, per_epoch):
    """Losses and sizes of optimizer steps, from those of the calls."""
    steps = []
    for start in range(0, len(noted), per_epoch):
        epoch = noted[start : start + per_epoch]
        for first in range(0, len(epoch), accumulate):
            part = epoch[first : first + accumulate]
            size = sum(samples for _, samples in part)
            steps.append((sum(loss * samples for loss, samples in part) / size, size))
    return steps


def count_by_hand(steps, rule, steps_per_epoch):
    for end in range(1, len(steps) + 1):
        if rule == "epoch":
            if end % steps_per_epoch == 0:
                mean = np.mean([loss for loss, _ in steps[end - steps_per_epoch : end]])
                if mean <= LOSS:
                    return end
            continue
        total = size = 0.0
        for loss, samples in reversed(steps[:end]):
            total, size = total + loss * samples, size + samples
            if size >= WINDOW:
                break
        if size >= WINDOW and total / size <= LOSS:
            return end
    return None


MODULES = {
    "plain": Plain,
    "with accuracy": WithAccuracy,
    "manual": Manual,
    "by step": lambda: Scheduled("step"),
    "by epoch": lambda: Scheduled("epoch"),
}


@pytest.mark.parametrize("rule", ["epoch", "window"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", MODULES)
def test_k_is_what_a_count_by_hand_finds(name, rule, accumulate):
    if name == "manual" and accumulate > 1:
        pytest.skip("Lightning accumulates under automatic optimization alone")
    module, batch_size = MODULES[name](), 16
    stop = StopAtThreshold(LOSS, rule, WINDOW if rule == "window" else None)
    trainer(stop, accumulate_grad_batches=accumulate).fit(module, loader(batch_size))
    per_epoch = -(-SAMPLES // batch_size)
    steps = steps_by_hand(module.noted, accumulate, per_epoch)
    expected = count_by_hand(steps, rule, -(-per_epoch // accumulate))
    assert stop.status is Status.REACHED and stop.steps == expected
    assert stop.sfo == expected * batch_size * accumulate
    assert stop.samples == sum(size for _, size in steps[:expected])
    recorded = stop.recorder.trajectory
    np.testing.assert_allclose(recorded.loss, [loss for loss, _ in steps], rtol=1e-5)
    assert recorded.size.tolist() == [size for _, size in steps]
    assert (recorded.correct >= 0).all() == (name == "with accuracy")
    assert len(recorded) < 20 * per_epoch  # it stopped


@pytest.mark.parametrize("kind", ["dict", "iterable"])
def test_other_batches_and_data(kind):
    module, stop = Plain(), StopAtThreshold(LOSS, "window", WINDOW)
    trainer(stop, max_steps=200, max_epochs=-1).fit(module, loader(10, kind))
    assert stop.steps == count_by_hand(module.noted, "window", 20)
    assert stop.samples == stop.sfo == 10 * stop.steps


def test_a_threshold_that_is_not_met():
    stop = StopAtThreshold(1e-9)
    trainer(stop, max_epochs=2).fit(Plain(), loader(16))
    assert (stop.status, stop.steps, stop.sfo, stop.samples) == (Status.EXHAUSTED, None, None, None)
    assert len(stop.recorder.trajectory) == 26


def test_a_metric_may_be_the_loss():
    module, stop = Logged(), StopAtThreshold(LOSS, "window", WINDOW, monitor="own")
    trainer(stop).fit(module, loader(16))
    assert stop.steps == count_by_hand(module.noted, "window", 13)


def test_samples_may_be_counted_otherwise():
    stop = StopAtThreshold(LOSS, "window", WINDOW, count_samples=lambda batch: 2 * len(batch[0]))
    trainer(stop).fit(Plain(), loader(16))
    assert stop.recorder.trajectory.size[0] == 32


@pytest.mark.parametrize(
    ("settings", "module", "kind", "said"),
    [
        ({"rule": "epoch"}, Plain(), "iterable", "rule='epoch' needs a loader with a length"),
        ({"rule": "window"}, Plain(), "iterable", "window=None means the size of the data set"),
        ({}, Odd("several"), "tuple", r"the loss has shape \(16,\)"),
        ({}, Odd("none"), "tuple", "returned no loss"),
        ({}, Manual(steps_per_call=2), "tuple", "made 2 optimizer steps"),
        ({}, Manual(steps_per_call=0), "tuple", "made 0 optimizer steps"),
        ({"monitor": "mine"}, Plain(), "tuple", "monitor='mine': no such metric"),
    ],
)
def test_what_cannot_be_counted_is_refused_at_once(settings, module, kind, said):
    stop = StopAtThreshold(LOSS, **settings)
    with pytest.raises((MisconfigurationException, RuntimeError), match=said):
        trainer(stop, max_steps=20, max_epochs=-1).fit(module, loader(16, kind))
    assert len(stop.recorder.trajectory) <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"loss": 0.0}, "loss must be a positive number"),
        ({"loss": float("nan")}, "loss must be a positive number"),
        ({"loss": 1.0, "rule": "step"}, "rule must be one of epoch, window"),
        ({"loss": "a"}, "loss must be a positive number, not 'a'"),
        ({"loss": 1.0, "window": 0}, "window must be a whole number, at least 1"),
        ({"loss": 1.0, "window": "many"}, "window must be a whole number, at least 1, not 'many'"),
        ({"loss": 1.0, "batch_size": 2.5}, "batch_size must be a whole number, at least 1"),
        ({"loss": 1.0, "window": 5}, "window=5 needs rule='window' or rule='middle'"),
    ],
)
def test_arguments_are_checked(arguments, said):
    with pytest.raises(ValueError, match=said):
        StopAtThreshold(**arguments)


def test_what_is_found_is_logged(tmp_path):
    rows = []

    class Kept(DummyLogger):
        def log_metrics(self, metrics, step=None):
            rows.append((step, dict(metrics)))

    stop = StopAtThreshold(LOSS, "window", WINDOW)
    trained = trainer(stop, logger=Kept(), log_every_n_steps=1)
    trained.fit(Plain(), loader(16))
    found = [row for _, row in rows if "steps" in row]
    assert len(found) == 1 and found[0]["steps"] == stop.steps and found[0]["sfo"] == stop.sfo
    assert found[0]["samples"] == stop.samples
    assert [step for step, row in rows if set(row) == {"loss"}] == list(range(1, stop.steps + 1))
    assert trained.callback_metrics["steps"] == stop.steps
    logger = CSVLogger(tmp_path)
    trainer(StopAtThreshold(LOSS), logger=logger).fit(Plain(), loader(16))
    logger.save()
    assert "sfo" in (next(tmp_path.rglob("metrics.csv"))).read_text()


def test_a_run_resumes_from_a_checkpoint(tmp_path):
    def fit(stop, max_epochs, resume=None):
        trained = trainer(stop, max_epochs=max_epochs)
        trained.fit(Plain(), loader(16), ckpt_path=resume)
        return trained

    whole, first, second = (StopAtThreshold(0.12) for _ in range(3))
    fit(whole, 80)
    fit(first, 2).save_checkpoint(tmp_path / "half.ckpt")
    assert first.status is Status.EXHAUSTED
    fit(second, 80, tmp_path / "half.ckpt")
    assert (second.steps, second.samples) == (whole.steps, whole.samples)
    np.testing.assert_array_equal(second.recorder.trajectory.loss, whole.recorder.trajectory.loss)


def test_a_checkpoint_without_losses_is_refused(tmp_path):
    without = L.Trainer(max_epochs=1, logger=False, enable_progress_bar=False, accelerator="cpu",
                        enable_checkpointing=False, enable_model_summary=False)  # fmt: skip
    without.fit(Plain(), loader(16))
    without.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(MisconfigurationException, match="losses of 0 steps were recorded"):
        trainer(StopAtThreshold(LOSS)).fit(Plain(), loader(16), ckpt_path=tmp_path / "other.ckpt")


def test_a_directory_can_be_compared_with_others(tmp_path):
    study = tmp_path / "mine"
    for batch_size in (8, 16, 32, 64):
        for seed in (0, 1):
            directory = study / f"sgd-b{batch_size}-seed{seed}"
            stop = StopAtThreshold(LOSS, "window", WINDOW, directory, seed=seed)
            trainer(stop).fit(WithAccuracy(), loader(batch_size))
            run = read_run(directory)
            assert (run.result.steps, run.result.sfo) == (stop.steps, stop.sfo)
            assert (run.result.variant, run.result.study) == ("sgd", "mine")
            assert (run.result.batch_size, run.result.seed) == (batch_size, seed)
            assert (run.result.lr, run.result.data_size) == (0.5, SAMPLES)
            assert run.result.model == "WithAccuracy" and 0.5 < run.result.accuracy <= 1
    lines = write_study(study)
    assert any("use b =" in line for line in lines), lines
    assert (study / "summary.csv").exists() and (study / "figures" / "sfo.png").exists()


def test_a_trainer_with_two_devices_is_refused():
    stop = StopAtThreshold(LOSS)
    two = SimpleNamespace(world_size=2, global_step=0)
    with pytest.raises(MisconfigurationException, match="has 2 devices; steps are counted on one"):
        stop.recorder.on_train_start(two)


def test_an_endless_stream_is_looked_at_without_a_log():
    def batches():
        while True:
            yield from loader(16)

    class Endless(IterableDataset):
        def __iter__(self):
            return batches()

    stop = StopAtThreshold(LOSS, "window", WINDOW, batch_size=16)
    data = DataLoader(Endless(), batch_size=None)
    trainer(stop, max_steps=1000, max_epochs=-1, log_every_n_steps=0).fit(Plain(), data)
    assert stop.status is Status.REACHED and len(stop.recorder.trajectory) == 100


@pytest.mark.parametrize("change", ["width", "hyperparameters", "clipping"])
def test_a_directory_of_the_same_classes_with_other_settings_is_refused(tmp_path, change):
    class Sized(Plain):
        def __init__(self, width=8, note=0):
            super().__init__()
            self.save_hyperparameters("note")
            self.more = torch.nn.Linear(width, 1)

    def fit(module, **settings):
        stop = StopAtThreshold(LOSS, directory=tmp_path / "mine" / "run")
        trainer(stop, **settings).fit(module, loader(16))

    fit(Sized())
    fit(Sized())
    other = {"width": Sized(width=9), "hyperparameters": Sized(note=1), "clipping": Sized()}[change]
    with pytest.raises(MisconfigurationException, match="holds another run"):
        fit(other, gradient_clip_val=0.1 if change == "clipping" else None)


def test_a_directory_of_another_run_is_refused(tmp_path):
    directory = tmp_path / "mine" / "run"
    trainer(StopAtThreshold(LOSS, directory=directory)).fit(Plain(), loader(16))
    before = (directory / "result.json").read_bytes()
    with pytest.raises(MisconfigurationException, match=r"holds another run \(sgd, b = 16, seed"):
        trainer(StopAtThreshold(LOSS, directory=directory)).fit(Plain(), loader(32))
    assert (directory / "result.json").read_bytes() == before
    again = StopAtThreshold(LOSS, directory=directory)
    trainer(again).fit(Plain(), loader(16))
    assert read_run(directory).result.steps == again.steps


def test_a_run_that_fails_or_is_stopped_says_so(tmp_path):
    class Failing(Plain):
        def on_train_batch_end(self, *_):
            if self.global_step == 5:
                raise RuntimeError("the roof fell in")

    stop = StopAtThreshold(LOSS, directory=tmp_path / "mine" / "run")
    with pytest.raises(RuntimeError, match="roof"):
        trainer(stop).fit(Failing(), loader(16))
    assert stop.status is Status.FAILED
    assert read_run(tmp_path / "mine" / "run").result.status is Status.FAILED
