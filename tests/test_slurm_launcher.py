"""Jobs of a cluster, as far as that can be told without one."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.utils import JobReturn, JobStatus

from cbs_lightning import slurm, slurm_jobs
from cbs_lightning.board import Board, board_of
from cbs_lightning.checks import check
from cbs_lightning.choices import resolve
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.launching import chosen, elsewhere, with_launcher
from cbs_lightning.results import Result
from cbs_lightning.run import run
from cbs_lightning.slurm_jobs import RunJob, ids, wait
from cbs_lightning.threads import cores
from tests.conftest import TINY
from tests.test_cli import assert_one_clear_line
from tests.test_jobs import configs, sweep_with
from tests.test_start import loaded_by

SLURM = [*TINY, "jobs=auto", "hydra/launcher=slurm"]


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The folder with all programs that are to be found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("timeout_min=0", ["hydra.launcher.timeout_min=0", ">= 1"]),
        ("timeout_min=soon", ["hydra.launcher.timeout_min=soon", "converted to Integer"]),
        ("array_parallelism=0", ["hydra.launcher.array_parallelism=0", ">= 1"]),
        ("array_parallelism=-1", ["hydra.launcher.array_parallelism=-1", ">= 1"]),
        ("max_num_timeout=-1", ["hydra.launcher.max_num_timeout=-1", ">= 0"]),
        ("signal_delay_s=14400", ["hydra.launcher.signal_delay_s=14400", "timeout_min=240"]),
        ("nodes=2", ["hydra.launcher.nodes=2", "1 process"]),
        ("cpus=2", ["hydra.launcher.cpus=2", "no such key"]),
        ("partition=null", ["hydra/launcher=slurm", "there is no sbatch here"]),
    ],
)
def test_bad_settings_take_one_line(cli, tmp_path, programs, setting, parts):
    output_dir = tmp_path / "out"
    outcome = cli("-m", *SLURM, f"output_dir={output_dir}", f"hydra.launcher.{setting}")
    assert_one_clear_line(outcome, parts, output_dir)


def test_what_sbatch_refuses_is_told_and_nothing_submitted(cli, tmp_path, programs):
    called = tmp_path / "called"
    refusal = "Invalid account or account/partition combination specified"
    for name in ("srun", "squeue"):
        program(programs, name, "exit 0")
    program(
        programs, "sbatch",
        f'echo "$@" >> {called}\necho "sbatch: error: Batch job submission failed: {refusal}" >&2\n'
        "exit 1",
    )  # fmt: skip
    output_dir = tmp_path / "out"
    outcome = cli("-m", *SLURM, f"output_dir={output_dir}", "hydra.launcher.account=nobody")
    assert_one_clear_line(outcome, ["hydra.launcher: sbatch refuses", refusal], output_dir)
    assert called.read_text() == "--test-only\n"


def test_how_many_jobs_at_a_time_is_the_arrays_width():
    sweep = sweep_with("slurm", array_parallelism=16, submitit_folder="there")
    found = chosen(sweep, configs("jobs=auto"))
    assert str(found) == "10 at a time (hydra.launcher.array_parallelism=16)" and found.elsewhere
    assert str(chosen(sweep, configs("jobs=3"))) == "3 at a time (jobs=3)"
    assert with_launcher(sweep, 3).hydra.launcher.array_parallelism == 3
    typed = sweep_with("slurm", "hydra.launcher.array_parallelism=4", array_parallelism=4)
    with pytest.raises(ConfigError, match=r"jobs=3: hydra.launcher.array_parallelism=4 says"):
        chosen(typed, configs("jobs=3"))
    assert not elsewhere(sweep_with("joblib", n_jobs=4))


def test_a_job_elsewhere_has_its_own_share_of_cores_and_its_own_log(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("cbs_lightning.threads.cpu_count", lambda: 64)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert cores() == 6
    Board(tmp_path).go_live()
    shares = {}
    for where in ("false", "true"):
        cfg = tiny("threads=null", f"sweep.board={tmp_path}", f"sweep.elsewhere={where}")
        cfg.sweep.workers = 3
        board = board_of(cfg)
        assert board is not None and board.live == (where == "false")
        resolve(cfg, None, None, lambda: 1e12)
        shares[where] = cfg.threads
    assert shares == {"false": 2, "true": 6}


def test_a_gpu_need_not_be_where_jobs_are_submitted(tiny, monkeypatch):
    monkeypatch.setattr("cbs_lightning.checks.GPUS", {"cuda": lambda: False})
    cfg = tiny("trainer.accelerator=gpu")
    check(cfg, here=False)
    with pytest.raises(ConfigError, match=r"trainer.accelerator=gpu: there is none here"):
        check(cfg)


def test_without_that_launcher_nothing_of_it_is_imported():
    assert "submitit" not in loaded_by("import train; import cbs_lightning.sweep")


def test_a_machine_that_has_srun_is_not_told_to_use_it(cli, tmp_path, programs, recwarn):
    program(programs, "srun", "exit 1")
    assert cli(*TINY, "stop.max_steps=1", f"output_dir={tmp_path / 'out'}").code == 0
    assert not [warning for warning in recwarn if "srun" in str(warning.message)]


class FakeJob:
    """One of submitit's."""

    def __init__(self, folder: Path, job_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.job_id = job_id
        self.paths = SimpleNamespace(
            folder=folder,
            result_pickle=folder / f"{job_id}_0_result.pkl",
            stdout=folder / f"{job_id}_0_log.out",
        )

    def leave(self, value: object, status: JobStatus = JobStatus.COMPLETED) -> None:
        returned = JobReturn(status=status, _return_value=value)
        self.paths.result_pickle.write_bytes(pickle.dumps(returned))

    def result(self) -> JobReturn:
        return pickle.loads(self.paths.result_pickle.read_bytes())


@pytest.fixture
def submitted(tiny, tmp_path, monkeypatch):
    """A run's job that was submitted as 7_0; SLURM is asked all the time."""
    for name in ("LOOK_SECONDS", "ASK_SECONDS", "PATIENCE"):
        monkeypatch.setattr(slurm_jobs, name, 0.01)
    job = RunJob([], tiny("stop.max_steps=2"))
    job.submitted(FakeJob(tmp_path / "digits_tiny" / "_slurm" / "7_0", "7_0"))
    return job


def asked(monkeypatch, *answers):
    """SLURM's answers in turn, the last one from then on."""
    left = list(answers)

    def states():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "states", states)


def test_a_job_that_slurm_ended_is_named_with_its_log(submitted, monkeypatch, capsys):
    away = UserError("squeue: Unable to contact slurm controller")
    asked(monkeypatch, away, {"7_0": "PENDING"}, away, {"7_0": "RUNNING"}, {"7_0": "OUT_OF_MEMORY"})
    wait([submitted])
    assert isinstance(submitted.value, UserError)
    ended = f"SLURM ended its job 7_0 (OUT_OF_MEMORY); its log: {submitted.log}"
    assert capsys.readouterr().out == f"adam b=256: failed: {ended}\n"


def test_a_job_that_slurm_has_forgotten_is_over(submitted, monkeypatch, capsys):
    asked(monkeypatch, {})
    wait([submitted])
    assert "SLURM ended its job 7_0 (no longer known)" in capsys.readouterr().out


def test_a_run_that_finished_before_its_job_died_is_finished(submitted, monkeypatch):
    result = run(submitted.cfg)
    asked(monkeypatch, {"7_0": "NODE_FAIL"})
    wait([submitted])
    assert submitted.value == result


@pytest.mark.parametrize(
    ("value", "status", "told"),
    [
        (UserError("RuntimeError: the roof fell in"), JobStatus.COMPLETED, "the roof fell in; its"),
        (
            RuntimeError("timed-out too often"),
            JobStatus.FAILED,
            "RuntimeError: timed-out too often",
        ),
        (RuntimeError("a\nlong\ntrace"), JobStatus.FAILED, "RuntimeError: see there; its log: "),
    ],
)
def test_what_failed_in_a_job_is_told_as_it_is_here(submitted, capsys, value, status, told):
    submitted.job.leave(value, status)
    wait([submitted])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("adam b=256: failed: ") and told in lines[0]
    assert str(submitted.log) in lines[0]


def test_an_earlier_sweeps_job_is_found_while_it_is_in_the_queue(submitted, tiny, monkeypatch):
    again = RunJob([], tiny("stop.max_steps=2"))
    for state in ("CANCELLED", "COMPLETING", "COMPLETED"):
        again.find({"7_0": state})
        assert not again.earlier and again.job is None
    again.find({})
    assert not again.earlier
    again.find({"7_0": "PENDING"})
    assert again.earlier and again.job.job_id == "7_0"
    assert again.job.paths.result_pickle == submitted.job.paths.result_pickle
    submitted.job.leave(run(submitted.cfg))
    wait([again])
    assert isinstance(again.value, Result)
    other = RunJob([], tiny("stop.max_steps=4"))  # asks for more than that job was to find out
    other.find({"7_0": "RUNNING"})
    wait([other])
    assert other.value is None


def test_jobs_are_named_as_scancel_takes_them(tiny, tmp_path):
    jobs = [RunJob([], tiny(f"seed={seed}")) for seed in range(4)]
    for job, name in zip(jobs, ("7_0", "9", "7_2", "8_3"), strict=True):
        job.submitted(FakeJob(tmp_path / "folder", name))
    assert ids(jobs) == "7_[0,2] 9 8_3"
