"""Told to stop, a run saves itself first, and a sweep stops after its running jobs have."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from cbs_lightning.cli import jobs
from cbs_lightning.config.identity import run_directory
from cbs_lightning.models import Classifier
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.sweep.job import SweepJob
from cbs_lightning.training import train as training
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.outcome import Outcome
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.forks import Ended, Forks, ran
from tests.test_cli import ROOT, command

SLOWLY = [*TINY, "model=counted", "stop.loss=1e-9", "stop.max_epochs=500"]
SLOW = pytest.mark.slow
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
    time.sleep(0.5)


def statuses(tmp_path: Path) -> list[Status | None]:
    found = [read_run(path.parent).result.status for path in tmp_path.glob("out/*/*/result.json")]
    for path in tmp_path.glob("out/*/*/result.json"):
        assert (path.parent / store.CHECKPOINT).exists()
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
    assert "interrupted" in ended.out and "run the same command to resume" in ended.out
    assert ended.err == ""
    assert statuses(tmp_path) == [Status.INTERRUPTED]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_sweep_stops_after_the_current_job_has_saved_itself(forks, tmp_path, number, code):
    ended = told(forks, tmp_path, "-m", "seed=0,1", signals=[number])
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.out + ended.err
    assert statuses(tmp_path) == [Status.INTERRUPTED]


@pytest.mark.parametrize(
    ("number", "jobs"),
    [(signal.SIGINT, 4), (signal.SIGTERM, 1), pytest.param(signal.SIGTERM, 4, marks=SLOW)],
)
def test_a_parallel_sweep_stops_after_all_running_jobs_have_saved_themselves(
    tmp_path, number, jobs
):
    """The signal reaches the workers too, as it does from a terminal."""
    sweep = command(
        "-m", *SLOWLY, f"+model.counted={tmp_path / 'counted'}", f"seed=range({jobs})",
        f"output_dir={tmp_path / 'out'}", "jobs=2",
    )  # fmt: skip
    process = start(sweep)
    running = min(jobs, 2)
    wait_until_training(tmp_path, running)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "run the same command to resume" in out and "Traceback" not in out + err
    if jobs > 1:  # else there is nothing to do at the same time
        assert "stopping: running jobs are saving their state" in out
        assert err == "interrupted; run the same command to resume\n"
    assert statuses(tmp_path) == [Status.INTERRUPTED] * running
    assert sorted((tmp_path / "counted").read_text().split()) == ["0", "1"][:running]


def test_a_second_signal_is_not_held_back(forks, tmp_path):
    """It comes inside a chunk that takes ten minutes."""
    ended = told(forks, tmp_path, "+model.chunk_seconds=600", signals=[signal.SIGTERM] * 2)
    assert ended.code == -signal.SIGTERM


@pytest.mark.parametrize(("owner", "place"), [(training, "build_model"), (Outcome, "finish")])
def test_a_signal_outside_training_ends_with_its_own_code(cli, tmp_path, monkeypatch, owner, place):
    inner = getattr(owner, place)

    def signalled(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return inner(*arguments)

    arguments = [*TINY, "stop.max_steps=2", f"output_dir={tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, signalled)
        assert cli(*arguments).code == 143
    outcome = cli(*arguments)
    assert outcome.code == 0
    assert ("already finished" in outcome.out) == (place == "finish")  # which was held back


def test_a_signal_during_the_test_pass_costs_no_training(tiny, monkeypatch, real_data):
    cfg = tiny(
        "data=mnist",
        "model=resnet18",
        "batch_size=256",
        "stop.max_steps=2",
        f"data_dir={real_data}",
    )

    def signalled(*_):
        raise SystemExit(143)

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "test_step", signalled)
        with pytest.raises(Interrupted) as interrupted:
            run(cfg)
    assert interrupted.value.exit_code == 143
    (path,) = run_directory(cfg).glob("last.ckpt")
    assert torch.load(path, weights_only=True)["global_step"] == 2


def test_a_reader_that_goes_away_does_not_end_a_run(tmp_path):
    arguments = [*TINY, "stop.max_epochs=60", "stop.loss=1e-9", "progress.every_seconds=0.01"]
    process = start(command(*arguments, f"output_dir={tmp_path / 'out'}"))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 0 and err == ""
    (path,) = tmp_path.glob("out/*/*/result.json")
    assert read_run(path.parent).result.status is Status.EXHAUSTED


LAUNCHER = """
import signal, sys
if __name__ != "__main__":
    raise SystemExit
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


@pytest.mark.parametrize(
    "sweep",
    [
        [],
        pytest.param(["-m", "seed=0,1", "jobs=2"], marks=SLOW),
    ],
)
def test_a_clusters_warning_is_handed_over_after_the_run_was_saved(tmp_path, sweep):
    counted = f"+model.counted={tmp_path / 'counted'}"
    arguments = [*sweep[:1], *SLOWLY, counted, f"output_dir={tmp_path / 'out'}", *sweep[1:]]
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    process = start([sys.executable, str(tmp_path / "launcher.py"), *arguments])
    wait_until_training(tmp_path, 2 if sweep else 1)
    process.send_signal(signal.SIGUSR2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert out.index("interrupted") < out.index("handed over")
    assert statuses(tmp_path) == [Status.INTERRUPTED] * (2 if sweep else 1)


def test_a_worker_that_still_imports_leaves_signals_to_its_sweep(monkeypatch, tmp_path):
    class ImportingError(Exception):
        pass

    def importing():
        signal.raise_signal(signal.SIGINT)
        raise ImportingError

    monkeypatch.setattr(jobs, "load_frameworks", importing)
    job = SweepJob(1, 2, 2, started=0.0, stop_file=str(tmp_path / "stop"))
    with pytest.raises(ImportingError):  # not KeyboardInterrupt
        jobs.run_job(OmegaConf.create({"sweep": json.dumps(asdict(job))}))
