"""After a worker died, every answer is that of its own request."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus
from joblib.externals.loky.process_executor import TerminatedWorkerError

from cbs_lightning.config.identity import run_directory
from cbs_lightning.sweep.batches import Batches
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.sweep_jobs import sweep_job

ROOT = Path(__file__).parents[1]


class Dying:
    """A launcher whose workers die with the first batch, of which they had begun the first job."""

    def __init__(self, configs, board, meanwhile):
        self.configs, self.board, self.meanwhile = configs, board, meanwhile
        self.launched: list[list[str]] = []

    def launch(self, job_overrides, initial_job_idx):
        seeds = [overrides[0] for overrides in job_overrides]
        self.launched.append(seeds)
        if len(self.launched) == 1:
            self.board.update(1, phase=Phase.RUNNING)
            self.meanwhile()
            raise TerminatedWorkerError("killed")
        results = [run(self.configs[(seed,)]) for seed in seeds]
        return [JobReturn(_return_value=r, status=JobStatus.COMPLETED) for r in results]


def batches(tiny, tmp_path, meanwhile):
    configs = {(f"seed={s}",): tiny(f"seed={s}", "stop.loss=1.8") for s in range(3)}
    board = Board(tmp_path / "board")
    board.directory.mkdir()
    board.plan([JobState(n, "adam", 256, n - 1, 1.8) for n in (1, 2, 3)])
    jobs = {o: sweep_job(number=n, count=3) for n, o in enumerate(configs, 1)}
    launcher = Dying(configs, board, meanwhile)
    return launcher, Batches(launcher, jobs, configs, board, None)


@pytest.mark.parametrize("hours", [-24, 0, 24])
@pytest.mark.parametrize("loss", [2.1, 1.3])
def test_another_sweeps_answer_is_not_taken_whatever_its_date(tiny, tmp_path, loss, hours):
    """Neither that of a looser threshold nor that of a stricter one."""

    def meanwhile():
        for seed in (0, 1):
            cfg = tiny(f"seed={seed}", f"stop.loss={loss}")
            run(cfg)
            for path in run_directory(cfg).iterdir():
                os.utime(path, (time.time() + hours * 3600,) * 2)

    launcher, running = batches(tiny, tmp_path, meanwhile)
    found = running.run()
    assert [result.threshold for result in found.values()] == [1.8] * 3
    assert sorted(result.seed for result in found.values()) == [0, 1, 2]
    for overrides, result in found.items():
        assert result == run(running.configs[overrides])
    # What had begun runs alone, at last; the others as before.
    assert launcher.launched == [["seed=0", "seed=1", "seed=2"], ["seed=1", "seed=2"], ["seed=0"]]


@pytest.mark.parametrize("hours", [-24, 24])
def test_what_a_worker_finished_before_it_died_is_not_run_again(tiny, tmp_path, hours):
    def meanwhile():
        cfg = tiny("seed=1", "stop.loss=1.8")
        run(cfg)
        for path in run_directory(cfg).iterdir():
            os.utime(path, (time.time() + hours * 3600,) * 2)

    launcher, running = batches(tiny, tmp_path, meanwhile)
    found = running.run()
    assert [result.threshold for result in found.values()] == [1.8] * 3
    assert launcher.launched == [["seed=0", "seed=1", "seed=2"], ["seed=2"], ["seed=0"]]


def test_nothing_decides_by_the_time_of_a_file():
    for path in (ROOT / "cbs_lightning").rglob("*.py"):
        if path.name != "board.py":  # which sees by it that a file is another one
            assert "mtime" not in path.read_text(), path


def workers_of(pid: int) -> list[int]:
    """The processes that joblib started for a sweep, without the one that keeps its books."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"popen_loky_posix" in command:
            found.append(int(path.parent.name))
    return found


def rows(out: str) -> dict[int, str]:
    """Steps by seed, as the table at the end of a sweep has them."""
    found = re.findall(r"^ *adam .* 256 +(\d+) +reached +([\d,]+) ", out, re.MULTILINE)
    return {int(seed): steps for seed, steps in found}


def arguments(output_dir: Path, loss: float, jobs: int) -> list[str]:
    counted = output_dir.with_name("counted")
    return [
        "-m", *TINY, "model=counted", f"+model.counted={counted}", "+model.chunk_seconds=0.02",
        "seed=0,1,2", f"stop.loss={loss}", f"jobs={jobs}", f"output_dir={output_dir}",
        "checkpoint.every_seconds=0.2",
    ]  # fmt: skip


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_two_sweeps_with_other_thresholds_and_workers_killed_at_random(tmp_path, cli, kills):
    out = tmp_path / "out"
    running = {
        loss: subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *arguments(out, loss, jobs=2)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for loss in (2.1, 1.9)
    }  # fmt: skip
    rng, killed = random.Random(kills), 0
    while killed < kills and any(sweep.poll() is None for sweep in running.values()):
        time.sleep(rng.uniform(0.1, 2))
        victims = [pid for sweep in running.values() for pid in workers_of(sweep.pid)]
        if victims and (tmp_path / "counted").exists():
            os.kill(rng.choice(victims), signal.SIGKILL)
            killed += 1
    outputs = {loss: sweep.communicate()[0] for loss, sweep in running.items()}
    assert any("a worker process died" in said for said in outputs.values()), outputs
    for loss, said in outputs.items():
        expected = rows(cli(*arguments(tmp_path / f"alone_{loss}", loss, jobs=1)).out)
        assert len(expected) == 3
        assert rows(said).items() <= expected.items(), said
        # What was killed again when it ran alone has failed; the same command has the rest.
        assert len(rows(said)) + len(re.findall(r" failed *$", said, re.MULTILINE)) == 3, said
        assert rows(cli(*arguments(out, loss, jobs=1)).out) == expected
