"""Runs of one computation under two names: the second takes its losses from the first."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cbs_lightning.training.run
from cbs_lightning.analysis.curves import curves
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.config.stored import read_stored
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.test_run import forbid_training, interrupt_after

WHOLE = "batch_size=1797"  # the whole data set
REACHED = "stop.loss=2.2"
PAIRS = {
    "both above n": (["batch_size=2048"], ["batch_size=4096"]),
    "n and above": ([WHOLE], ["batch_size=1798"]),
    "slices of a whole batch": ([], ["micro_batch_size=256"]),
    "slices above a batch": (["micro_batch_size=300"], ["micro_batch_size=100000"]),
    "slices of all data": ([WHOLE], ["batch_size=5000", "micro_batch_size=2000"]),
    "chosen, and none": (["micro_batch_size=auto"], []),
}


@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS)
def test_the_second_is_the_first_without_training(
    tiny, tmp_path, monkeypatch, capsys, first, second
):
    trained = run(tiny(*first, REACHED))
    alone = run(tiny(*second, REACHED, f"output_dir={tmp_path / 'alone'}"))
    forbid_training(monkeypatch)
    cfg = tiny(*second, REACHED)
    copied = run(cfg)
    directory, source = run_directory(cfg), run_directory(tiny(*first))
    assert directory != source and copied.config_hash == config_hash(cfg) != trained.config_hash
    assert f"; copied from {source.name}, the same computation" in capsys.readouterr().out
    stored = read_run(directory)
    assert stored.result == copied and copied.losses_from == source.name
    # What it says is what training would have said, but for the time that it took.
    timed = ("seconds", "seconds_per_step", "waited", "losses_from")
    for key, value in vars(alone).items():
        if key not in (*timed, "configuration"):
            assert getattr(copied, key) == value, key
    assert {**copied.configuration, "output_dir": ""} == {**alone.configuration, "output_dir": ""}
    assert read_stored(str(directory))[1] == copied.configuration
    own, other = (read_run(run_directory(each)).trajectory for each in (cfg, tiny(*first)))
    np.testing.assert_array_equal(own.loss, other.loss)
    assert not (directory / store.CHECKPOINT).exists()
    assert run(cfg) == copied  # and is finished


DIFFERENT = {
    "another batch size": ["batch_size=1796"],
    "smaller slices": [WHOLE, "micro_batch_size=1796"],
    "another seed": ["batch_size=4096", "seed=1"],
    "another learning rate": ["batch_size=4096", "optimizer.lr=0.01"],
    "a checkpoint to keep": ["batch_size=4096", "checkpoint.keep=true"],
    "a logger": ["batch_size=4096", "logger=csv"],
    "another study": ["batch_size=4096", "study=other"],
}


@pytest.mark.parametrize("second", DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_not_the_same_or_asks_for_more_is_trained(tiny, second):
    run(tiny(WHOLE, REACHED))
    assert run(tiny(*second, REACHED)).losses_from is None


def test_losses_that_end_too_soon_are_trained_and_then_serve_the_other(tiny, monkeypatch):
    first, second = "batch_size=2048", "batch_size=4096"
    run(tiny(first, "stop.loss=2.28"))
    stricter = run(tiny(second, REACHED))
    assert stricter.losses_from is None
    forbid_training(monkeypatch)
    again = run(tiny(first, REACHED))
    assert again.losses_from == run_directory(tiny(second)).name
    assert (again.steps, again.batch_size) == (stricter.steps, 2048)
    # Copies of copies name the run that was trained.
    assert run(tiny("batch_size=9999", REACHED)).losses_from == again.losses_from


def test_an_interrupted_run_is_finished_by_the_other(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            run(tiny("batch_size=4096", REACHED))
    directory = run_directory(tiny("batch_size=4096"))
    assert (directory / store.CHECKPOINT).exists()
    trained = run(tiny(WHOLE, REACHED))  # two steps are no answer
    assert trained.losses_from is None and trained.status is Status.REACHED
    forbid_training(monkeypatch)
    assert run(tiny("batch_size=4096", REACHED)).steps == trained.steps
    assert not (directory / store.CHECKPOINT).exists()


def test_a_damaged_run_is_not_copied(tiny):
    run(tiny(WHOLE, REACHED))
    (run_directory(tiny(WHOLE)) / store.TRAJECTORY).write_bytes(b"garbage")
    assert run(tiny("batch_size=4096", REACHED)).losses_from is None


def test_its_curves_are_in_tensorboard(tiny):
    run(tiny(WHOLE, REACHED))
    cfg = tiny("batch_size=4096", REACHED)
    run(cfg)
    shown = []
    for each in (cfg, tiny(WHOLE)):
        events = EventAccumulator(str(run_directory(each)))
        events.Reload()
        shown.append([(e.step, e.value) for e in events.Scalars("loss/by_sfo")])
    assert shown[0] == shown[1] != []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_trains_each_computation_once(cli, tmp_path, jobs):
    outcome = cli(
        "-m", *TINY, f"jobs={jobs}", "batch_size=1797,4096,900,2048", REACHED,
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/result.json")]
    copied = {run["batch_size"]: run["losses_from"] is not None for run in results}
    assert copied == {900: False, 1797: False, 2048: True, 4096: True}
    assert len({run["steps"] for run in results if run["batch_size"] != 900}) == 1


def test_two_at_a_time_that_do_not_know_of_each_other_are_both_right(tiny, monkeypatch):
    """Both are trained, since neither has losses yet when the other begins."""
    train, inner = cbs_lightning.training.run.train, []

    def beside(cfg: RunConfig, *rest: object) -> object:
        if not inner:
            inner.append(None)
            inner.append(run(tiny("batch_size=4096", REACHED)))
        return train(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", beside)
    outer = run(tiny(WHOLE, REACHED))
    assert outer.losses_from is None and inner[1].losses_from is None
    assert outer.steps == inner[1].steps


def test_a_copy_is_no_second_measurement(tiny: Callable[..., RunConfig], tmp_path: Path):
    for size in (300, 900, 1797, 4096):
        run(tiny(f"batch_size={size}", REACHED))
    runs, _ = store.read_study(tmp_path / "digits_tiny")
    (curve,) = curves(each.result for each in runs)
    assert len(curve.points) == 4
    assert list(curve.measurements().batch_sizes) == [300, 900, 1797]
