"""Anybody's LightningModule and LightningDataModule on the command line."""

import signal

import lightning as L
import numpy as np
import pytest
import torch

from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.data import Digits
from cbs_lightning.errors import UserError
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import CHECKPOINT, read_run
from cbs_lightning.training.run import run
from tests import strangers, tiny
from tests.conftest import STRANGE, TINY
from tests.forks import ran
from tests.optimizers import chosen
from tests.strange_data import Half
from tests.strange_runs import data, interrupted_after, model
from tests.strangers import SAMPLES
from tests.test_anywhere import count_by_hand
from tests.test_restart import assert_same_runs
from tests.test_run import forbid_training

WINDOW = 60  # as in the count by hand
BY_WINDOW = ["stop.rule=window", f"stop.window={WINDOW}"]


MODULES = {
    "plain": model("Plain"),
    "with accuracy": model("WithAccuracy"),
    "manual": model("Manual"),
    "by step": model("Scheduled", interval="step"),
    "by epoch": model("Scheduled", interval="epoch"),
    "a batch is a mapping": data(kind="dict"),
    "a stream": [*data(kind="iterable"), "stop.max_steps=300"],
    "an optimizer that was chosen": ["optimizer=sgd", "optimizer.lr=0.5"],
    "short epochs": data(drop_last="true"),
}


@pytest.mark.parametrize("rule", ["epoch", "window"])
@pytest.mark.parametrize("name", MODULES)
def test_k_is_what_a_count_by_hand_finds(strange, name, rule):
    if name == "a stream" and rule == "epoch":
        pytest.skip("a stream has no epochs")
    cfg = strange(*MODULES[name], *(BY_WINDOW if rule == "window" else []))
    result = run(cfg)
    trajectory = read_run(run_directory(cfg)).trajectory
    steps = list(zip(trajectory.loss.astype(float), trajectory.size, strict=True))
    per_epoch = SAMPLES // 16 if name == "short epochs" else -(-SAMPLES // 16)
    assert result.status is Status.REACHED
    assert result.steps == count_by_hand(steps, rule, per_epoch)
    assert result.sfo == 16 * result.steps
    assert result.samples == trajectory.size[: result.steps].sum()
    assert (result.accuracy is not None) == (name == "with accuracy")
    assert result.test_accuracy is None
    again = run(cfg)
    assert again == result


def test_losses_are_those_of_a_plain_loop(strange):
    """The order of an epoch follows from (seed, epoch), the weights from the seed."""
    cfg = strange("seed=3", "stop.loss=1e-9", "stop.max_epochs=2")
    run(cfg)
    found = read_run(run_directory(cfg)).trajectory
    module = strangers.Plain()
    optimizer = module.configure_optimizers()
    inputs, labels = strangers.data().tensors
    from cbs_lightning.data.seeds import generator

    losses = []
    for epoch in range(2):
        order = torch.randperm(SAMPLES, generator=generator(3, epoch))
        for indices in order.split(16):
            loss = module.training_step((inputs[indices], labels[indices]), 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    np.testing.assert_array_equal(found.loss, np.array(losses, np.float32))


def test_every_hook_is_called(strange):
    strangers.Hooked.calls = {}
    result = run(strange(*model("Hooked"), *BY_WINDOW))
    steps, calls = result.steps_run, strangers.Hooked.calls
    assert {calls[name] for name in strangers.STEP_HOOKS} == {steps}
    epochs = -(-steps // result.steps_per_epoch)
    assert calls["on_train_epoch_start"] == calls["on_train_epoch_end"] == epochs
    assert all(calls[name] == 1 for name in strangers.OTHER_HOOKS[:4])


@pytest.mark.parametrize("steps", [1, 13, 20, 26])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    strange, monkeypatch, tmp_path, steps, interval
):
    """Random samples, dropout, a scheduler, and a hook at the end of an epoch that matters."""
    request = [
        *model("Forgetful", interval=interval), *data("NoisyData"), "stop.loss=1e-9",
        "stop.max_epochs=3", "checkpoint.keep=true",
    ]  # fmt: skip
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = strange(*request)
    interrupted_after(monkeypatch, cfg, steps)
    if steps == 13:
        interrupted_after(monkeypatch, cfg, 14)
    run(cfg)
    one, other = (run_directory(each) for each in (undisturbed, cfg))
    assert read_run(one).trajectory.digest() == read_run(other).trajectory.digest()
    first, second = (torch.load(each / CHECKPOINT, weights_only=True) for each in (one, other))
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name
    assert str(first["lr_schedulers"]) == str(second["lr_schedulers"])


def test_workers_change_nothing(strange, monkeypatch, tmp_path):
    digests = []
    for workers in (0, 2):
        cfg = strange(
            *data("NoisyData", num_workers=workers), "stop.loss=1e-9", "stop.max_epochs=2",
            f"output_dir={tmp_path / str(workers)}",
        )  # fmt: skip
        if workers:
            interrupted_after(monkeypatch, cfg, 5)
        run(cfg)
        digests.append(read_run(run_directory(cfg)).trajectory.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("slice_size", [3, 8, 15])
def test_slices_weigh_by_their_samples(strange, tmp_path, slice_size):
    """200 samples leave a batch of 8 at the end of an epoch."""
    request = ["stop.loss=1e-9", "stop.max_epochs=2"]
    whole = strange(*request, f"output_dir={tmp_path / 'whole'}")
    sliced = strange(*request, f"micro_batch_size={slice_size}")
    results = [run(each) for each in (whole, sliced)]
    assert [each.steps_run for each in results] == [26, 26]
    one, other = (read_run(run_directory(each)).trajectory for each in (whole, sliced))
    np.testing.assert_allclose(one.loss, other.loss, rtol=2e-5)
    np.testing.assert_array_equal(one.size, other.size)


def test_slices_go_on_after_an_interruption(strange, monkeypatch, tmp_path):
    request = ["stop.loss=1e-9", "stop.max_epochs=2", "micro_batch_size=5"]
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = strange(*request)
    interrupted_after(monkeypatch, cfg, 6)
    run(cfg)
    one, other = (read_run(run_directory(each)).trajectory for each in (undisturbed, cfg))
    assert one.digest() == other.digest()


def test_killed_in_slices_it_ends_as_if_it_never_was(forks, tmp_path):
    """Where a kill is a process's, not an exception's; random samples, dropout, a scheduler."""
    request = [
        *STRANGE, *model("Forgetful"), *data("NoisyData"), "micro_batch_size=5", "stop.loss=1e-9",
        "stop.max_steps=16", "checkpoint.every_seconds=1e-9", "checkpoint.keep=true",
        "tensorboard.points=2",
    ]  # fmt: skip
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    points = ran(forks, request, undisturbed).points
    for number in (len(points) // 3, len(points) // 2):
        assert ran(forks, request, disturbed, kill_at=number).code == -signal.SIGKILL
    ended = ran(forks, request, disturbed)
    assert ended.code == 0 and "resuming from" in ended.out, ended.err
    assert_same_runs(undisturbed, disturbed)


class Attentive(tiny.Tiny):
    """One of this project's classifiers, with a hook that the fast loop does not call."""

    calls = 0

    def on_before_optimizer_step(self, optimizer):
        Attentive.calls += 1


def test_a_classifier_with_hooks_takes_the_general_loop(tmp_path, capsys):
    base = [
        *STRANGE[:1], "model=tiny", "batch_size=256", "threads=1", "stop.loss=1e-9",
        "stop.max_steps=12", "optimizer=sgd",
    ]  # fmt: skip
    losses = []
    for number, target in enumerate(("tests.tiny.Tiny", "tests.test_any_module.Attentive")):
        cfg = compose([*base, f"model._target_={target}", f"output_dir={tmp_path / str(number)}"])
        run(cfg)
        losses.append(read_run(run_directory(cfg)).trajectory)
    assert Attentive.calls == 12
    said = "Lightning's own loop, one step per call: Attentive overrides on_before_optimizer_step"
    assert said in capsys.readouterr().out
    np.testing.assert_allclose(losses[0].loss, losses[1].loss, rtol=1e-5)
    np.testing.assert_array_equal(losses[0].correct, losses[1].correct)


class Accompanied(tiny.Tiny):
    """One of this project's classifiers, whose callback sees every step."""

    def configure_callbacks(self):
        return [Counting()]


class Counting(L.Callback):
    calls = 0

    def on_after_backward(self, *_):
        Counting.calls += 1


def test_the_callbacks_of_a_classifier_see_every_step(tmp_path, capsys):
    target = "model._target_=tests.test_any_module.Accompanied"
    run(compose([*TINY, target, "stop.max_steps=5", f"output_dir={tmp_path}"]))
    assert Counting.calls == 5
    said = "Lightning's own loop, one step per call: Accompanied overrides configure_callbacks"
    assert said in capsys.readouterr().out


class Brighter(Digits):
    """Data of this project's, changed on the device."""

    calls = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        Brighter.calls += 1
        images, labels = batch
        return images + 0.1, labels


def test_data_with_hooks_takes_the_general_loop(tmp_path):
    cfg = compose([
        *STRANGE[:1], "model=tiny", "batch_size=256", "threads=1", "stop.loss=1e-9",
        "stop.max_steps=5", "data._target_=tests.test_any_module.Brighter",
        f"output_dir={tmp_path}",
    ])  # fmt: skip
    run(cfg)
    assert Brighter.calls == 5


def test_images_of_this_project_for_a_module_of_yours(strange, monkeypatch, tmp_path):
    request = [
        *model("OnImages"), "data=digits", "batch_size=100", "stop.loss=1e-9",
        "stop.max_epochs=2", "micro_batch_size=30",
    ]  # fmt: skip
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    result = run(undisturbed)
    assert (result.steps_run, result.data_size) == (36, 1797)
    cfg = strange(*request)
    interrupted_after(monkeypatch, cfg, 18)
    run(cfg)
    one, other = (read_run(run_directory(each)).trajectory for each in (undisturbed, cfg))
    assert one.digest() == other.digest() and one.size.tolist() == ([100] * 17 + [97]) * 2


@pytest.mark.parametrize("name", ["muon", "schedule_free"])
def test_a_chosen_optimizer_goes_on_in_a_module_of_yours(strange, monkeypatch, tmp_path, name):
    request = [*chosen(name), "stop.loss=1e-9", "stop.max_epochs=2", "warmup_samples=100"]
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = strange(*request)
    interrupted_after(monkeypatch, cfg, 6)
    run(cfg)
    one, other = (read_run(run_directory(each)).trajectory for each in (undisturbed, cfg))
    assert one.digest() == other.digest() and one.loss[-5:].mean() < one.loss[:5].mean()


def test_rules_and_groups_reach_a_module_of_yours(strange, monkeypatch):
    seen = []

    def noting(self, trainer, module):
        (optimizer,) = trainer.optimizers
        seen.extend((group["params"][0].ndim, group["lr"]) for group in optimizer.param_groups)

    monkeypatch.setattr(TrajectoryRecorder, "on_train_end", noting, raising=False)
    result = run(
        strange(
            "optimizer=adam",
            "+optimizer.groups.vectors.max_dim=1",
            "scaling_rule=half_life",
            "+optimizer.groups.vectors.lr=0.2",
            "lr_scaling=sqrt",
            "stop.max_steps=3",
        )
    )
    assert seen == [(1, 0.1), (2, 0.0005)]  # b = 16, a quarter of the reference
    assert result.hyperparameters["betas"] == [0.9, pytest.approx(0.999**0.25)]


def test_the_modules_own_optimizer_is_described(strange):
    result = run(strange())
    assert (result.optimizer, result.variant, result.lr) == ("own", "own", 0.5)
    assert result.hyperparameters["momentum"] == 0


def test_a_data_module_is_asked_once(strange, monkeypatch):
    from tests.strange_data import Strange

    made = []
    monkeypatch.setattr(Strange, "__init__", _noting(Strange.__init__, made))
    run(strange())
    assert made[-1].calls == ["prepare_data", "fit"]


def _noting(build, made):
    def noting(self, batch_size, kind="tuple", **loader):
        build(self, batch_size, kind, **loader)
        made.append(self)

    return noting


def test_what_data_says_of_itself(strange, monkeypatch):
    from cbs_lightning.config import datamodule
    from tests.strange_data import Marked

    result = run(strange(*data("Marked")))
    assert result.tokens == 5 * result.samples
    before = config_hash(strange(*data("Marked")))
    monkeypatch.setattr(Marked, "fingerprint", "another")
    monkeypatch.setattr(datamodule, "_fingerprints", {})
    assert config_hash(strange(*data("Marked"))) != before


def test_the_budget_of_a_schedule_is_part_of_the_run(strange):
    budgets = ["stop.max_epochs=3"], ["stop.max_epochs=4"]
    one, other = (config_hash(strange(*model("Scheduled", interval="step"), *b)) for b in budgets)
    assert one != other
    one, other = (config_hash(strange(*budget)) for budget in budgets)
    assert one == other


def test_a_sampler_is_told_the_epoch_and_how_much_it_draws_is_an_epoch(strange):
    result = run(strange(*data("Half"), "stop.loss=1e-9", "stop.max_epochs=3"))
    assert (result.data_size, result.window, result.steps_run) == (100, 100, 3 * 7)
    assert Half.told == [0, 1, 2]


def test_what_limits_a_restart_is_said(strange, capsys):
    run(strange(*data("Sampled")))
    assert "the sampler Backwards is kept as it is: resuming is exact if" in capsys.readouterr().out
    run(strange(*data("BatchSampled")))
    assert "the sampler InBatches is kept as it is: resuming" in capsys.readouterr().out
    run(strange(*data(kind="iterable"), *BY_WINDOW, "stop.max_steps=100"))
    assert "the stream _Stream is kept as it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind",
    [
        data("Sampled"),
        [*data(kind="iterable"), *BY_WINDOW, "stop.max_steps=30"],
        [*data("NoisySampled"), *model("Forgetful")],
        [*data("NoisySampled", num_workers=1), *model("Forgetful"), "stop.max_epochs=2"],
    ],
)
def test_what_is_kept_as_it_is_goes_on_if_it_yields_the_same(strange, monkeypatch, tmp_path, kind):
    request = ["stop.max_epochs=3", *kind, "stop.loss=1e-9"]
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = strange(*request)
    for steps in (7, 13):
        interrupted_after(monkeypatch, cfg, steps)
    run(cfg)
    one, other = (read_run(run_directory(each)).trajectory for each in (undisturbed, cfg))
    assert one.digest() == other.digest()


class Closing(strangers.Plain):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Stepping(strangers.Manual):
    """Steps a scheduler of its own."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)]

    def training_step(self, batch, _):
        loss = super().training_step(batch, _)
        self.lr_schedulers().step()
        return loss


class Accumulating(strangers.Plain):
    def configure_callbacks(self):
        return [L.pytorch.callbacks.GradientAccumulationScheduler({0: 2})]


class Impatient(L.Callback):
    """Ends training when it likes."""

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step == 5


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (model("TwoOptimizers"), "TwoOptimizers has 2 optimizers"),
        (model("Manual", steps_per_call=2), "made 2 optimizer steps"),
        (model("Manual", steps_per_call=0), "made 0 optimizer steps"),
        (
            [*model("Manual"), "micro_batch_size=4"],
            "micro_batch_size=4: under manual",
        ),
        (model("Odd", what="several"), "the loss has shape"),
        (model("Odd", what="none"), "returned no loss"),
        (model("Optimizerless"), "optimizer=own: strange does not override configure_optimizers"),
        (["micro_batch_size=auto"], "micro_batch_size=auto: only for this project's classifiers"),
        (["compile=default"], "compile=default: only for this project's classifiers"),
        (["optimizer.lr=3"], "optimizer.lr=3: optimizer=own uses your configure_optimizers"),
        (["lr_scaling=sqrt"], "lr_scaling=sqrt: not with optimizer=own"),
        (["scaling_rule=half_life"], "scaling_rule=half_life: not with optimizer=own"),
        (["weight_decay_scaling=sqrt"], "weight_decay_scaling=sqrt: not with optimizer=own"),
        (["optimizer=muon"], "meets these conditions; there are net.weight (2, 8)"),
        (["warmup_samples=100"], "warmup_samples=100: not with optimizer=own"),
        (["model=resnet20"], "data=strange: resnet20 needs images"),
        (data("Sizeless"), "its constructor must take batch_size"),
        (data("Stubborn"), "batch_size=16: Stubborn.train_dataloader has batches of 7"),
        (data("Several"), "Several.train_dataloader returns several loaders"),
        (data("Broken"), "Broken.setup failed: FileNotFoundError: no such file: my.csv"),
        ([*data(drop_last="true"), "batch_size=300"], "drops the last batch, so none is left"),
        (data(kind="iterable"), "stop.rule=epoch: strange is a stream without a length"),
        ([*data(kind="iterable"), "stop.rule=window"], "stop.window=null: strange is a stream"),
        ([*data(kind="iterable"), *BY_WINDOW], "stop.max_steps=null: strange is a stream"),
        ([*data("Sampled"), "micro_batch_size=4"], "needs a data set with a length and a plain"),
        (
            ["model._target_=tests.strangers.SAMPLES"],
            "must be a class derived from LightningModule",
        ),
        (["+model.width=3"], "model.width=3: Plain has no such setting; allowed: lr"),
        (model("Laden"), "cannot hold hyper_parameters.net, a Linear"),
        (model("test_any_module.Closing"), "LBFGS needs several losses per step (a closure)"),
        (
            [*model("test_any_module.Stepping"), "optimizer=adam"],
            "optimizer=adam: replaces the module's scheduler too, which it steps itself",
        ),
        (
            ["+callbacks.early._target_=lightning.pytorch.callbacks.EarlyStopping"],
            "EarlyStopping: a run ends at stop.loss, stop.max_epochs or stop.max_steps; leave it",
        ),
        (
            model("test_any_module.Accumulating"),
            "Accumulating.configure_callbacks=GradientAccumulationScheduler: a step is one batch",
        ),
        (
            ["+callbacks.own._target_=tests.test_any_module.Impatient"],
            "training stopped after 5 of 2600 steps: there was no batch, or a callback or the",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(strange, tmp_path, overrides, said):
    with pytest.raises(UserError) as error:
        run(strange(*overrides))
    assert said in str(error.value) and "\n" not in str(error.value)
    if "Laden" in str(overrides):  # before the first step
        (failed,) = tmp_path.rglob("result.json")
        assert read_run(failed.parent).result.steps_run == 0


def test_a_sweep_over_a_module_of_yours(cli, tmp_path):
    ended = cli(
        "-m", *STRANGE, *BY_WINDOW, "optimizer=own,sgd", "optimizer.lr=0.3", "batch_size=8,32",
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert ended.code != 0 and "optimizer.lr=0.3: not every option of optimizer" in ended.err
    ended = cli("-m", *STRANGE, *BY_WINDOW, "optimizer=own,sgd", "batch_size=8,32",
                f"output_dir={tmp_path}", "stop.max_epochs=3")  # fmt: skip
    assert ended.code == 0, ended.err
    assert "own: use b =" in ended.out
    assert ended.out.count("your module Plain runs in Lightning's own loop") == 1
    assert len(list(tmp_path.glob("strange_strange/*/result.json"))) == 4


def test_jobs_of_a_parallel_sweep_load_data_with_workers(cli, tmp_path):
    outcome = cli(
        "-m", *STRANGE, *BY_WINDOW, *data(num_workers=1), "batch_size=8,32", "jobs=2",
        "stop.max_epochs=3", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_test_accuracy_is_of_the_weights_at_k(tmp_path):
    from dataclasses import replace

    from cbs_lightning.analysis.example import example_results
    from cbs_lightning.results.result import Request, answer
    from cbs_lightning.results.trajectory import Trajectory

    losses = np.array([2, 1, 0.5, 0.2], np.float32)
    sizes = np.full(4, 64, np.int32)
    trajectory = Trajectory(losses, correct=sizes, size=sizes)
    of_old = replace(example_results()[4], test_accuracy=0.9, steps_run=4, ended=Status.REACHED)
    at_k = answer(of_old, trajectory, Request(0.25, "window", window=64))
    assert (at_k.steps, at_k.test_accuracy, at_k.test_accuracy_at_end) == (4, 0.9, 0.9)
    before = answer(at_k, trajectory, Request(0.5, "window", window=64))
    assert (before.steps, before.test_accuracy, before.test_accuracy_at_end) == (3, None, 0.9)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["batch_size=500"], "batch_size=500: the data set has 200 samples"),
        (
            ["stop.rule=window", "stop.window=9999", "stop.max_steps=3"],
            "the threshold cannot be met",
        ),
        (["stop.loss=5"], "stop.loss=5: the very first loss was 0.693 already"),
    ],
)
def test_a_question_that_makes_little_sense_is_warned_of(
    strange, monkeypatch, capsys, overrides, said
):
    """Also if the answer is known already."""
    run(strange(*overrides))
    assert said in capsys.readouterr().out
    forbid_training(monkeypatch)
    run(strange(*overrides))
    again = capsys.readouterr().out
    assert said in again and "already finished" in again
