"""What a run writes for TensorBoard: its curves and its row under HParams."""

from dataclasses import replace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as LiveAccumulator,
)
from tensorboard.plugins.hparams import plugin_data_pb2

from cbs_lightning.callbacks import LogCurves, TrajectoryRecorder
from cbs_lightning.callbacks.log_curves import SUFFIX
from cbs_lightning.config.identity import run_directory
from cbs_lightning.results.events import event_paths
from cbs_lightning.results.hparams import METRICS, SHOWN
from cbs_lightning.results.store import read_run, read_study
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.studies import log_run, make_run
from tests.test_run import interrupt_after


def events_of(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def stored(study):
    (only,) = read_study(study)[0]
    return only


def live_loader(directory):
    """TensorBoard's Python loader; its other one is looked at in test_tensorboard_browser.py."""
    return LiveAccumulator(str(directory), event_file_active_filter=lambda timestamp: True)


def test_curves_by_step_and_by_sfo(tiny):
    cfg = tiny("stop.loss=1.5")
    result = run(cfg)
    events = events_of(run_directory(cfg))
    trajectory = read_run(run_directory(cfg)).trajectory
    assert result.steps_run <= 200
    for quantity in ("loss", "accuracy", "learning_rate"):
        by_step, by_sfo = (events.Scalars(f"{quantity}/{by}") for by in ("by_step", "by_sfo"))
        assert [event.step for event in by_step] == list(range(1, result.steps_run + 1))
        assert [event.step for event in by_sfo] == [event.step * 256 for event in by_step]
        assert [event.value for event in by_sfo] == [event.value for event in by_step]
    losses = [event.value for event in events.Scalars("loss/by_step")]
    assert losses == trajectory.loss.tolist()
    accuracies = [event.value for event in events.Scalars("accuracy/by_step")]
    np.testing.assert_allclose(accuracies, trajectory.correct / trajectory.size, rtol=1e-6)
    rates = {event.value for event in events.Scalars("learning_rate/by_step")}
    assert rates == {np.float32(1e-3)}


@pytest.mark.parametrize("points", [2, 3, 4, 200])
def test_a_curve_has_no_more_points_than_asked_for_and_ends_with_the_run(tiny, points):
    cfg = tiny(
        "stop.loss=1e-9", "stop.max_steps=13", "batch_size=600", f"tensorboard.points={points}"
    )
    run(cfg)
    trajectory = read_run(run_directory(cfg)).trajectory
    by_step = events_of(run_directory(cfg)).Scalars("loss/by_step")
    ends = [event.step for event in by_step]
    expected = {2: [1, 13], 3: [1, 8, 13], 4: [1, 8, 13], 200: list(range(1, 14))}
    assert ends == expected[points]
    for start, event in zip([0, *ends], by_step, strict=False):
        span = trajectory[start : event.step]
        assert event.value == pytest.approx(np.average(span.loss, weights=span.size))


def test_a_longer_run_has_a_file_of_the_same_size(tmp_path):
    sizes = []
    for number, epochs in enumerate((1, 10, 100)):
        make_run(tmp_path / str(number), "adam", 2, epochs)
        log_run(stored(tmp_path / str(number)), points=100)
        (path,) = event_paths(stored(tmp_path / str(number)).directory, SUFFIX)
        sizes.append(path.stat().st_size)
    assert max(sizes) < 30_000 and max(sizes) < 2 * min(sizes)


def test_points_are_there_while_a_run_goes_on(tmp_path):
    make_run(tmp_path / "study", "adam", 4, 4)
    whole = stored(tmp_path / "study")
    seen = []

    class Watched(LogCurves):
        def on_train_batch_end(self, *arguments):
            super().on_train_batch_end(*arguments)
            seen.append([e.step for e in events_of(self.directory).Scalars("loss/by_step")])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.studies.LogCurves", Watched)
        log_run(whole, points=100, rates=(0.1,) * 10)
    assert seen[0] == [1, *range(2, 101, 2)]
    assert seen[1] == [1, *range(4, 201, 4)]
    assert seen[4] == seen[5][: len(seen[4])] == [1, *range(8, 501, 8)]
    assert seen[9] == [1, *range(16, 1001, 16)]


def test_a_run_that_starts_anew_replaces_its_curves_live(tmp_path):
    make_run(tmp_path / "study", "adam", 4, 4)
    once = stored(tmp_path / "study")
    log_run(once, points=100)
    loader = live_loader(once.directory)
    shorter = replace(once, trajectory=once.trajectory[:50])
    for trained, ends in ((once, [1, *range(16, 1001, 16), 1000]), (shorter, list(range(1, 51)))):
        log_run(trained, points=100)
        loader.Reload()
        assert [event.step for event in loader.Tensors("loss/by_step")] == ends


def test_the_learning_rate_may_change_within_a_run(tmp_path):
    make_run(tmp_path / "study", "adam", 4, 2)
    log_run(stored(tmp_path / "study"), points=100, rates=(0.4, 0.2, 0.1, 0.1, 0.05))
    events = events_of(stored(tmp_path / "study").directory)
    rates = {event.step: event.value for event in events.Scalars("learning_rate/by_step")}
    assert len(rates) == 1 + 63
    assert rates[8] == rates[96] == pytest.approx(0.4)
    assert rates[104] == pytest.approx((4 * 0.4 + 4 * 0.2) / 8)
    assert rates[296] == rates[400] == pytest.approx(0.1)
    assert rates[500] == pytest.approx(0.05)


def test_a_run_that_goes_on_knows_its_earlier_learning_rates(tiny, monkeypatch):
    cfg = tiny("stop.loss=1e-9", "stop.max_epochs=3")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 8)
        note_rate = LogCurves._note_rate

        def note_another(self, trainer):
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = 0.5
            note_rate(self, trainer)

        patch.setattr(LogCurves, "_note_rate", note_another)
        with pytest.raises(Interrupted):
            run(cfg)

    def back_to_the_usual(self, trainer):
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 1e-3
        note_rate(self, trainer)

    monkeypatch.setattr(LogCurves, "_note_rate", back_to_the_usual)
    run(cfg)
    assert len(event_paths(run_directory(cfg), SUFFIX)) == 1
    rates = [e.value for e in events_of(run_directory(cfg)).Scalars("learning_rate/by_step")]
    assert rates == pytest.approx([0.5] * 8 + [1e-3] * 16)


def test_a_curve_has_two_ends(tmp_path):
    with pytest.raises(ValueError, match="points must be at least 2"):
        LogCurves(tmp_path, TrajectoryRecorder(), 1, 4)


def hparams(directory):
    events = events_of(directory)
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    info = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert info.group_name == ""  # the run's own, where several studies have runs of one name
    values = {
        key.partition("_")[2]: getattr(value, value.WhichOneof("kind"))
        for key, value in info.hparams.items()
    }
    return values, events


def test_hparams_of_reached_and_unreached_runs(tiny):
    reached, unreached = tiny("stop.loss=1.5"), tiny("stop.loss=1e-9", "stop.max_steps=2", "seed=1")
    result = run(reached)
    run(unreached)
    values, events = hparams(run_directory(reached))
    assert (values["status"], values["variant"], values["batch_size"]) == ("reached", "adam", 256)
    assert values["settings"] == "betas=[0.9, 0.999] eps=1e-08 weight_decay=0.0 fused=True"
    for name in ("steps", "sfo", "samples", "accuracy"):
        assert events.Scalars(f"result/{name}")[-1].value == pytest.approx(getattr(result, name))
    values, events = hparams(run_directory(unreached))
    assert values["status"] == "exhausted"
    assert "result/steps" not in events.Tags()["scalars"]
    assert "result/accuracy" in events.Tags()["scalars"]


def test_hparams_follow_a_new_answer(tiny):
    run(tiny("stop.loss=1.0"))
    cfg = tiny("stop.loss=1.8")
    result = run(cfg)
    values, events = hparams(run_directory(cfg))
    assert values["threshold"] == 1.8
    assert [event.value for event in events.Scalars("result/steps")] == [result.steps]


def test_the_columns_of_hparams_come_in_the_order_that_helps(tiny):
    cfg = tiny("stop.loss=1.5")
    run(cfg)
    metadata = events_of(run_directory(cfg)).SummaryMetadata("_hparams_/experiment")
    content = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)
    columns = sorted(
        content.experiment.hparam_infos, key=lambda info: (not info.differs, info.name)
    )
    assert tuple(info.display_name for info in columns[:5]) == SHOWN
    assert [info.display_name for info in content.experiment.metric_infos] == list(METRICS)
    assert METRICS[:2] == ("steps", "sfo")
