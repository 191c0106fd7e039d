"""Run directories that the first release wrote, see first_release/README.md, stay valid."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs_lightning.config import compose, config_hash
from tests import tiny
from tests.conftest import TESTS, TINY

FIRST_RELEASE = TESTS / "first_release"
CONFIGURATIONS = json.loads((FIRST_RELEASE / "configurations.json").read_text())
HERE = [*TINY, "trainer.accelerator=cpu"]
FINISHED = {
    "digits_tiny": [*HERE, "stop.loss=1.5", "output_dir=finished"],
    "digits_restless": [
        *HERE, "model=restless", "batch_size=128", "stop.rule=window", "stop.loss=1.2",
        "output_dir=finished",
    ],
}  # fmt: skip
UNFINISHED = {
    "interrupted": [
        *HERE, "model=restless", "batch_size=128", "data.augment=true", "stop.loss=1.2",
        "checkpoint.every_seconds=0.2", "output_dir=interrupted",
    ],
    "killed": [
        *HERE, "model=restless", "optimizer=momentum", "optimizer.lr=3e-4", "batch_size=100",
        "seed=1", "stop.loss=1.2", "checkpoint.every_seconds=0.2", "output_dir=killed",
    ],
}  # fmt: skip
TIMED = ("seconds", "seconds_per_step", "waited", "digest")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Makes a directory the current one, with a copy of what the first release wrote, if named."""

    def go(name, copied=None):
        directory = tmp_path / name
        directory.mkdir()
        monkeypatch.chdir(directory)
        if copied is not None:
            shutil.copytree(FIRST_RELEASE / copied, copied)

    return go


@pytest.fixture
def untrained(monkeypatch):
    def train_chunk(*_):
        raise AssertionError("trained what it knew")

    for model in (tiny.Tiny, tiny.Restless):
        monkeypatch.setattr(model, "train_chunk", train_chunk)


@pytest.fixture
def trained_from(monkeypatch):
    """The steps that there were before each chunk that is trained."""
    steps = []
    train_chunk = tiny.Restless.train_chunk

    def counted(self, *arguments):
        steps.append(self.trainer.global_step)
        return train_chunk(self, *arguments)

    monkeypatch.setattr(tiny.Restless, "train_chunk", counted)
    return steps


def run_of(output_dir, study="*"):
    (directory,) = Path(output_dir).glob(f"{study}/*/")
    return directory


def result_of(directory):
    return json.loads((directory / "result.json").read_text())


def arrays_of(directory):
    with np.load(directory / "trajectory.npz") as stored:
        return dict(stored)


def files_of(directory):
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def stored_steps(directory):
    """What an unfinished run knows of its steps."""
    checkpoint = torch.load(directory / "last.ckpt", weights_only=True)
    recorded = checkpoint["callbacks"]["TrajectoryRecorder"]
    steps = {name: recorded[name].numpy() for name in ("loss", "correct", "size")}
    if (directory / "trajectory.npz").exists():
        assert result_of(directory)["status"] == "interrupted"
        assert_same_bits(steps, arrays_of(directory))
    return steps


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].tobytes() == other[name].tobytes()


@pytest.mark.parametrize("study", FINISHED)
def test_a_finished_run_is_reused(cli, place, untrained, study):
    place("here", copied="finished")
    before = files_of(Path("finished"))
    outcome = cli(*FINISHED[study])
    assert outcome.code == 0, outcome.err
    assert files_of(Path("finished")) == before


def test_a_sweep_reuses_a_finished_run(cli, place, untrained):
    place("here", copied="finished")
    run = run_of("finished", "digits_tiny")
    before = files_of(run)
    outcome = cli("-m", *FINISHED["digits_tiny"])
    assert outcome.code == 0, outcome.err
    assert run_of("finished", "digits_tiny") == run
    assert files_of(run) == before


def test_a_stored_configuration_repeats_a_finished_run_as_what_it_is(cli, place, untrained):
    place("here", copied="finished")
    before = files_of(Path("finished"))
    run = run_of("finished", "digits_restless")
    outcome = cli(f"repeat={run}", "trusted_packages=[tests]", "output_dir=finished")
    assert outcome.code == 0, outcome.err
    assert files_of(Path("finished")) == before


@pytest.mark.parametrize("threshold", [1.8, 2.1])
def test_a_looser_threshold_is_answered_from_the_losses_of_a_finished_run(
    cli, place, untrained, threshold
):
    place("here", copied="finished")
    run = run_of("finished", "digits_tiny")
    losses, before = (run / "trajectory.npz").read_bytes(), result_of(run)
    outcome = cli(*FINISHED["digits_tiny"], f"stop.loss={threshold}")
    assert outcome.code == 0, outcome.err
    assert (run / "trajectory.npz").read_bytes() == losses
    epochs = arrays_of(run)["loss"].reshape(-1, 8).mean(1, dtype=np.float64)
    epoch = int(np.argmax(epochs <= threshold)) + 1
    result = result_of(run)
    assert result["status"] == "reached" and result["threshold"] == threshold
    assert result["steps"] == 8 * epoch < before["steps"]
    assert result["loss"] == pytest.approx(epochs[epoch - 1])
    assert result["config_hash"] == before["config_hash"]
    assert result["steps_run"] == before["steps_run"]


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_run_keeps_its_losses_and_goes_on_to_the_same_end_every_time(
    cli, place, trained_from, name
):
    results, arrays = [], []
    for where in ("one", "other"):
        place(where, copied=name)
        run = run_of(name)
        stored = stored_steps(run)
        trained_from.clear()
        assert cli(*UNFINISHED[name]).code == 0
        assert trained_from[0] == len(stored["loss"])
        assert run_of(name) == run
        assert not list(run.glob("*.ckpt*"))
        arrays.append(arrays_of(run))
        assert_same_bits({key: arrays[-1][key][: len(stored[key])] for key in stored}, stored)
        result = result_of(run)
        assert result["status"] == "reached" and result["loss"] <= 1.2
        assert result["steps"] == len(arrays[-1]["loss"]) > len(stored["loss"])
        results.append({key: result[key] for key in result if key not in TIMED})
    assert results[0] == results[1]
    assert_same_bits(*arrays)
    place("undisturbed")
    assert cli(*UNFINISHED[name]).code == 0
    undisturbed = arrays_of(run_of(name))["loss"]
    # On the machine that made the fixtures there is no difference; on others they are rounded
    # differently up to where the run goes on.
    steps = min(len(undisturbed), len(arrays[0]["loss"]))
    np.testing.assert_allclose(arrays[0]["loss"][:steps], undisturbed[:steps], rtol=0.01)


@pytest.mark.parametrize("known", CONFIGURATIONS, ids=lambda known: " ".join(known["overrides"]))
def test_a_configuration_is_the_run_that_it_was(known):
    cfg = compose(known["overrides"])
    assert config_hash(cfg) == known["config_hash"]
    assert (cfg.study, cfg.names.variant) == (known["study"], known["variant"])
