"""A disk that fails at any write: never a damaged file, never a lost finished run."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cbs_lightning.callbacks import TimedCheckpoint
from cbs_lightning.results import store
from cbs_lightning.results.checkpoints import read_checkpoint
from cbs_lightning.results.result import Request, Status, answer
from cbs_lightning.results.store import read_run
from cbs_lightning.results.trajectory import RuleName
from tests.conftest import TINY
from tests.forks import points_to_try, ran
from tests.test_restart import RUN, assert_same_runs

# A full disk stays full, a write is cut short once, ...
FAULTS = [("ENOSPC", True), ("SHORT", False), ("EACCES", False), ("EROFS", True), ("EIO", False)]
EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


def faults_at(number: int, every: bool) -> list[tuple[str, bool]]:
    return FAULTS if every else [FAULTS[number % len(FAULTS)]]


def assert_one_clear_line(ended, where: str) -> None:
    assert ended.code in (0, 1)
    lines = ended.err.splitlines()
    assert len(lines) == ended.code, (where, ended.err)
    assert all(line.startswith("error: output_dir=") for line in lines)


def assert_nothing_damaged(output_dir: Path) -> None:
    for directory in output_dir.glob("*/*/"):
        assert not list(directory.glob("*.corrupt"))
        for checkpoint in directory.glob("*.ckpt"):
            read_checkpoint(checkpoint.read_bytes())
        if (directory / store.RESULT).exists():
            read_run(directory)


@EVERY
def test_a_new_run_whose_disk_fails(forks, tmp_path, every):
    arguments = [*RUN, "stop.max_steps=6"]
    undisturbed = tmp_path / "undisturbed"
    points = ran(forks, arguments, undisturbed).points
    failed = 0
    for number in points_to_try(points, every):
        for fault, lasting in faults_at(number, every):
            where = f"{fault} at {points[number - 1]}"
            disturbed = tmp_path / f"{fault}_at_{number}"
            ended = ran(forks, arguments, disturbed, fail_at=number, fault=fault, lasting=lasting)
            assert_one_clear_line(ended, where)
            assert_nothing_damaged(disturbed)
            failed += ended.code
            ended = ran(forks, arguments, disturbed)
            assert ended.code == 0, (where, ended.err)
            assert_same_runs(undisturbed, disturbed)
    assert failed > 10


@EVERY
def test_a_finished_run_survives_a_disk_that_fails_later(forks, tmp_path, every):
    finished, undisturbed = tmp_path / "finished", tmp_path / "undisturbed"
    assert ran(forks, [*RUN, "stop.max_steps=4"], finished).code == 0
    stricter = [*RUN, "stop.max_steps=6"]
    shutil.copytree(finished, undisturbed)
    points = ran(forks, stricter, undisturbed).points
    four_steps = Request(1e-9, RuleName.EPOCH, 1797, 4)
    for number in points_to_try(points, every):
        for fault, lasting in faults_at(number, every):
            disturbed = tmp_path / f"{fault}_at_{number}"
            shutil.copytree(finished, disturbed)
            ended = ran(forks, stricter, disturbed, fail_at=number, fault=fault, lasting=lasting)
            assert_one_clear_line(ended, f"{fault} at {points[number - 1]}")
            assert_nothing_damaged(disturbed)
            (directory,) = disturbed.glob("*/*/")
            run = read_run(directory)
            assert answer(run.result, run.trajectory, four_steps).status is Status.EXHAUSTED
            if run.result.steps_run == 4:
                assert run.result.ended is Status.EXHAUSTED
            assert ran(forks, stricter, disturbed).code == 0
            assert_same_runs(undisturbed, disturbed)


def test_a_disk_that_is_really_full(cli, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    try:
        arguments = [*TINY, "stop.max_steps=8", f"output_dir={small / 'out'}"]
        assert cli(*arguments).code == 0
        before = {path: path.read_bytes() for path in small.glob("out/*/*/*") if path.is_file()}
        outcome = cli(
            *arguments, "model=resnet20", "checkpoint.every_seconds=1e-9", "batch_size=64"
        )
        assert outcome.code == 1
        (line,) = outcome.err.splitlines()
        assert f"output_dir={small / 'out'}: No space left on device" in line
        assert "run the same command to resume" in line
        assert {path: path.read_bytes() for path in before} == before
        assert_nothing_damaged(small / "out")
        assert "already finished" in cli(*arguments).out
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_an_output_directory_that_vanishes(cli, tmp_path, monkeypatch):
    output_dir = tmp_path / "out"
    save = TimedCheckpoint._save

    def vanish(self, trainer):
        shutil.rmtree(output_dir)
        save(self, trainer)

    arguments = [*TINY, "stop.max_steps=8", "checkpoint.every_seconds=1e-9"]
    with monkeypatch.context() as patch:
        patch.setattr(TimedCheckpoint, "_save", vanish)
        outcome = cli(*arguments, f"output_dir={output_dir}")
    assert outcome.code == 1
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: output_dir={output_dir}: No such file or directory")
    assert cli(*arguments, f"output_dir={output_dir}").code == 0


@pytest.mark.parametrize("fault", ["EACCES", "EROFS", "ENOSPC"])
def test_an_output_directory_that_cannot_be_written_to_at_all(forks, tmp_path, fault):
    out = tmp_path / "out"
    ended = ran(forks, [*RUN, "stop.max_steps=6"], out, fail_at=1, fault=fault, lasting=True)
    assert_one_clear_line(ended, fault)
    assert ended.code == 1 and not out.exists()
