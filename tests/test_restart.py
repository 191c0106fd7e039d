"""Killed at any moment and started again, a run ends as one that was never killed."""

import json
import signal
from pathlib import Path

import pytest
import torch

from cbs_lightning.results.store import CHECKPOINT, RESULT, TRAJECTORY
from tests.conftest import TINY
from tests.forks import moments, points_to_try, ran

KILLS = 24
RUN = [
    *TINY,
    "model=restless",
    "data.augment=true",
    "stop.loss=1e-9",
    "checkpoint.every_seconds=1e-9",
    "checkpoint.keep=true",
    "tensorboard.points=2",
]
SWEEP = ["-m", *RUN, "batch_size=128,600", "stop.max_steps=18"]


def assert_same_runs(one: Path, other: Path) -> None:
    """Same losses, weights, BatchNorm statistics and optimizer state, bit for bit."""
    directories = sorted(path.relative_to(one) for path in one.glob("*/*/"))
    assert directories == sorted(path.relative_to(other) for path in other.glob("*/*/"))
    assert directories
    for directory in directories:
        pair = one / directory, other / directory
        first, second = ((path / TRAJECTORY).read_bytes() for path in pair)
        assert first == second
        first, second = (json.loads((path / RESULT).read_text()) for path in pair)
        for timed in ("seconds", "seconds_per_step", "digest"):
            assert bool(first.pop(timed)) == bool(second.pop(timed))
        for run in (first, second):
            assert run["configuration"].pop("output_dir")
            assert 0 <= run.pop("waited") <= 1  # the share of its time in which it had no core
        assert first == second
        kept = [(path / CHECKPOINT).exists() for path in pair]
        assert kept[0] == kept[1]
        if kept[0]:
            first, second = (torch.load(path / CHECKPOINT, weights_only=True) for path in pair)
            assert_equal(first["state_dict"], second["state_dict"])
            assert_equal(first["optimizer_states"], second["optimizer_states"])
        left_behind = [path.name for path in pair[1].iterdir() if path.name.endswith(".tmp")]
        assert not left_behind


def assert_equal(one, other) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_a_sweep_killed_at_random_moments_ends_as_if_it_never_was(forks, tmp_path):
    kills, seed = 0, 0
    while kills < KILLS:
        arguments = [*SWEEP, f"seed={seed}"]
        undisturbed, disturbed = tmp_path / f"undisturbed{seed}", tmp_path / f"disturbed{seed}"
        ended = ran(forks, arguments, undisturbed)
        assert ended.code == 0, ended.err
        for moment in moments(seed, ended.seconds):
            ended = ran(forks, arguments, disturbed, kill_after=moment)
            if ended.code != -signal.SIGKILL:
                break
            kills += 1
        assert ended.code == 0, ended.err
        assert_same_runs(undisturbed, disturbed)
        seed += 1


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_write_ends_as_if_it_never_was(forks, tmp_path, every):
    """Inside a write the file is cut in half first, as a crash may leave it."""
    arguments = [*RUN, "stop.max_steps=8"]
    undisturbed = tmp_path / "undisturbed"
    points = ran(forks, arguments, undisturbed).points
    inside_checkpoints = [point for point in points if point.startswith("fsync .last.ckpt")]
    assert len(inside_checkpoints) == 4
    for number in points_to_try(points, every):
        disturbed = tmp_path / f"killed_at_{number}"
        ended = ran(forks, arguments, disturbed, kill_at=number)
        assert ended.code == -signal.SIGKILL
        ended = ran(forks, arguments, disturbed)
        assert ended.code == 0, (points[number - 1], ended.err)
        assert_same_runs(undisturbed, disturbed)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("stop.max_steps=5", "stop.max_steps=20"),
        ("stop.max_steps=5", "stop.loss=1.6"),
        ("stop.max_steps=300", "stop.max_steps=500"),
        ("stop.loss=2", "stop.loss=1.6"),
        ("stop.loss=2", "stop.max_steps=1000"),
    ],
)
@pytest.mark.parametrize("batch_size", [4, 256])
def test_a_run_goes_on_from_what_was_kept_as_if_it_had_never_stopped(
    cli, tmp_path, first, second, batch_size
):
    """Also where the budget ended inside a chunk: with b = 4 a chunk is 128 steps."""
    run = [*RUN, "checkpoint.every_seconds=60", f"batch_size={batch_size}"]
    in_one, in_two = tmp_path / "in_one", tmp_path / "in_two"
    assert cli(*run, second, f"output_dir={in_one}").code == 0
    assert cli(*run, first, f"output_dir={in_two}").code == 0
    outcome = cli(*run, second, f"output_dir={in_two}")
    assert outcome.code == 0, outcome.err
    ended_in_first_chunk = batch_size == 4 and first == "stop.max_steps=5"
    said = "there is no checkpoint" if ended_in_first_chunk else "resuming from"
    assert said in outcome.out
    assert_same_runs(in_one, in_two)


def test_without_keep_a_stricter_request_trains_anew_and_says_so(cli, tmp_path):
    run = [*RUN, "checkpoint.keep=false", f"output_dir={tmp_path}"]
    assert cli(*run, "stop.max_steps=4").code == 0
    assert not list(tmp_path.glob("*/*/*.ckpt"))
    outcome = cli(*run, "stop.max_steps=6")
    assert "training starts again" in outcome.out and "resuming" not in outcome.out


def test_a_threshold_met_before_the_kill_ends_the_run_where_it_would_have_ended(cli, tmp_path):
    """A checkpoint of the very last step exists, but no result: nothing more may be trained."""
    run = [*RUN, "stop.loss=2.2", "stop.max_epochs=50"]
    once, again = tmp_path / "once", tmp_path / "again"
    assert cli(*run, f"output_dir={once}").code == 0
    assert cli(*run, f"output_dir={again}").code == 0
    (result,) = again.glob("*/*/result.json")
    result.unlink()
    outcome = cli(*run, f"output_dir={again}")
    assert outcome.code == 0 and "resuming from" in outcome.out
    assert_same_runs(once, again)


@pytest.mark.parametrize("batch_size", [128, 600])  # four and three chunks an epoch
def test_a_run_killed_at_the_ends_of_epochs_again_and_again(forks, tmp_path, batch_size):
    arguments = [*RUN, f"batch_size={batch_size}", "stop.max_epochs=4"]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    points = ran(forks, arguments, undisturbed).points
    saved = [number for number, point in enumerate(points, 1) if "os.remove .last.ckpt" in point]
    chunks = len(saved) // 4
    assert len(saved) == 4 * chunks
    for epochs_of_process in (1, 1, 1):
        after = saved[epochs_of_process * chunks - 1]
        ended = ran(forks, arguments, disturbed, kill_at=after)
        assert ended.code == -signal.SIGKILL
    assert ran(forks, arguments, disturbed).code == 0
    assert_same_runs(undisturbed, disturbed)
