"""The threshold callback in anybody's Trainer: K beside a count by hand."""

import csv
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from cbs_lightning import StopAtThreshold
from cbs_lightning.analysis.curves import curves
from cbs_lightning.analysis.study import read
from cbs_lightning.callbacks import run_files
from cbs_lightning.reporting.report.page import page
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.results.result import Result, Status, seeds_in_words
from cbs_lightning.results.store import read_run, read_study, write_result
from tests.strangers import (
    SAMPLES,
    Logged,
    Manual,
    Odd,
    Plain,
    Scheduled,
    WithAccuracy,
    data,
    loader,
)

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
    stop = StopAtThreshold(
        LOSS, "window", WINDOW, batch_size=32, count_samples=lambda batch: 2 * len(batch[0])
    )
    trainer(stop).fit(Plain(), loader(16))
    assert stop.recorder.trajectory.size[0] == 32


class Closing(Plain):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Without(Plain):
    def configure_optimizers(self):
        return None


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
        ({}, Closing(), "tuple", "LBFGS needs several losses per step"),
        ({}, Without(), "tuple", "Without.configure_optimizers returns no optimizer"),
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
        ({"loss": None}, "loss must be a positive number, not None"),
        ({"loss": "0.1"}, "loss must be a positive number, not '0.1'"),
        ({"loss": True}, "loss must be a positive number, not True"),
        ({"rule": None}, "rule must be one of epoch, window, middle, not None"),
        ({"window": 0}, "window must be a whole number >= 1, not 0"),
        ({"rule": "window", "window": "100"}, "window must be a whole number >= 1, not '100'"),
        ({"rule": "window", "window": 1e2}, "window must be a whole number >= 1, not 100.0"),
        ({"window": 100}, "window=100 is for rule='window' and rule='middle', not 'epoch'"),
        ({"batch_size": 8.5}, "batch_size must be a whole number >= 1, not 8.5"),
        ({"seed": "a"}, "seed must be a whole number >= 0, not 'a'"),
        ({"count_samples": 5}, "count_samples must be a function, not 5"),
        ({"monitor": 5}, "monitor must be a metric's name, not 5"),
        ({"directory": 3}, "directory must be a path, not 3"),
        ({"variant": "mine"}, "variant='mine' must be a name, and needs directory="),
    ],
)
def test_arguments_are_checked(arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        StopAtThreshold(**({"loss": 1.0} | arguments))
    assert "\n" not in str(error.value)


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

    whole, first, second = (StopAtThreshold(0.1) for _ in range(3))
    fit(whole, 80)
    fit(first, 2).save_checkpoint(tmp_path / "half.ckpt")
    assert first.status is Status.EXHAUSTED
    fit(second, 80, tmp_path / "half.ckpt")
    assert (second.steps, second.samples) == (whole.steps, whole.samples)
    np.testing.assert_array_equal(second.recorder.trajectory.loss, whole.recorder.trajectory.loss)


@pytest.mark.parametrize("ends", ["interrupted", "exhausted"])
def test_the_same_callback_goes_on(tmp_path, ends):
    """After Ctrl-C, also inside a step of several batches, or with a larger budget."""

    class Interrupting(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            if (trainer.current_epoch, number) == (1, 12):
                trainer.save_checkpoint(tmp_path / "last.ckpt")
            if (trainer.current_epoch, number) == (2, 0):
                raise KeyboardInterrupt

    whole, stop = StopAtThreshold(0.3), StopAtThreshold(0.3)
    settings = {"max_epochs": 200, "accumulate_grad_batches": 2}
    trainer(whole, **settings).fit(Plain(), loader(16))
    module, resume = Plain(), None
    if ends == "interrupted":
        torn = trainer(stop, **settings)
        torn.callbacks.append(Interrupting())
        with pytest.raises(SystemExit):
            torn.fit(module, loader(16))
        assert (stop.status, resume) == (Status.INTERRUPTED, None)
        resume = tmp_path / "last.ckpt"
        again = trainer(stop, **settings)
    else:
        again = trainer(stop, **(settings | {"max_epochs": 2}))
        again.fit(module, loader(16))
        assert stop.status is Status.EXHAUSTED
        again.fit_loop.max_epochs = 200
    again.fit(module, loader(16), ckpt_path=resume)
    assert (stop.status, stop.steps, stop.samples) == (Status.REACHED, whole.steps, whole.samples)
    np.testing.assert_array_equal(stop.recorder.trajectory.loss, whole.recorder.trajectory.loss)


def test_a_run_that_another_callback_ends_is_exhausted(tmp_path):
    stop = StopAtThreshold(1e-9, directory=tmp_path / "mine" / "run")
    trained = trainer(stop)
    trained.callbacks.append(EarlyStopping("loss", min_delta=9, patience=1))

    class Saying(Plain):
        def training_step(self, batch, _):
            loss = self._loss(batch)
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

    trained.fit(Saying(), loader(16))
    stored = read_run(tmp_path / "mine" / "run").result
    assert stop.status is stored.status is Status.EXHAUSTED
    assert stored.steps_run == trained.global_step == 26


def test_several_thresholds_in_one_trainer_and_one_checkpoint(tmp_path):
    def stops():
        own = {"rule": "window", "window": WINDOW, "monitor": "own"}
        return [StopAtThreshold(LOSS), StopAtThreshold(0.3), StopAtThreshold(0.7, **own)]

    alone = [trained_with([stop]).steps for stop in stops()[:2]]
    together = stops()
    trained_with(together, until=2, save=tmp_path / "half.ckpt")
    resumed = stops()
    last = trained_with(resumed, resume=tmp_path / "half.ckpt")
    assert [stop.status for stop in resumed] == [Status.REACHED] * 3
    assert [stop.steps for stop in resumed[:2]] == alone and alone[0] < alone[1] == last.steps
    # Which is half of what is trained on.
    recorded = [stop.recorder.trajectory.loss for stop in resumed[1:]]
    np.testing.assert_allclose(recorded[0], 2 * recorded[1], rtol=1e-6)
    stricter = StopAtThreshold(0.27)
    trained_with([stricter], resume=tmp_path / "half.ckpt")
    assert stricter.steps > last.steps


def trained_with(stops, until=60, save=None, resume=None):
    trained = trainer(stops[0], max_epochs=until)
    trained.callbacks.extend(stops[1:])
    trained.fit(Logged(), loader(16), ckpt_path=resume)
    if save is not None:
        trained.save_checkpoint(save)
    return stops[1] if len(stops) > 1 else stops[0]


def test_a_batch_larger_than_the_data_is_all_of_it(tmp_path):
    stop = StopAtThreshold(LOSS, directory=tmp_path / "mine" / "run")
    trainer(stop, max_epochs=60).fit(Plain(), loader(1000))
    result = read_run(tmp_path / "mine" / "run").result
    assert (result.batch_size, result.effective_batch_size) == (1000, SAMPLES)
    assert stop.sfo == result.sfo == SAMPLES * stop.steps


def test_the_window_is_as_large_as_what_a_sampler_draws(tmp_path):
    stop = StopAtThreshold(LOSS, "window", directory=tmp_path / "mine" / "run")
    batches = loader(16, sampler=SubsetRandomSampler(range(100)))
    trainer(stop, max_epochs=60).fit(Plain(), batches)
    result = read_run(tmp_path / "mine" / "run").result
    assert (stop.rule.window, result.window, result.data_size) == (100, 100, 100)
    assert stop.status is Status.REACHED


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


def test_a_run_without_a_seed_is_recorded_as_unseeded(tmp_path, monkeypatch):
    """It was once labelled with seed 0, which nobody had set."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    study, found = tmp_path / "mine", {}

    def fit(name: str, seed: int | None = None) -> Result:
        stop = StopAtThreshold(LOSS, "window", WINDOW, study / name, seed=seed)
        trainer(stop).fit(Plain(), loader(16))
        return read_run(study / name).result

    found["unseeded"] = fit("first")
    fit("second")
    assert (found["unseeded"].seed, fit("third", seed=3).seed) == (None, 3)
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")  # as `seed_everything` does
    assert fit("fourth").seed == 5
    again = fit("fifth", seed=0)  # as such a run was recorded before: its directory stays its own
    assert again.config_hash == found["unseeded"].config_hash
    runs, broken = read_study(study)
    assert [run.result.seed for run in runs] == [0, 3, 5, None, None] and not broken
    (curve,) = curves(run.result for run in runs)
    assert len(curve.measurements().reached) == 5 and curve.seeds == (0, 3, 5, None)
    assert seeds_in_words(curve.seeds) == "3 seeds and unseeded"
    shown, _ = read(study)
    assert '"seed":null' in page(shown)
    with write_summary(study, shown.rows).open() as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"0", "3", "5", ""}


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


class Sized(Plain):
    def __init__(self, width=8, note=0, gamma=None):
        super().__init__()
        self.save_hyperparameters("note")
        self.more = torch.nn.Linear(width, 1)
        self.gamma = gamma

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if self.gamma is None:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, self.gamma)]


CLIPPED = {"gradient_clip_val": 9.0}
OTHER_RUNS = {
    "parameters": ({"width": 9}, {}),
    "hyperparameters": ({"note": 1}, {}),
    "schedulers": ({"gamma": 0.9}, {}),
    "gradient_clip_val": ({}, CLIPPED | {"gradient_clip_val": 1.0}),
    "gradient_clip_algorithm": ({}, CLIPPED | {"gradient_clip_algorithm": "value"}),
    "precision": ({}, {"precision": "64-true"}),
    "accumulate_grad_batches": ({}, {"accumulate_grad_batches": 2}),
    "data_size": ({}, {}),
}


@pytest.fixture(scope="module")
def sized_run(tmp_path_factory):
    """A run directory of one's own, and what trains in it: short, and with the same arguments."""
    directory = tmp_path_factory.mktemp("mine") / "run"

    def fit(module, batches, directory=directory, **settings):
        stop = StopAtThreshold(1e-9, directory=directory, seed=0)
        trainer(stop, max_epochs=1, **(CLIPPED | settings)).fit(module, batches)

    fit(Sized(gamma=0.5), loader(16))
    return directory, fit


@pytest.mark.parametrize("differing", OTHER_RUNS)
def test_a_directory_of_the_same_classes_with_other_settings_is_refused(sized_run, differing):
    directory, fit = sized_run
    before = (directory / "result.json").read_bytes()
    fit(Sized(gamma=0.5), loader(16))  # the same again
    change, settings = OTHER_RUNS[differing]
    module = Sized(**({"gamma": 0.5} | change))
    batches = loader(8 if differing == "accumulate_grad_batches" else 16)
    if differing == "data_size":
        batches = DataLoader(TensorDataset(*(each[:100] for each in data().tensors)), 16)
    said = rf"holds another run \(sgd, b = 16, seed 0\), which differs in {differing}; take"
    with pytest.raises(MisconfigurationException, match=said):
        fit(module, batches, **settings)
    after = json.loads((directory / "result.json").read_bytes())
    assert after["config_hash"] == json.loads(before)["config_hash"]


def test_a_directory_from_before_more_told_runs_apart_is_still_that_run(sized_run, tmp_path):
    _, fit = sized_run
    fit(Sized(), loader(16), directory=tmp_path / "old")
    made = read_run(tmp_path / "old").result
    kept = {k: v for k, v in made.configuration.items() if k not in run_files.LATER_KEYS}
    old = replace(made, configuration=kept, config_hash=run_files._hash(kept))
    write_result(tmp_path / "old", old)
    fit(Sized(), loader(16), directory=tmp_path / "old")
    assert read_run(tmp_path / "old").result.config_hash == made.config_hash


def test_a_directory_of_another_run_is_refused(tmp_path):
    directory = tmp_path / "mine" / "run"
    trainer(StopAtThreshold(LOSS, directory=directory)).fit(Plain(), loader(16))
    before = (directory / "result.json").read_bytes()
    with pytest.raises(MisconfigurationException, match=r"holds another run \(sgd, b = 16, "):
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
