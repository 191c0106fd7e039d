"""Truncated, empty and garbled files: named, set aside, and the run comes out as it should."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs_lightning.results import store
from cbs_lightning.results.store import DamagedError, read_run, read_study
from tests.conftest import TESTS
from tests.test_restart import RUN, assert_same_runs

HALF = "half"
DAMAGE = {
    "empty": lambda content: b"",
    HALF: lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: np.random.default_rng(0).bytes(len(content)),
    "one bit": lambda content: _flipped(content, len(content) // 2),
    "text": lambda content: b"<html>404</html>",
}
FILES = [store.CHECKPOINT, store.PREVIOUS_CHECKPOINT, store.RESULT, store.TRAJECTORY]


def _flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.fixture(scope="module")
def finished(forks, tmp_path_factory) -> Path:
    """A finished run with both its checkpoints kept."""
    from tests.forks import ran

    output_dir = tmp_path_factory.mktemp("finished")
    assert ran(forks, [*RUN, "stop.max_steps=8"], output_dir).code == 0
    return output_dir


@pytest.fixture(scope="module")
def longer(forks, tmp_path_factory) -> Path:
    """The same run with a larger budget, undisturbed."""
    from tests.forks import ran

    output_dir = tmp_path_factory.mktemp("longer")
    assert ran(forks, [*RUN, "stop.max_steps=12"], output_dir).code == 0
    return output_dir


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_and_set_aside(cli, tmp_path, finished, longer, name, damage):
    if (name, damage) == (store.RESULT, "last byte missing"):
        pytest.skip("it is the end of the last line")
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    (directory,) = output_dir.glob("*/*/")
    path = directory / name
    content = DAMAGE[damage](path.read_bytes())
    path.write_bytes(content)
    outcome = cli(*RUN, "stop.max_steps=12", f"output_dir={output_dir}")
    assert outcome.code == 0, outcome.err
    if name == store.PREVIOUS_CHECKPOINT:  # not looked at while the last one is whole
        assert ": damaged (" not in outcome.out
    else:
        (line,) = [line for line in outcome.out.splitlines() if ": damaged (" in line]
        assert line.startswith(f"{path}: damaged (") and f"kept as {name}.corrupt" in line
        assert (directory / f"{name}.corrupt").read_bytes() == content
        came_from = "previous.ckpt" if name == store.CHECKPOINT else "last.ckpt"
        assert f"resuming from {directory / came_from}" in outcome.out
    assert_same_runs(longer, output_dir)


def test_two_damaged_checkpoints_mean_a_new_start(cli, tmp_path, finished, longer):
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    (directory,) = output_dir.glob("*/*/")
    for name in FILES[:2]:
        (directory / name).write_bytes(b"")
    outcome = cli(*RUN, "stop.max_steps=12", f"output_dir={output_dir}")
    assert outcome.code == 0 and outcome.out.count(": damaged (") == 2
    assert "resuming from" not in outcome.out
    assert_same_runs(longer, output_dir)


def test_every_byte_of_a_trajectory_counts(tmp_path, finished):
    """Wherever a bit is wrong, the losses read are the right ones or none."""
    (directory,) = finished.glob("*/*/")
    expected = read_run(directory)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    content = (directory / store.TRAJECTORY).read_bytes()
    found_out = 0
    for position in range(0, len(content), 3):
        (copy / store.TRAJECTORY).write_bytes(_flipped(content, position))
        try:
            found = read_run(copy).trajectory
        except DamagedError:
            found_out += 1
        else:
            assert np.array_equal(found.loss, expected.trajectory.loss)
            assert np.array_equal(found.correct, expected.trajectory.correct)
    assert found_out > 0.5 * len(range(0, len(content), 3))


def test_every_truncation_of_a_result_is_found_out(tmp_path, finished):
    (directory,) = finished.glob("*/*/")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    content = (directory / store.RESULT).read_bytes().rstrip()
    for length in range(0, len(content), 7):
        (copy / store.RESULT).write_bytes(content[:length])
        with pytest.raises(DamagedError, match=r"result\.json"):
            read_run(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("status", "fine"),
        ("status", None),
        ("steps_run", "many"),
        ("steps_run", 10**6),  # more than there are losses
        ("rule", "step"),
        ("seconds", "long"),
        ("hyperparameters", []),
        ("batch_size", None),
        ("seed", None),
        ("versions", "new"),
    ],
)
def test_a_result_that_makes_no_sense_is_found_out(tmp_path, finished, key, value):
    (directory,) = finished.glob("*/*/")
    copy = tmp_path / "study" / "run"
    shutil.copytree(directory, copy)
    stored = json.loads((copy / store.RESULT).read_text())
    del stored["digest"]
    (copy / store.RESULT).write_text(json.dumps(stored | {key: value}))
    with pytest.raises(DamagedError):
        read_run(copy)
    runs, broken = read_study(copy.parent)
    assert not runs and [run.directory for run in broken] == [copy]


def test_a_result_of_before_is_still_read(tmp_path, finished):
    """Keys that were added later may be missing."""
    (directory,) = finished.glob("*/*/")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    stored = json.loads((copy / store.RESULT).read_text())
    for key in ("commit", "configuration", "machine", "digest", "trajectory_digest"):
        del stored[key]
    (copy / store.RESULT).write_text(json.dumps(stored))
    assert read_run(copy).result.configuration == {}


def test_losses_without_their_result_are_cut_to_what_the_result_knows(tmp_path, finished, longer):
    """A process that died between the two writes leaves a newer trajectory."""
    (short,), (long,) = finished.glob("*/*/"), longer.glob("*/*/")
    copy = tmp_path / "copy"
    shutil.copytree(short, copy)
    shutil.copy(long / store.TRAJECTORY, copy)
    assert len(read_run(copy).trajectory) == 8


def test_a_directory_of_another_configuration_is_left_alone(cli, tmp_path, finished):
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    (directory,) = output_dir.glob("*/*/")
    foreign = replace(read_run(directory).result, config_hash="0" * 16)
    store.write_result(directory, foreign)
    outcome = cli(*RUN, "stop.max_steps=12", f"output_dir={output_dir}")
    assert outcome.code == 1 and "another configuration" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_going_on_under_other_conditions_is_said(cli, tmp_path, finished):
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    outcome = cli(*RUN, "stop.max_steps=12", "threads=2", f"output_dir={output_dir}")
    assert "warning: threads was 1, is 2 now" in outcome.out


def test_a_wrong_digit_anywhere_in_a_result_is_found_out(tmp_path, finished):
    (directory,) = finished.glob("*/*/")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    expected = read_run(directory).result
    content = (directory / store.RESULT).read_bytes()
    digits = [position for position, byte in enumerate(content) if chr(byte).isdigit()]
    assert len(digits) > 100
    for position in digits:
        (copy / store.RESULT).write_bytes(_flipped(content, position))
        try:
            found = read_run(copy).result
        except DamagedError:
            continue
        assert found == expected  # a last digit may not change the number


def _without(*path):
    """The checkpoint, less what is there."""

    def damage(checkpoint):
        values = checkpoint
        for key in path[:-1]:
            values = values[key]
        del values[path[-1]]
        return checkpoint

    return damage


def _with(value, *path):
    """The checkpoint with something else there; a function makes it of what there was."""

    def damage(checkpoint):
        values = checkpoint
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value(values[path[-1]]) if callable(value) else value
        return checkpoint

    return damage


RECORDER = ("callbacks", "TrajectoryRecorder")
TIMED = ("callbacks", "TimedCheckpoint")
OPTIMIZER = ("optimizer_states", 0)
FIT = ("loops", "fit_loop")
FOREIGN = {
    "nothing": lambda checkpoint: {},
    "no dictionary": lambda checkpoint: torch.zeros(3),
    "weights alone": lambda checkpoint: {"state_dict": checkpoint["state_dict"]},
    "another configuration": _with("0" * 16, *TIMED, "origin", "config_hash"),
    "no origin": _without(*TIMED, "origin"),
    "no threads": _without(*TIMED, "origin", "threads"),
    "a billion threads": _with(10**9, *TIMED, "origin", "threads"),
    "no step": _with(0, "global_step"),
    "a step before": _with(6, "global_step"),
    "no weights": _with({}, "state_dict"),
    "weights of another shape": _with(torch.zeros(3), "state_dict", "net.0.weight"),
    "weights of another type": _with(lambda old: old.double(), "state_dict", "net.0.weight"),
    "a layer more": _with(torch.zeros(3), "state_dict", "net.7.weight"),
    "a layer fewer": _without("state_dict", "net.0.bias"),
    "no optimizers": _with([], "optimizer_states"),
    "an optimizer that never stepped": _with({}, *OPTIMIZER, "state"),
    "a parameter without state": _without(*OPTIMIZER, "state", 3),
    "moments of another shape": _with(torch.zeros(3), *OPTIMIZER, "state", 0, "exp_avg"),
    "no second moments": _without(*OPTIMIZER, "state", 0, "exp_avg_sq"),
    "another learning rate": _with(0.5, *OPTIMIZER, "param_groups", 0, "lr"),
    "no learning rate": _without(*OPTIMIZER, "param_groups", 0, "lr"),
    "another group": _with(lambda old: old * 2, *OPTIMIZER, "param_groups"),
    "no callbacks": _with({}, "callbacks"),
    "no recorder": _without(*RECORDER),
    "no losses": _without(*RECORDER, "loss"),
    "fewer losses": _with(lambda old: old[:-1].clone(), *RECORDER, "loss"),
    "losses of another type": _with(lambda old: old.double(), *RECORDER, "loss"),
    "losses that are no numbers": _with(lambda old: old * float("nan"), *RECORDER, "loss"),
    "batches of none": _with(lambda old: old * 0, *RECORDER, "size"),
    "one loss, shown often": _with(lambda old: old[:1].expand(len(old)), *RECORDER, "loss"),
    "no time": _with(float("nan"), *RECORDER, "seconds"),
    "no random numbers": _without(*TIMED, "cpu"),
    "other random numbers": _with(torch.zeros(5056, dtype=torch.uint8), *TIMED, "cpu"),
    "no curves": _without("callbacks", "LogCurves"),
    "no rates": _with([], "callbacks", "LogCurves", "rates"),
    "no loops": _with({}, "loops"),
    "no place in the data": _with({}, *FIT, "state_dict"),
    "another place in the data": _with(2, *FIT, "state_dict", "combined_loader", 0, "position"),
    "no counters": _without(*FIT, "epoch_loop.batch_progress"),
    "other counters": _with(3, *FIT, "epoch_loop.batch_progress", "current", "ready"),
    "no steps counted": _without(*FIT, "epoch_loop.manual_optimization.optim_step_progress"),
    "no epochs": _without(*FIT, "epoch_progress"),
    "no schedulers": _without("lr_schedulers"),
    "of no Lightning": _with("new", "pytorch-lightning_version"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_checkpoint_that_is_not_this_runs_is_set_aside(cli, tmp_path, finished, longer, kind):
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    (directory,) = output_dir.glob("*/*/")
    path = directory / store.CHECKPOINT
    torch.save(FOREIGN[kind](torch.load(path, weights_only=True)), path)
    outcome = cli(*RUN, "stop.max_steps=12", f"output_dir={output_dir}")
    assert outcome.code == 0, outcome.err
    assert f"{path}: damaged (" in outcome.out and f"kept as {path.name}.corrupt" in outcome.out
    assert f"resuming from {directory / store.PREVIOUS_CHECKPOINT}" in outcome.out
    assert_same_runs(longer, output_dir)


def test_a_whole_checkpoint_is_used_whoever_saved_it_again(cli, tmp_path, finished, longer):
    output_dir = tmp_path / "out"
    shutil.copytree(finished, output_dir)
    (directory,) = output_dir.glob("*/*/")
    path = directory / store.CHECKPOINT
    torch.save(torch.load(path, weights_only=True), path)
    outcome = cli(*RUN, "stop.max_steps=12", f"output_dir={output_dir}")
    assert ": damaged (" not in outcome.out and f"resuming from {path}" in outcome.out
    assert_same_runs(longer, output_dir)


def is_illegal(arguments: list[str]) -> bool:
    """Some virtual machines announce instructions that they do not have."""
    command = [sys.executable, str(TESTS.parent / "train.py"), *arguments]
    return subprocess.run(command, check=False).returncode == -signal.SIGILL


@pytest.mark.parametrize(
    "options",
    [
        ["optimizer=sgd"], ["optimizer=momentum"], ["optimizer=momentum_ema"],
        ["optimizer=adam_monotone"], ["optimizer=amsgrad"], ["optimizer=adamw"],
        ["warmup_samples=2000"], ["micro_batch_size=100"], ["lr_scaling=sqrt"],
        ["model=tiny"], ["data.replacement=true"], ["trainer.precision=bf16-mixed"],
        ["batch_size=5000"], ["batch_size=33"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_checkpoints_of_every_kind_of_run_are_whole(cli, tmp_path, options):
    run = [*RUN, *options, f"output_dir={tmp_path}"]
    if "trainer.precision=bf16-mixed" in options and is_illegal([*run, "stop.max_steps=2"]):
        pytest.skip("bfloat16 ends in an illegal instruction on this processor")
    assert cli(*run, "stop.max_steps=30").code == 0
    outcome = cli(*run, "stop.max_steps=60")
    assert outcome.code == 0, outcome.err
    assert "resuming from" in outcome.out and "damaged" not in outcome.out


def test_one_and_one_point_nought_are_one_setting(cli, tmp_path):
    run = [*RUN, f"output_dir={tmp_path}"]
    assert cli(*run, "stop.max_steps=8", "optimizer.weight_decay=0").code == 0
    outcome = cli(*run, "stop.max_steps=12", "optimizer.weight_decay=0.0")
    assert outcome.code == 0, outcome.err
    assert "resuming from" in outcome.out and "damaged" not in outcome.out
