"""Two processes never work on the same run directory."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import UserError
from cbs_lightning.results.locks import LOCK, BusyError, locked
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import CONFIG, read_run
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.sweep_jobs import sweep_job

ROOT = Path(__file__).parents[1]
HOLD = """
import sys, time
from pathlib import Path
from cbs_lightning.results.locks import locked
with locked(Path(sys.argv[1]), "holder", wait=True):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(directory: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def test_a_lock_is_held_against_others_and_given_back_by_the_dead(tmp_path, capsys):
    holder = hold(tmp_path)
    with pytest.raises(BusyError, match="another process"), locked(tmp_path, "run", wait=False):
        pass
    threading.Timer(1, lambda: os.kill(holder.pid, signal.SIGKILL)).start()
    with locked(tmp_path, "run", wait=True):
        assert holder.wait() == -signal.SIGKILL
    assert "run: locked by another process; waiting" in capsys.readouterr().out
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path, "run", wait=False):
        pass


def test_waiting_ends_when_the_sweep_stops(tmp_path):
    holder = hold(tmp_path)
    stop_file = tmp_path / "stop"
    threading.Timer(1, stop_file.touch).start()
    with (
        pytest.raises(BusyError, match="until the sweep stopped"),
        locked(tmp_path, "run", wait=True, gives_up=stop_file.exists),
    ):
        pass
    holder.kill()
    holder.wait()


def test_a_run_that_is_known_needs_no_lock(tiny):
    cfg = tiny("stop.max_steps=2")
    result = run(cfg)
    holder = hold(run_directory(cfg))
    try:
        assert run(cfg) == result
        with pytest.raises(BusyError):
            run(tiny("stop.max_steps=4"), sweep_job(waits=False))
    finally:
        holder.kill()
        holder.wait()
    assert run(tiny("stop.max_steps=4"), sweep_job(waits=False)).steps_run == 4


@pytest.mark.parametrize("at_a_time", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_sweeps_at_once_train_every_run_exactly_once(tmp_path, at_a_time):
    counted = tmp_path / "counted"
    command = [
        sys.executable, str(ROOT / "train.py"), "-m", *TINY, "model=counted",
        f"+model.counted={counted}", "seed=0,1,2,3,4,5",
        "stop.loss=1e-9", "stop.max_epochs=4", f"output_dir={tmp_path / 'out'}",
        f"jobs={at_a_time}",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    sweeps = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    outputs = [sweep.communicate()[0].decode() for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], outputs
    assert sorted(counted.read_text().split()) == ["0", "1", "2", "3", "4", "5"], outputs
    directories = list((tmp_path / "out").glob("*/*/"))
    assert [read_run(path).result.status for path in directories] == [Status.EXHAUSTED] * 6
    for output in outputs:  # both report all of it
        assert "at b = 256" in output or output.count("budget used up") >= 6


def test_a_sweep_comes_back_to_what_another_process_works_on(cli, tmp_path, tiny):
    directory = run_directory(tiny("seed=0", "stop.max_steps=2"))
    directory.mkdir(parents=True)
    holder = hold(directory)
    begun = time.monotonic()
    threading.Timer(3, holder.kill).start()
    outcome = cli("-m", *TINY, "seed=0,1", "stop.max_steps=2", f"output_dir={tmp_path}")
    assert time.monotonic() - begun > 1
    assert outcome.code == 0, outcome.err
    lines = [line for line in outcome.out.splitlines() if line.startswith("[")]
    assert "[1/2]" in lines[0] and "locked by another process; retrying at the end" in lines[0]
    assert "[2/2]" in lines[1] and "budget used up" in lines[1]
    assert "[1/2]" in lines[-1] and "budget used up" in lines[-1]
    holder.wait()


def test_a_file_system_without_locks_takes_one_line(tiny, monkeypatch):
    """A lock that the dead do not give back would be worse than none."""

    def missing(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    cfg = tiny("stop.max_steps=2")
    with pytest.raises(UserError, match="Function not implemented"):
        run(cfg)
    assert not (run_directory(cfg) / CONFIG).exists()


def test_a_directory_that_vanishes_while_it_is_waited_for_takes_one_line(tiny):
    cfg = tiny("stop.max_steps=2")
    directory = run_directory(cfg)
    directory.mkdir(parents=True)
    holder = hold(directory)

    def vanish():
        shutil.rmtree(directory)
        holder.kill()

    threading.Timer(1, vanish).start()
    with pytest.raises(UserError, match="No such file or directory"):
        run(cfg)
    holder.wait()


WRITE = """
import os, socket, sys
from pathlib import Path
from cbs_lightning.files import write_atomically
path, name = Path(sys.argv[1]), sys.argv[2]
os.getpid = lambda: 1  # as a process on another machine may have
socket.gethostname = lambda: name
for _ in range(300):
    write_atomically(path, name.encode() * 50_000)
"""


def test_two_machines_that_write_one_file_leave_it_whole(tmp_path):
    path = tmp_path / "file"
    names = ("one", "two")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(path), name], cwd=ROOT) for name in names
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.read_bytes())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {name.encode() * 50_000 for name in names} and len(seen) == 2
    assert [left.name for left in tmp_path.iterdir()] == ["file"]
