"""Told to stop, a run saves itself first, and a sweep stops after its running jobs have."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cbs_lightning import results
from cbs_lightning.results import Status, read_run
from tests.conftest import TINY
from tests.forks import Ended, Forks, ran
from tests.test_cli import ROOT, command

SLOWLY = [*TINY, "model=counted", "stop.loss=1e-9", "stop.max_epochs=500"]
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR2, 140)]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal has it."""
    return subprocess.Popen(
        arguments,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_training(tmp_path: Path, runs: int) -> None:
    counted = tmp_path / "counted"
    until = time.monotonic() + 300
    while not counted.exists() or len(counted.read_text().split()) < runs:
        assert time.monotonic() < until, "it does not train"
        time.sleep(0.1)
    time.sleep(1)


def statuses(tmp_path: Path) -> list[Status | None]:
    found = [read_run(path.parent).result.status for path in tmp_path.glob("out/*/*/result.json")]
    for path in tmp_path.glob("out/*/*/result.json"):
        assert (path.parent / results.CHECKPOINT).exists()
    return found


def told(forks: Forks, tmp_path: Path, *arguments: str, signals: list[int]) -> Ended:
    """What a run, or a sweep, comes to that gets these signals as soon as it trains."""
    counted = tmp_path / "counted"
    arguments = [*arguments, *SLOWLY, f"+model.counted={counted}"]
    return ran(forks, arguments, tmp_path / "out", signals=signals, trains=str(counted))


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_run_saves_itself_and_ends(forks, tmp_path, number, code):
    ended = told(forks, tmp_path, signals=[number])
    assert ended.code == code, ended.err
    assert "interrupted" in ended.out and "the same command goes on" in ended.out
    assert ended.err == ""
    assert statuses(tmp_path) == [Status.INTERRUPTED]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_sweep_stops_after_the_current_job_has_saved_itself(forks, tmp_path, number, code):
    ended = told(forks, tmp_path, "-m", "seed=0,1", signals=[number])
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.out + ended.err
    assert statuses(tmp_path) == [Status.INTERRUPTED]


def test_a_parallel_sweep_stops_after_all_running_jobs_have_saved_themselves(tmp_path):
    """The signal reaches the workers too, as it does from a terminal."""
    sweep = command(
        "-m", *SLOWLY, f"+model.counted={tmp_path / 'counted'}", "seed=0,1,2,3",
        f"output_dir={tmp_path / 'out'}",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    process = start(sweep)
    wait_until_training(tmp_path, 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopping: the running jobs save themselves" in out
    assert err.splitlines() == ["interrupted; the same command goes on with what is not finished"]
    assert statuses(tmp_path) == [Status.INTERRUPTED] * 2
    assert sorted((tmp_path / "counted").read_text().split()) == ["0", "1"]


def test_a_second_signal_is_not_held_back(forks, tmp_path):
    ended = told(forks, tmp_path, signals=[signal.SIGTERM] * 2)
    assert ended.code in (143, -signal.SIGTERM)


LAUNCHER = """
import signal, sys
def queue_again(number, frame):
    print("handed over", flush=True)
    sys.exit(75)
signal.signal(signal.SIGUSR2, queue_again)
sys.argv = ["train.py", *sys.argv[1:]]
from cbs_lightning.cli import one_line_errors
from train import train
with one_line_errors():
    train()
"""


def test_a_clusters_warning_is_handed_over_after_the_run_was_saved(tmp_path):
    counted = f"+model.counted={tmp_path / 'counted'}"
    arguments = [*SLOWLY, counted, f"output_dir={tmp_path / 'out'}"]
    process = start([sys.executable, "-c", LAUNCHER, *arguments])
    wait_until_training(tmp_path, 1)
    process.send_signal(signal.SIGUSR2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert out.index("interrupted") < out.index("handed over")
    assert statuses(tmp_path) == [Status.INTERRUPTED]
