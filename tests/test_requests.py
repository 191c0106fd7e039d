"""One run, asked again and again: every answer is that of a run of its own."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import Classifier
from cbs_lightning.results import store
from cbs_lightning.results.result import Request, Status, answer
from cbs_lightning.results.store import read_run
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.additions import Interrupting
from tests.test_run import forbid_training, interrupt_after


def test_the_window_of_an_earlier_request_is_forgotten(tiny, tmp_path):
    run(tiny("stop.rule=window", "stop.window=300", "stop.loss=1.5"))
    again = run(tiny("stop.rule=window", "stop.loss=1.5"))
    fresh = run(tiny("stop.rule=window", "stop.loss=1.5", f"output_dir={tmp_path / 'fresh'}"))
    assert again.window == fresh.window == 1797
    assert again.steps == fresh.steps


def test_rule_middle_counts_half_a_window_earlier_from_the_same_losses(tiny, tmp_path, monkeypatch):
    asked = ("stop.window=600", "stop.loss=1.5")
    fresh = run(tiny("stop.rule=middle", *asked, f"output_dir={tmp_path / 'fresh'}"))
    by_window = run(tiny("stop.rule=window", *asked))
    forbid_training(monkeypatch)
    by_middle = run(tiny("stop.rule=middle", *asked))
    ahead = by_middle.steps_ahead
    assert ahead == (-(-600 // by_middle.batch_size) - 1) // 2 > 0
    assert by_middle.steps == fresh.steps == by_window.steps - ahead
    missed = run(tiny("stop.rule=middle", *asked, f"stop.max_steps={by_window.steps - 1}"))
    # What K exceeds is the middle of the last window: the steps after it are not told of yet.
    assert (missed.status, missed.steps_exceeded) == (Status.EXHAUSTED, by_middle.steps - 1)
    assert read_run(run_directory(tiny("stop.rule=middle"))).result == missed


def test_why_training_ended_survives_later_requests(tiny, monkeypatch):
    reached = tiny("stop.loss=1.5")
    assert run(reached).ended is Status.REACHED
    exhausted = tiny("stop.loss=1e-9", "stop.max_epochs=12", "seed=1")
    assert run(exhausted).ended is Status.EXHAUSTED
    forbid_training(monkeypatch)
    assert run(tiny("stop.loss=1e-9", "stop.max_epochs=1")).status is Status.EXHAUSTED
    assert run(tiny("stop.loss=2.2", "stop.max_epochs=12", "seed=1")).status is Status.REACHED
    low = Request(1e-3, RuleName.EPOCH, 1797)
    runs = [read_run(run_directory(cfg)) for cfg in (reached, exhausted)]
    # The first stopped because it had reached 1.5: nothing is known of 0.001.
    assert [answer(r.result, r.trajectory, low).status for r in runs] == [None, Status.EXHAUSTED]


def test_an_interrupted_run_that_answers_is_not_called_finished(tiny, monkeypatch, capsys):
    interrupted = f"+callbacks.own._target_={Interrupting.__module__}.Interrupting"
    with pytest.raises(Interrupted):
        run(tiny(interrupted, "+callbacks.own.neutral=true"))
    forbid_training(monkeypatch)
    for _ in range(2):
        early = run(tiny("stop.rule=window", "stop.window=256", "stop.loss=2.4"))
        assert early.status is Status.REACHED and early.ended is Status.INTERRUPTED
        said = capsys.readouterr().out
        assert "answered from the stored losses" in said and "already finished" not in said


def test_diverging_at_the_very_end_of_the_budget_is_diverging(tiny):
    request = ("optimizer=sgd", "optimizer.lr=1e30", "stop.max_steps=2")
    assert [run(tiny(*request)).status for _ in range(2)] == [Status.DIVERGED] * 2


def test_a_failed_retraining_leaves_the_finished_run_alone(tiny, monkeypatch):
    cfg = tiny("stop.loss=1.5")
    finished = run(cfg)

    def fails(*_):
        raise RuntimeError("the roof fell in")

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", fails)
        with pytest.raises(RuntimeError):
            run(tiny("stop.loss=1.0"))
    stored = read_run(run_directory(cfg))
    assert stored.result == finished
    assert len(stored.trajectory) == finished.steps


def test_an_interrupted_retraining_leaves_the_finished_run_alone_and_goes_on(tiny, monkeypatch):
    cfg = tiny("stop.loss=1.5")
    finished = run(cfg)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        with pytest.raises(Interrupted):
            run(tiny("stop.loss=1.0"))
    assert read_run(run_directory(cfg)).result == finished
    assert (run_directory(cfg) / store.CHECKPOINT).exists()
    assert run(tiny("stop.loss=1.0")).loss <= 1.0


def test_an_interrupted_run_answers_for_what_it_has_and_within_any_budget(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 140)
        with pytest.raises(Interrupted):
            run(tiny("stop.loss=1e-9"))
    with monkeypatch.context() as patch:
        forbid_training(patch)
        loose = run(tiny("stop.loss=2"))
        assert loose.status is Status.REACHED and loose.steps < 140
        short = run(tiny("stop.loss=1e-9", "stop.max_steps=100"))
        assert short.status is Status.EXHAUSTED
    assert read_run(run_directory(tiny())).result.ended is Status.INTERRUPTED
    # A threshold that was crossed before the interruption is found when training goes on.
    assert run(tiny("stop.loss=1e-9", "stop.max_epochs=19")).steps_run == 19 * 8


def test_a_signal_during_the_last_chunk_is_not_lost(tiny, monkeypatch):
    interrupt_after(monkeypatch, 8)
    with pytest.raises(Interrupted) as interrupted:
        run(tiny("stop.loss=9"))
    assert interrupted.value.result.status is Status.REACHED
    assert read_run(run_directory(tiny())).result.status is Status.REACHED


def test_a_checkpoint_that_cannot_be_read_is_set_aside(tiny, capsys):
    cfg = tiny("stop.loss=1.5")
    directory = run_directory(cfg)
    directory.mkdir(parents=True)
    (directory / store.CONFIG).write_text("threads: 1\n")
    (directory / store.CHECKPOINT).write_bytes(b"garbage")
    assert run(cfg).status is Status.REACHED
    assert "last.ckpt: damaged" in capsys.readouterr().out
    assert (directory / "last.ckpt.corrupt").exists()


def test_curves_are_not_doubled_by_training_anew(tiny):
    run(tiny("stop.loss=1.8"))
    cfg = tiny("stop.loss=1.5")
    run(cfg)
    events = EventAccumulator(str(run_directory(cfg)))
    events.Reload()
    steps = [event.step for event in events.Scalars("loss/by_step")]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("model", ["resnet20_authors", "resnet18"])
def test_a_last_batch_of_one_that_batch_norm_cannot_take(tmp_path, model):
    output_dir = tmp_path / "out"
    cfg = compose([f"model={model}", "batch_size=449", f"output_dir={output_dir}"])
    with pytest.raises(ConfigError, match=r"batch_size=449.*a batch of 1 of 1797"):
        run(cfg)
    assert not output_dir.exists()


def test_he_et_als_net_takes_a_last_batch_of_one(tmp_path):
    cfg = compose(["batch_size=898", "stop.max_epochs=1", f"output_dir={tmp_path}"])
    assert run(cfg).steps_run == 3
