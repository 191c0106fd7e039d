"""A sweep on a real SLURM: whatever happens to a job, its run ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from tests.conftest import TINY
from tests.slurm_cluster import CPUS, cluster, obstacle
from tests.test_cli import ROOT, assert_one_clear_line
from tests.test_restart import assert_same_runs
from tests.test_search_sweep import GRID, SEARCH, stored

pytestmark = pytest.mark.slurm
EPOCHS = 300
PATIENCE = 300  # seconds; a test that is well does not need them
SLURM = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "jobs=auto"]
STRANGERS_CODE = """
import pathlib
import time

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, counted):
        super().__init__()
        self.counted = pathlib.Path(counted)
        layers = torch.nn.Linear(8, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
        self.net = torch.nn.Sequential(*layers)

    def on_train_start(self):
        with self.counted.open("a") as lines:
            lines.write(f"{self.trainer.datamodule.seed}\\n")

    def on_train_epoch_end(self):
        if not self.counted.with_name("go").exists():
            time.sleep(1)

    def training_step(self, batch, _):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)]


class Points(L.LightningDataModule):
    def __init__(self, batch_size, seed):
        super().__init__()
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage):
        inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        self.points = TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())

    def train_dataloader(self):
        return DataLoader(self.points, self.batch_size, shuffle=True)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if (reason := obstacle()) is not None:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment | {"PYTHONPATH": str(ROOT)}


class Sweep:
    """`python train.py -m` of runs that take their time until they are let go.

    They are told apart by their seeds.
    """

    def __init__(
        self, environment: dict[str, str], directory: Path, *arguments: str, **launcher: int
    ) -> None:
        self.environment = environment
        self.directory = directory
        self.counted = directory / "counted"
        self.launcher = [f"hydra.launcher.{key}={value}" for key, value in launcher.items()]
        self.arguments = [
            "-m", *TINY, "data.augment=true", "model=leisurely", f"+model.counted={self.counted}",
            "batch_size=600", "stop.loss=1e-9", f"stop.max_epochs={EPOCHS}", *arguments,
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        return self._train("cluster", *SLURM, *self.launcher)

    def _train(self, folder: str, *arguments: str) -> subprocess.Popen[str]:
        where = f"output_dir={self.directory / folder}"
        return subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *self.arguments, *arguments, where],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def begun(self) -> list[int]:
        """The seed of every training that began."""
        return [int(line) for line in self.counted.read_text().split()]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not (self.counted.exists() and condition()):
            assert time.monotonic() < until, self.call("squeue") + self.logs()
            time.sleep(0.1)

    def log_of(self, seed: int) -> Path:
        (log,) = self.directory.glob(f"cluster/*/_slurm/*-seed{seed}-*.log")
        return log

    def job_of(self, seed: int) -> str:
        return self.log_of(seed).readlink().parent.name

    def call(self, *command: str) -> str:
        return subprocess.check_output(command, env=self.environment, text=True)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.directory.glob("cluster/*/_slurm/*.log"))

    def assert_as_undisturbed(self) -> None:
        here = self._train("here")
        out, err = here.communicate(timeout=PATIENCE)
        assert here.returncode == 0, out + err
        for folder in self.directory.glob("cluster/*/_slurm"):
            folder.rename(self.directory / "logs")
        assert_same_runs(self.directory / "here", self.directory / "cluster")


class StrangersSweep(Sweep):
    """Of a module and data that only the folder has in which it is started."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        super().__init__(
            {key: environment[key] for key in environment.keys() - {"PYTHONPATH"}}, directory
        )
        for name, text in {
            "mine.py": STRANGERS_CODE,
            "conf/model/net.yaml": f"_target_: mine.Net\ncounted: {self.counted}\n",
            "conf/data/points.yaml": "_target_: mine.Points\n",
        }.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        self.arguments = [
            "-m", "--config-dir", "conf", "model=net", "data=points", "batch_size=40", "seed=0,1",
            "threads=1", "stop.loss=1e-9", f"stop.max_epochs={EPOCHS}", "checkpoint.keep=true",
            "report=false",
        ]  # fmt: skip


DISTURBANCES = {
    0: ("scontrol", "requeue"),
    1: ("scancel", "--signal=USR2"),
    2: ("scancel", "--signal=TERM"),
}


def test_jobs_that_are_requeued_or_get_signals_end_as_if_they_had_not(environment, tmp_path):
    sweep = Sweep(environment, tmp_path, "seed=0,1,2", array_parallelism=2)
    process = sweep.start()
    left, most = dict(DISTURBANCES), 0
    while left:
        sweep.wait_until(lambda: not left.keys().isdisjoint(sweep.begun()))
        states = sweep.call("squeue", "--array", "--noheader", "--format=%T").split()
        most = max(most, states.count("RUNNING"))
        for seed in [seed for seed in sweep.begun() if seed in left]:
            sweep.call(*left.pop(seed), sweep.job_of(seed))
    sweep.let_go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err + sweep.logs()
    assert err == "" and 1 <= most <= 2
    assert out.startswith("3 jobs, 2 at a time (hydra.launcher.array_parallelism=2)\n")
    logs = tmp_path / "cluster" / "digits_leisurely" / "_slurm"
    assert f"; logs: {logs}/<run>.log\n" in out
    assert sorted(sweep.begun()) == [0, 0, 1, 1, 2, 2]
    assert sweep.logs().count("resuming from") == 3
    assert out.count(f": budget used up after {3 * EPOCHS} steps") == 3
    assert not list(logs.glob("cbs_lightning-*"))  # its board
    sweep.assert_as_undisturbed()


def test_a_strangers_module_is_requeued_and_ends_as_if_it_had_not_been(environment, tmp_path):
    """Its code, its scheduler and its random numbers, from a folder that no package knows."""
    sweep = StrangersSweep(environment, tmp_path)
    process = sweep.start()
    for seed, disturbance in ((0, DISTURBANCES[0]), (1, DISTURBANCES[2])):
        sweep.wait_until(lambda seed=seed: seed in sweep.begun())
        sweep.call(*disturbance, sweep.job_of(seed))
    sweep.wait_until(lambda: sorted(sweep.begun()) == [0, 0, 1, 1])
    sweep.let_go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and err == "", out + err + sweep.logs()
    assert sweep.logs().count("resuming from") == 2
    assert out.count(f": budget used up after {3 * EPOCHS} steps") == 2
    sweep.assert_as_undisturbed()


def test_a_run_may_time_out_so_often_and_no_more(environment, tmp_path):
    # In so short a time submitit takes every warning for the end of it.
    sweep = Sweep(environment, tmp_path, timeout_min=9, max_num_timeout=0)
    process = sweep.start()
    sweep.wait_until(lambda: bool(sweep.begun()))
    sweep.call("scancel", "--signal=USR1", sweep.job_of(0))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and err == "", out + err
    assert "Job not requeued because: timed-out too many times" in out
    assert f"its log: {sweep.log_of(0)}\n" in out
    (result,) = tmp_path.glob("cluster/*/*/result.json")
    assert read_run(result.parent).result.status is Status.INTERRUPTED


@pytest.mark.slow
def test_a_run_goes_on_after_its_time_was_up(environment, tmp_path):
    sweep = Sweep(environment, tmp_path, timeout_min=1, signal_delay_s=20)
    process = sweep.start()
    sweep.wait_until(lambda: len(sweep.begun()) == 2)
    sweep.let_go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and err == "", out + err + sweep.logs()
    assert "this job is timed-out" in sweep.logs() and "resuming from" in sweep.logs()
    sweep.assert_as_undisturbed()


@pytest.mark.slow
def test_a_run_that_is_preempted_goes_on(environment, tmp_path):
    sweep = Sweep(environment, tmp_path, cpus_per_task=CPUS)
    process = sweep.start()
    sweep.wait_until(lambda: len(sweep.begun()) == 1)
    urgent = ("--partition=urgent", f"--cpus-per-task={CPUS}", "--output=/dev/null")
    sweep.call("sbatch", *urgent, "--wrap=sleep 1")
    sweep.wait_until(lambda: len(sweep.begun()) == 2)
    sweep.let_go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and err == "", out + err + sweep.logs()
    assert "this job is preempted" in sweep.logs() and "resuming from" in sweep.logs()
    sweep.assert_as_undisturbed()


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("partition=nowhere", ["hydra.launcher.partition=nowhere", "allowed: main, urgent"]),
        ("cpus_per_task=1000", ["hydra.launcher.cpus_per_task=1000", f"allowed: <= {CPUS}"]),
        ("gpus_per_node=1", ["hydra.launcher: sbatch refuses", "gres"]),
    ],
)
def test_what_slurm_would_not_take_is_not_submitted(
    environment, cli, tmp_path, monkeypatch, argument, parts
):
    monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    output_dir = tmp_path / "out"
    queue = ["squeue", "--noheader", "--array", "--states=all", "--format=%i"]
    before = subprocess.check_output(queue, env=os.environ)
    jobs = ("seed=0,1", f"output_dir={output_dir}")
    outcome = cli("-m", *TINY, *jobs, *SLURM, f"hydra.launcher.{argument}")
    assert_one_clear_line(outcome, parts, output_dir)
    assert not set(subprocess.check_output(queue, env=os.environ).split()) - set(before.split())


def test_jobs_wait_for_nodes_that_are_away_and_that_is_told(environment, tmp_path):
    sweep = Sweep(environment, tmp_path)
    sweep.let_go()
    sweep.call("scontrol", "update", "nodename=ALL", "state=drain", "reason=maintenance")
    try:
        process = sweep.start()
        assert process.stdout is not None
        told = [next(line for line in process.stdout if part in line) for part in ("warn", "keeps")]
    finally:
        sweep.call("scontrol", "update", "nodename=ALL", "state=resume")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and err == "", out + err + sweep.logs()
    assert "SLURM has no place for these jobs at the moment: allocation failure: " in told[0]
    assert "SLURM keeps 1 job waiting (Nodes required for job are DOWN): " in told[1]


def test_jobs_outlive_who_submitted_them_and_are_waited_for_again(environment, tmp_path):
    """And one that SLURM ends is named, and goes on next time."""
    sweep = Sweep(environment, tmp_path, "seed=0,1")
    process = sweep.start()
    sweep.wait_until(lambda: len(sweep.begun()) == 2)
    job, cancelled = sweep.job_of(0), sweep.job_of(1)
    sweep.call("scancel", cancelled)
    assert process.stdout is not None
    told = next(line for line in process.stdout if "[2/2]" in line)
    ended = f"failed: SLURM ended its job {cancelled} (CANCELLED); its log: {sweep.log_of(1)}\n"
    assert told.endswith(ended)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.splitlines()[-1] == (
        f"the jobs go on; to cancel them: scancel {job}; the same command waits for them"
    )
    assert err == "interrupted; run the same command to resume\n"

    process = sweep.start()
    sweep.wait_until(lambda: len(sweep.begun()) == 3)
    sweep.let_go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and err == "", out + err + sweep.logs()
    assert f"1 job in SLURM's queue already: {job}\n" in out and sweep.job_of(0) == job
    assert sweep.job_of(1) != cancelled and "resuming from" in sweep.log_of(1).read_text()
    assert sorted(sweep.begun()) == [0, 1, 1]
    sweep.assert_as_undisturbed()


def test_a_search_runs_its_jobs_on_a_cluster(environment, tmp_path, cli):
    search = [*SEARCH, "batch_size=16,32,64"]
    where = f"output_dir={tmp_path / 'cluster'}"
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *search, *SLURM, where],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert "adam lr=0.1: least K·b at b = 32; " in done.stdout and "Round 2, after " in done.stdout
    assert cli(*GRID, "batch_size=16,32,64", f"output_dir={tmp_path / 'here'}").code == 0
    here = stored(tmp_path / "here")
    for run, (status, steps, losses) in stored(tmp_path / "cluster").items():
        assert losses == here[run][2][: len(losses)]
        assert (status, steps) == here[run][:2] or status is Status.ABANDONED
