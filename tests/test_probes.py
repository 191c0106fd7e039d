"""Probes measure in a run and do not change it by a bit."""

import itertools
import json
import random
import signal
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from cbs_lightning.callbacks import progress
from cbs_lightning.callbacks.probes import make_probe, measure_noise
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.callbacks.probes.schedule import Descent
from cbs_lightning.callbacks.probes.state import unchanged
from cbs_lightning.callbacks.progress import FollowProgress
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.noise.prediction import cost_line, prediction_line, with_prediction
from cbs_lightning.noise.record import FILE, Cost, NoiseRecord, Probe
from cbs_lightning.results.result import Request, Status
from cbs_lightning.results.store import CHECKPOINT, read_run
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.probes import are_missing, settings_of
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.forks import ran
from tests.strangers import Plain
from tests.test_any_module import STRANGE, data, interrupted_after, model
from tests.test_restart import assert_same_runs

PROBES = ["noise.probes=3", "noise.samples=320"]
RESTLESS = [
    *TINY, "model=restless", "data.augment=true", "checkpoint.keep=true", "batch_size=64",
    "stop.loss=1.6", "stop.rule=window", "stop.window=512",
]  # fmt: skip


class Dice:
    """In slots, one of them with a name that Python changes."""

    __slots__ = ("__thrown", "rng", "sums")

    def __init__(self):
        self.__thrown, self.rng, self.sums = 0, random.Random(0), np.zeros(2)

    def throw(self):
        self.__thrown += 1
        self.sums[self.__thrown % 2] += self.rng.random()
        return self.sums[0] - self.sums[1]


class Helper:
    """A plain object, with others inside that know it."""

    def __init__(self):
        self.calls, self.dice, self.itself = 0, Dice(), self

    def shift(self):
        self.calls += 1
        self.latest = self.calls % 5
        return self.latest + self.dice.throw()


class Moody(Plain):
    """Whose every pass leaves its marks: statistics, a metric, a log, counts and random numbers,
    some of them in a helper."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(  # type: ignore[assignment]
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)
        )
        self.accuracy = MulticlassAccuracy(2)
        self.calls = 0
        self.helper = Helper()
        self.mean = torch.zeros(())  # no buffer
        self.rng = torch.Generator().manual_seed(0)

    def training_step(self, batch, _):
        inputs, labels = batch
        self.calls += 1
        noise = torch.randn(inputs.shape, generator=self.rng) + random.random() + np.random.rand()
        logits = self.net(inputs + 0.1 * noise + 0.001 * (self.calls % 7 + self.helper.shift()))
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy, on_epoch=True)
        loss = cross_entropy(logits, labels) + 0 * self.mean
        self.mean.mul_(0.9).add_(loss.detach())
        return loss

    def on_train_epoch_end(self):
        """What was counted changes what follows."""
        shift = float(self.trainer.callback_metrics["accuracy_epoch"]) + float(self.mean)
        with torch.no_grad():
            self.net[0].bias.add_(1e-3 * (shift + self.calls % 3))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.001)


MOODY = [
    *STRANGE, *model("Plain"), "model._target_=tests.test_probes.Moody", *data("NoisyData"),
    "stop.loss=0.3", "stop.rule=window", "stop.window=64", "checkpoint.keep=true",
]  # fmt: skip
RESUMED = [*MOODY, "model._target_=tests.strangers.Forgetful"]
LOOPS = {"fast": RESTLESS, "general": MOODY, "slices": [*MOODY, "micro_batch_size=8"]}


def record_of(directory) -> NoiseRecord:
    return NoiseRecord.from_json((directory / FILE).read_bytes())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_with_probes_ends_as_one_without(loop, tmp_path):
    without, probed = (
        compose([*LOOPS[loop], *more, f"output_dir={tmp_path / name}"])
        for name, more in (("without", []), ("probed", PROBES))
    )
    assert config_hash(without) == config_hash(probed)
    assert run(without).status is Status.REACHED
    run(probed)
    assert_same_runs(tmp_path / "without", tmp_path / "probed")
    record = record_of(run_directory(probed))
    assert len(record.probes) >= 2
    assert (
        sum(each.steps for each in record.probes)
        == read_run(run_directory(probed)).result.steps_run
    )
    for probe in record.probes:
        assert probe.noise_trace > 0 and probe.batches * probe.batch_size == 320
        assert None not in (probe.a_trial, probe.c_trial, probe.a_hvp, probe.c_hvp)


@pytest.mark.parametrize("configuration", [RESTLESS, RESUMED], ids=["fast", "general"])
def test_an_interrupted_run_keeps_its_probes(configuration, tmp_path, monkeypatch):
    undisturbed, cfg = (
        compose([*configuration, *PROBES, f"output_dir={tmp_path / name}"])
        for name in ("undisturbed", "interrupted")
    )
    run(undisturbed)
    wanted = record_of(run_directory(undisturbed))
    interrupted_after(monkeypatch, cfg, wanted.probes[0].step)
    assert not (run_directory(cfg) / FILE).exists()
    interrupted_after(monkeypatch, cfg, wanted.probes[1].step)
    run(cfg)
    assert_same_runs(tmp_path / "undisturbed", tmp_path / "interrupted")
    assert record_of(run_directory(cfg)).probes == wanted.probes


def test_a_run_killed_in_a_probe_ends_as_if_it_never_was(forks, tmp_path):
    arguments = [*RESTLESS, *PROBES, "checkpoint.every_seconds=1e-9"]
    undisturbed = tmp_path / "undisturbed"
    points = ran(forks, arguments, undisturbed).points
    events = [at for at, point in enumerate(points, 1) if ".noise" in point]
    for number in (events[0], len(points)):
        disturbed = tmp_path / f"killed_at_{number}"
        assert ran(forks, arguments, disturbed, kill_at=number).code == -signal.SIGKILL
        assert ran(forks, arguments, disturbed).code == 0
        assert_same_runs(undisturbed, disturbed)
        one, other = (next(path.glob(f"*/*/{FILE}")) for path in (undisturbed, disturbed))
        assert record_of(one.parent).probes == record_of(other.parent).probes


def test_probes_of_a_finished_run_repeat_it(tmp_path, capsys):
    first = compose([*RESTLESS, f"output_dir={tmp_path / 'later'}"])
    later = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path / 'later'}"])
    at_once = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path / 'at_once'}"])
    run(at_once)
    before = run(first)
    assert run(later) == before
    assert "trained once more for its probes" in capsys.readouterr().out
    directory = run_directory(later)
    assert record_of(directory).probes == record_of(run_directory(at_once)).probes
    assert not [path for path in directory.iterdir() if path.is_dir()]
    run(later)
    out = capsys.readouterr().out
    assert "already finished" in out and "once more" not in out and "b*" in out


def test_a_repeat_that_was_cut_off_starts_again_for_other_probes(tmp_path, monkeypatch):
    same = [*RESTLESS, f"output_dir={tmp_path}"]
    run(compose(same))
    cfg = compose([*same, *PROBES, "checkpoint.every_seconds=1e-9"])
    measured = make_probe.measure
    calls = []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(make_probe, "measure", killed)
    with pytest.raises(Interrupted):
        run(cfg)
    monkeypatch.setattr(make_probe, "measure", measured)
    other = compose([*same, "noise.probes=4", "noise.samples=128"])
    run(other)
    record = record_of(run_directory(other))
    assert len(record.probes) == 4 and record.settings["samples"] == 128


def test_probes_on_the_way_to_a_lower_loss_answer_a_higher_one(tmp_path, capsys):
    same = [*RESTLESS, *PROBES, "noise.curvature=false", f"output_dir={tmp_path}"]
    low = compose(same)
    run(low)
    record = record_of(run_directory(low))
    capsys.readouterr()
    run(compose([*same, "stop.loss=1.8", "noise.branch_steps=20"]))
    out = capsys.readouterr().out
    assert record_of(run_directory(low)) == record and "once more" not in out
    assert prediction_line(with_prediction(record, 1.8)) in out
    run(low)
    assert "once more" not in capsys.readouterr().out
    run(compose([*same, "noise.curvature=true"]))
    assert "once more" in capsys.readouterr().out


def test_probes_that_a_budget_did_not_allow_are_made_when_the_run_has_gone_on(tmp_path, capsys):
    same = [*RESTLESS, "noise.samples=128", "noise.curvature=false", f"output_dir={tmp_path}"]
    short = compose([*same, "noise.probes=3", "stop.max_steps=16"])
    run(short)
    record = record_of(run_directory(short))
    assert len(record.probes) < 3 and record.steps_run == 16
    run(compose(same))
    cfg = compose([*same, "noise.probes=3"])
    capsys.readouterr()
    assert run(cfg).status is Status.REACHED
    assert "once more" in capsys.readouterr().out
    record = record_of(run_directory(cfg))
    assert len(record.probes) == 3 and record.shortfall is None
    run(cfg)
    run(compose([*same, "noise.probes=3", "stop.max_steps=16"]))
    assert "once more" not in capsys.readouterr().out


@pytest.mark.parametrize(("steps_run", "missing"), [(10, True), (40, False), (None, True)])
def test_a_shortfall_is_made_up_for_where_the_run_is_longer_now(tmp_path, steps_run, missing):
    cfg = compose([*RESTLESS, *PROBES, "stop.max_steps=40", f"output_dir={tmp_path}"])
    result = run(cfg)
    stored = read_run(run_directory(cfg))
    record = replace(record_of(stored.directory), shortfall="2 of 3", steps_run=steps_run)
    if steps_run is None:  # of an earlier version
        record = replace(record, probes=[])
    (stored.directory / FILE).write_text(record.to_json())
    request = Request(result.threshold, result.rule, result.window, 40)
    assert are_missing(cfg, stored, request) is missing


def test_probes_of_a_run_that_does_not_repeat_are_not_kept(tmp_path, monkeypatch, capsys):
    cfg = compose([*RESTLESS, f"output_dir={tmp_path}"])
    run(cfg)
    train = measure_noise.MeasureNoise.on_train_start

    def other_machine(self, trainer, module):
        train(self, trainer, module)
        with torch.no_grad():
            next(module.parameters()).mul_(1.0001)

    monkeypatch.setattr(measure_noise.MeasureNoise, "on_train_start", other_machine)
    run(compose([*RESTLESS, *PROBES, f"output_dir={tmp_path}"]))
    record = record_of(run_directory(cfg))
    assert record.probes == [] and "the losses differ from step" in record.reason
    assert record.reason in capsys.readouterr().out


def test_a_run_that_began_without_probes_is_repeated_for_them(tmp_path, monkeypatch):
    cfg = compose([*RESTLESS, f"output_dir={tmp_path / 'begun'}"])
    whole = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path / 'whole'}"])
    run(whole)
    interrupted_after(monkeypatch, cfg, 20)
    run(compose([*RESTLESS, *PROBES, f"output_dir={tmp_path / 'begun'}"]))
    probes = record_of(run_directory(cfg)).probes
    assert probes == record_of(run_directory(whole)).probes


def test_a_stream_is_probed_by_what_was_trained_last(tmp_path):
    stream = [*model("Plain", lr=0.1), *data("Strange", kind="iterable"), "stop.max_steps=300"]
    window = ["stop.rule=window", "stop.window=60"]
    cfg = compose([*STRANGE, *stream, *window, *PROBES, f"output_dir={tmp_path}"])
    run(cfg)
    record = record_of(run_directory(cfg))
    assert record.probes and {each.batch_size for each in record.probes} == {16}
    assert "trained last" in record.notes[0]


def test_a_run_that_goes_on_without_a_step_left_keeps_its_probes(tmp_path, monkeypatch):
    same = [*RESTLESS, *PROBES, f"output_dir={tmp_path}"]
    cfg = compose(same)
    interrupted_after(monkeypatch, cfg, 80)
    for name in ("result.json", "trajectory.npz"):  # as if it had been killed
        (run_directory(cfg) / name).unlink()
    shorter = compose([*same, "stop.max_steps=40"])
    assert run(shorter).status is Status.EXHAUSTED
    record = record_of(run_directory(shorter))
    assert record.probes and record.probes[0].steps > 0


def test_manual_optimization_is_not_probed_and_said_so(tmp_path, capsys):
    cfg = compose([*STRANGE, *model("Manual"), *PROBES, f"output_dir={tmp_path}"])
    assert run(cfg).status is Status.REACHED
    assert record_of(run_directory(cfg)).probes == []
    assert "probes: no probes: under manual optimization" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lion", "schedule_free"])
def test_an_optimizer_without_a_metric_is_probed_by_its_own_steps(name, tmp_path, capsys):
    without, probed = (
        compose([*RESTLESS, *more, f"optimizer={name}", f"output_dir={tmp_path / folder}"])
        for folder, more in (("without", []), ("probed", PROBES))
    )
    run(without)
    run(probed)
    assert_same_runs(tmp_path / "without", tmp_path / "probed")
    probe = record_of(run_directory(probed)).probes[0]
    assert probe.noise_trace > 0 and probe.a_trial is None and probe.metric_b_simple is None
    assert probe.own_noise > 0 and None not in (probe.a_own, probe.c_own)
    out = capsys.readouterr().out
    assert "has no metric: its noise is measured by its own steps" in out
    cost = record_of(run_directory(probed)).cost
    least = len(record_of(run_directory(probed)).probes) * (5 + 2 * 2 * 2)  # walks and their ends
    assert cost.updates > least and cost.gradients_of_update == 64
    assert cost.in_gradients > cost.gradients + 64 * cost.updates
    assert f"{cost.updates:,} updates of the optimizer: with 64 gradients for an update" in out
    assert "took as long as" not in out


@pytest.mark.parametrize("switch", ["noise.curvature=false", "noise.trials=0"])
def test_without_a_metric_and_own_steps_a_line_says_what_a_prediction_needs(
    switch, tmp_path, capsys
):
    cfg = compose([*RESTLESS, *PROBES, "optimizer=lion", switch, f"output_dir={tmp_path}"])
    run(cfg)
    assert record_of(run_directory(cfg)).critical_batch is None
    out = capsys.readouterr().out
    assert "which need noise.curvature=true and noise.trials above 0" in out
    assert "is measured by its own steps" not in out


def test_probes_are_in_tensorboard_beside_the_runs_own_curves(tmp_path):
    plain, probed = (
        compose([*RESTLESS, *more, "tensorboard.points=20", f"output_dir={tmp_path / name}"])
        for name, more in (("plain", []), ("probed", PROBES))
    )
    run(plain)
    run(probed)
    without, events = (
        EventAccumulator(str(run_directory(cfg))).Reload() for cfg in (plain, probed)
    )
    for tag in without.Tags()["scalars"]:
        assert [each.step for each in events.Scalars(tag)] == [
            each.step for each in without.Scalars(tag)
        ]
    record = record_of(run_directory(probed))
    for name in ("b_simple", "a_trial", "c_hvp"):
        found = events.Scalars(f"noise/{name}")
        assert [each.step for each in found] == [each.step for each in record.probes]
        wanted = [getattr(each, name) for each in record.probes]
        assert [each.value for each in found] == pytest.approx(wanted)


@pytest.mark.parametrize(("failures", "made"), [(1, True), (9, False)])
def test_where_memory_is_short_a_probe_works_in_slices_or_is_left_out(
    tmp_path, monkeypatch, capsys, failures, made
):
    gradient, left = Objective.gradient, [failures]

    def short(self, number):
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gradient(self, number)

    monkeypatch.setattr(Objective, "gradient", short)
    cfg = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path}"])
    assert run(cfg).status is Status.REACHED
    out = capsys.readouterr().out
    assert "memory was short in a probe: gradients in slices of 32" in out
    assert "in slices of 4\n" not in out  # which is not tried
    assert ("out of memory; the run goes on" in out) is not made


def test_an_error_in_a_probe_leaves_the_run_as_it_was(tmp_path):
    """Whatever is done inside, and however it ends."""
    module = Moody()
    module.lr = 0.1
    trainer = L.Trainer(logger=False, enable_checkpointing=False, max_steps=1, barebones=False)
    optimizer = torch.optim.Adam(module.parameters())
    trainer.strategy.optimizers = [optimizer]
    module.net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    before, draws = _everything(module, optimizer), _draw(module)
    module.rng.manual_seed(0)
    state = module.rng.get_state()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    draws = [torch.rand(1), random.random(), np.random.rand()]
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    gradients = [each.grad for each in module.parameters()]
    with pytest.raises(RuntimeError, match="roof"), unchanged(trainer, module, optimizers=True):
        assert all(each.grad is None for each in module.parameters())
        module.training_step((torch.ones(4, 8), torch.zeros(4).long()), 0).backward()
        optimizer.step()
        module.eval()
        module.noted.append((1.0, 1))
        module.found = 1
        module.lr = 0.2
        optimizer.param_groups[0]["lr"] = 7.0
        raise RuntimeError("the roof fell in")
    assert _everything(module, optimizer) == before
    assert torch.equal(module.rng.get_state(), state)
    assert draws == [torch.rand(1), random.random(), np.random.rand()]
    assert all(a is b.grad for a, b in zip(gradients, module.parameters(), strict=True))
    assert module.training and module.noted == [] and not hasattr(module, "found")
    assert module.lr == 0.1 and module.calls == 0 and module.log.__self__ is module


def test_where_gradients_are_clipped_there_is_no_prediction_and_a_line(tmp_path, capsys):
    clipped = ["trainer.gradient_clip_val=0.01", "optimizer=sgd", "optimizer.lr=1"]
    cfg = compose([*MOODY, *clipped, "noise.probes=6", *PROBES[1:], f"output_dir={tmp_path}"])
    run(cfg)
    record = record_of(run_directory(cfg))
    assert record.critical_batch is None and record.b_simple is not None
    assert "gradients are clipped at 6 of 6 probes" in record.reason
    assert "gradients are clipped: what steps gain" in capsys.readouterr().out


def test_an_iterator_of_a_module_is_told_of(tmp_path, capsys):
    cfg = compose([*MOODY, *PROBES, f"model._target_={__name__}.Turning", f"output_dir={tmp_path}"])
    run(cfg)
    assert "what cannot be put back (cycle)" in record_of(run_directory(cfg)).notes[0]
    assert "drawing from it changes the run" in capsys.readouterr().out


class Turning(Plain):
    def __init__(self):
        super().__init__()
        self.turns = itertools.cycle((0.0, 0.1))


def _draw(module):
    return torch.randn(1, generator=module.rng)


def _everything(module, optimizer) -> bytes:
    file = BytesIO()
    metric = {key: getattr(module.accuracy, key) for key in module.accuracy._defaults}
    torch.save([module.state_dict(), optimizer.state_dict(), metric, module.mean], file)
    return file.getvalue()


def test_as_many_probes_as_were_asked_for_in_a_short_run(tmp_path, capsys):
    """In chunks of eight steps whose losses pass several levels at once."""
    arguments = [*RESTLESS, "model=tiny", "noise.samples=128", "noise.curvature=false"]
    cfg = compose([*arguments, "noise.probes=10", f"output_dir={tmp_path}"])
    run(cfg)
    record = record_of(run_directory(cfg))
    steps = [each.step for each in record.probes]
    assert len(steps) == 10 and record.shortfall is None
    assert any(step % 8 for step in steps)
    capsys.readouterr()
    run(compose([*arguments, "noise.probes=60", f"output_dir={tmp_path}"]))
    record = record_of(run_directory(cfg))
    assert f"{len(record.probes)} of 60 probes were made" in record.shortfall
    assert "more noise.probes, a smaller stop.window" in record.shortfall
    assert record.shortfall in capsys.readouterr().out


def test_the_time_left_counts_probes_apart_from_steps(monkeypatch):
    """100 steps of a second each, and 3 of 5 probes of a minute each."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    probes = SimpleNamespace(seconds=120.0, seconds_left=180.0)  # two before it was resumed
    recorder = SimpleNamespace(trajectory=[])
    follow = FollowProgress(SimpleNamespace(recorder=recorder), 1000, [], probes)
    monkeypatch.setattr(FollowProgress, "progress", lambda self: None)
    follow.on_train_start()
    assert follow._seconds_left() is None
    probes.seconds, probes.seconds_left, now[0], follow.steps = 180.0, 120.0, 160.0, 100
    assert follow._seconds_left() == pytest.approx(900 + 120)


def test_the_seconds_that_probes_will_take_are_as_many_as_they_took(tmp_path):
    cfg = compose([*RESTLESS, *PROBES])
    maker = make_probe.ProbeMaker(settings_of(cfg), None, seed=0)
    measured = measure_noise.MeasureNoise(maker, None, tmp_path)
    assert measured.seconds_left == 0
    measured._descent = Descent(0.1, 1, 3)
    measured._descent.left, maker.cost = 2, Cost(seconds=5.0)
    assert (measured.seconds, measured.seconds_left) == (5, 10)


def test_a_run_without_a_reading_says_that_it_has_no_probes(tmp_path, capsys):
    cfg = compose([*RESTLESS, *PROBES, "stop.max_steps=3", f"output_dir={tmp_path}"])
    run(cfg)
    shortfall = record_of(run_directory(cfg)).shortfall
    assert "0 of 3 probes were made: the run ended before" in shortfall
    said = capsys.readouterr().out
    assert shortfall in said and "took as long as" not in said


def test_a_run_that_begins_below_its_threshold_says_so(tmp_path, capsys):
    cfg = compose([*RESTLESS, *PROBES, "stop.loss=5", f"output_dir={tmp_path}"])
    assert run(cfg).status is Status.REACHED
    out = capsys.readouterr().out
    assert "the first reading of its loss, 2." in out and "was below the threshold" in out
    assert "in one step" not in out


def test_what_a_probe_cost_is_a_share_of_the_batches_that_there_are(tmp_path, capsys):
    """Of the 1,797 samples of digits, whatever was asked for."""
    few = ["noise.samples=64", "noise.curvature=false", "stop.max_steps=2", "stop.loss=2.29"]
    cfg = compose([*RESTLESS, *PROBES, *few, "batch_size=4096", f"output_dir={tmp_path}"])
    run(cfg)
    record = record_of(run_directory(cfg))
    assert record.batch_size == 1797 and record.probes
    steps = sum(each.steps for each in record.probes)
    assert f"of the run's own {1797 * steps:,.0f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("micro_batch_size", "said"),
    [(None, "; BatchNorm saw 32 samples at a time, in the run 64"), (16, None), (48, "32 samples")],
)
def test_what_batch_norm_saw(micro_batch_size, said):
    probe = Probe(1, 64, 1.0, 1, batch_size=32)
    record = NoiseRecord("", "adam", "adam", 1e-3, 64, 0, 0.5, "epoch", [probe],
                         micro_batch_size=micro_batch_size)  # fmt: skip
    line = cost_line(record)
    assert line.endswith("in batches of 32") if said is None else said in line


def test_a_record_is_read_as_it_was_written(tmp_path):
    cfg = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path}"])
    run(cfg)
    text = (run_directory(cfg) / FILE).read_text()
    assert NoiseRecord.from_json(text).to_json() == text
    for broken in ("{}", "[]", text.replace('"schema_version": 1', '"schema_version": 2')):
        with pytest.raises(ValueError):
            NoiseRecord.from_json(broken)
    cost = json.loads(text)["cost"]
    assert cost["updates"] > 0 and cost["gradients_of_update"] is None  # for Adam, about one
    assert cost["gradients"] > 0 and cost["forward_passes"] > 0 and cost["share_of_run"] > 0


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("noise.probes=-1", "noise.probes=-1: must be a whole number >= 0"),
        ("noise.probes=many", "noise.probes=many: must be a whole number >= 0"),
        ("noise.probs=3", "did you mean noise.probes=3?"),
        ("compile=reduce-overhead", "noise.probes=3: not with compile=reduce-overhead"),
        ("noise.batch_size=300", "noise.batch_size=300: at most half of noise.samples=320"),
        ("noise.samples=1", "noise.samples=1: must be a whole number >= 4"),
    ],
)
def test_a_mistake_is_one_line(cli, tmp_path, mistake, said):
    outcome = cli(*RESTLESS, *PROBES, mistake, f"output_dir={tmp_path}")
    assert outcome.code != 0 and said in outcome.err
    assert outcome.err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_branches_need_probes(cli, tmp_path):
    outcome = cli(*TINY, "noise.branches=true", f"output_dir={tmp_path}")
    assert "noise.branches=true: needs probes" in outcome.err
    assert not list(tmp_path.iterdir())


def test_a_kept_checkpoint_holds_the_probes_as_plain_values(tmp_path):
    cfg = compose([*RESTLESS, *PROBES, f"output_dir={tmp_path}"])
    run(cfg)
    values = torch.load(run_directory(cfg) / CHECKPOINT, weights_only=True)
    assert values["callbacks"]["MeasureNoise"]["probes"]
