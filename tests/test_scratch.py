"""A sweep's own files: they are optional, and gone when it is, however it ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cbs_lightning.sweep import scratch
from cbs_lightning.sweep.scratch import OWNER, PREFIX, remove_left_behind, scratch_directory
from cbs_lightning.sweep.stop_file import stop_file_on_signal
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]
HOLD = """
import sys, time
from pathlib import Path
from cbs_lightning.sweep.scratch import scratch_directory
with scratch_directory(Path("study")) as directory:
    (directory / "1.json").touch()
    print(directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _not_said_yet():
    scratch._warn.cache_clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary files are, in this process and in those that it starts."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def full(tmp_path):
    """A disk without any room."""
    disk = tmp_path / "full"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    with pytest.raises(OSError, match="No space"):
        (disk / "large").write_bytes(bytes(2**20))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def sweep(output_dir: Path, *given: str) -> list[str]:
    return ["-m", *TINY, "seed=0,1", "stop.max_steps=2", f"output_dir={output_dir}", *given]


def assert_goes_on(cli, output_dir: Path, jobs: int, reason: str) -> None:
    outcome = cli(*sweep(output_dir, f"jobs={jobs}"))
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("warning: ")]
    assert reason in line and f"using {output_dir / 'digits_tiny'}" in line
    study = output_dir / "digits_tiny"
    assert len(list(study.glob("*/result.json"))) == 2
    assert len(list(study.iterdir())) == 2  # nothing else is left


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_goes_on_without_a_temporary_directory(cli, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert_goes_on(cli, tmp_path / "out", jobs, "No such file or directory")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_goes_on_with_a_full_temporary_directory(cli, tmp_path, monkeypatch, full, jobs):
    monkeypatch.setattr("tempfile.tempdir", str(full))
    assert_goes_on(cli, tmp_path / "out", jobs, "No space left on device")
    assert [path.name for path in full.iterdir()] == ["large"]


def test_a_sweep_needs_no_temporary_directory_at_all(cli, tmp_path, monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    assert_goes_on(cli, tmp_path / "out", 1, "temporary files: no room for the sweep's own files")


def test_without_any_place_there_is_no_live_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    for _ in range(2):
        with scratch_directory(tmp_path / "file" / "study") as nowhere:
            assert nowhere is None
    first, second = capsys.readouterr().out.splitlines()
    assert "using" in first and second.endswith("there is no live progress")


def test_jobs_can_be_told_to_stop_when_the_disk_is_full(tmp_path, monkeypatch):
    def no_room(*_, **__):
        raise OSError("No space left on device")

    with stop_file_on_signal(tmp_path) as stop:
        monkeypatch.setattr(Path, "touch", no_room)
        signal.raise_signal(signal.SIGTERM)
        assert stop.path.exists() and stop.received is signal.SIGTERM


def hold(**environment: str) -> tuple[subprocess.Popen[str], Path]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env=os.environ | environment,
    )  # fmt: skip
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_what_the_dead_left_is_removed_and_what_the_living_have_stays(temporary, tmp_path):
    (one, killed), (other, alive) = hold(), hold()
    assert killed.parent == alive.parent == temporary
    with scratch_directory(tmp_path) as own:
        assert {path.name for path in temporary.iterdir()} == {killed.name, alive.name, own.name}
        one.kill()
        one.wait()
        remove_left_behind(temporary)
        assert {path.name for path in temporary.iterdir()} == {alive.name, own.name}
        assert (alive / "1.json").exists()
    assert [path.name for path in temporary.iterdir()] == [alive.name]
    other.terminate()
    other.wait()


def owned_by_the_dead(place: Path, **owner: object) -> Path:
    directory = place / f"{PREFIX}{len(list(place.iterdir()))}"
    directory.mkdir()
    who = {"machine": socket.gethostname(), "pid": 2**22 + 1} | owner
    (directory / OWNER).write_text(json.dumps(who))
    return directory


def test_what_is_not_known_to_be_this_users_own_and_dead_stays(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / f"{PREFIX}old").mkdir()  # of an earlier release
    damaged = owned_by_the_dead(place)
    (damaged / OWNER).write_text("{")
    owned_by_the_dead(place, machine="another")
    elsewhere = owned_by_the_dead(tmp_path)
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    dead = owned_by_the_dead(place)
    before = {path.name for path in place.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 12345)
        remove_left_behind(place)
        assert {path.name for path in place.iterdir()} == before
    remove_left_behind(place)
    assert {path.name for path in place.iterdir()} == before - {dead.name}
    assert (elsewhere / OWNER).exists()


def test_shared_memory_of_the_dead_is_removed(tmp_path, monkeypatch):
    memory, place = tmp_path / "shm", tmp_path / "place"
    for path in (memory, place):
        path.mkdir()
    monkeypatch.setattr(scratch, "SHARED_MEMORY", memory)
    dead, living, other = 2**22 + 1, os.getpid(), 2**22 + 2
    for pid in (dead, living, other):
        (memory / f"sem.loky-{pid}-abc").touch()
        (memory / f"joblib_memmapping_folder_{pid}_a_b").mkdir()
    owned_by_the_dead(place, pid=dead)
    owned_by_the_dead(place, pid=living)  # whose number another process has now
    remove_left_behind(place)
    left = {path.name for path in memory.iterdir()}
    assert left == {f"sem.loky-{pid}-abc" for pid in (living, other)} | {
        f"joblib_memmapping_folder_{pid}_a_b" for pid in (living, other)
    }


def of_process(pid: int) -> list[str]:
    return [
        path.name for kind in scratch.OF_PROCESS for path in Path("/dev/shm").glob(kind.format(pid))
    ]


def test_a_killed_sweep_leaves_nothing_after_the_next_call(cli, tmp_path, temporary):
    counted = tmp_path / "counted"
    command = [
        sys.executable, str(ROOT / "train.py"), "-m", *TINY, "model=leisurely",
        f"+model.counted={counted}", "seed=0,1", "jobs=2", "stop.loss=1e-9",
        f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    killed = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not counted.exists():
        time.sleep(0.1)
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert list(temporary.glob(f"{PREFIX}*"))
    assert cli(*sweep(tmp_path / "other")).code == 0
    assert not list(temporary.glob(f"*{PREFIX}*"))
    assert not of_process(killed.pid)
