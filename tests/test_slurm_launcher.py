"""Jobs of a cluster, as far as that can be told without one."""

import os
import pickle
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

from cbs_lightning.config.checks import check
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.results.result import Result
from cbs_lightning.signals import TO_STOP, held_back
from cbs_lightning.sweep.launching import concurrency_of, is_on_cluster, with_launcher
from cbs_lightning.sweep.live.board import Board
from cbs_lightning.sweep.slurm import jobs as slurm_jobs
from cbs_lightning.sweep.slurm import queue as slurm
from cbs_lightning.sweep.slurm.jobs import RunJob, ids, wait
from cbs_lightning.sweep.slurm.queue import Queued
from cbs_lightning.training import build
from cbs_lightning.training.choices import choose
from cbs_lightning.training.resources.threads import cores
from cbs_lightning.training.run import find_data, run
from hydra_plugins import cbs_slurm_launcher as slurm_launcher
from hydra_plugins.cbs_slurm_launcher import SlurmLauncher, _kept_from_programs
from tests.conftest import TINY
from tests.sweep_jobs import sweep_job
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
        ("signal_delay_s=2761", ["signal_delay_s=2761", "<= 2760 where", "timeout_min=240"]),
        ("timeout_min=1", ["hydra.launcher.signal_delay_s=300", "<= 59 where"]),
        ("nodes=2", ["hydra.launcher.nodes=2", "1 process"]),
        ("cpus=2", ["hydra.launcher.cpus=2", "no such key"]),
        ("partition=null", ["hydra/launcher=slurm", "there is no sbatch here"]),
    ],
)
def test_bad_settings_take_one_line(cli, tmp_path, programs, setting, parts):
    output_dir = tmp_path / "out"
    outcome = cli("-m", *SLURM, f"output_dir={output_dir}", f"hydra.launcher.{setting}")
    assert_one_clear_line(outcome, parts, output_dir)


@pytest.mark.parametrize("launcher", ["slurm", "submitit_slurm", "joblib"])
def test_a_launcher_needs_a_sweep(cli, tmp_path, programs, launcher):
    output_dir = tmp_path / "out"
    outcome = cli(*TINY, f"hydra/launcher={launcher}", f"output_dir={output_dir}")
    assert_one_clear_line(outcome, [f"hydra/launcher={launcher}", "needs -m"], output_dir)


def test_submitits_own_launcher_needs_slurm_too(cli, tmp_path, programs):
    output_dir = tmp_path / "out"
    outcome = cli("-m", *TINY, "hydra/launcher=submitit_slurm", f"output_dir={output_dir}")
    parts = ["hydra/launcher=submitit_slurm", "there is no sbatch here"]
    assert_one_clear_line(outcome, parts, output_dir)


def test_submitits_local_jobs_run_one_by_one(cli, tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher.BaseSubmititLauncher.launch",
        lambda self, overrides, initial_job_idx: launched.append(overrides) or [JobReturn()],
    )
    where = f"output_dir={tmp_path / 'out'}"
    outcome = cli("-m", *TINY, "hydra/launcher=submitit_local", "seed=0,1,2", where)
    assert "3 jobs, 1 at a time (hydra/launcher=submitit_local)\n" in outcome.out
    assert [len(jobs) for jobs in launched] == [1, 1, 1]


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


@pytest.fixture
def takes_jobs(programs):
    """SLURM takes all jobs, and has none of them afterwards; submissions go to `submit`."""
    for name in ("srun", "squeue"):
        program(programs, name, "exit 0")
    program(programs, "submit", "echo Submitted batch job 7")
    program(programs, "sbatch", '[ "$1" = --test-only ] || submit "$@"')
    return programs


def sweep_of_one(cli, tmp_path, *arguments):
    return cli("-m", *SLURM, f"output_dir={tmp_path / 'out'}", *arguments)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exit 3", "error: sbatch: Command .* returned non-zero exit status 3"),
        ("echo sbatch: error: not you >&2; exit 1", "error: sbatch: not you"),
    ],
)
def test_a_submission_that_fails_takes_one_line(cli, tmp_path, takes_jobs, text, told):
    program(takes_jobs, "submit", text)
    outcome = sweep_of_one(cli, tmp_path)
    assert outcome.code == 1 and re.match(told, outcome.err) and outcome.err.count("\n") == 1


def test_a_folder_that_cannot_be_made_takes_one_line(cli, tmp_path, takes_jobs):
    outcome = sweep_of_one(cli, tmp_path, "hydra.launcher.submitit_folder=/proc/x/%j")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("error: hydra.launcher.submitit_folder=/proc/x/%j: ")


UNPLACED = "allocation failure: Requested node configuration is not available"


def test_what_slurm_has_no_place_for_now_is_submitted(cli, tmp_path, takes_jobs, hurried):
    refusal = f'[ "$1" != --test-only ] || {{ echo "{UNPLACED}" >&2; exit 1; }}'
    program(takes_jobs, "sbatch", f'{refusal}\nsubmit "$@"')
    program(takes_jobs, "sinfo", "echo 4\necho 16")
    outcome = sweep_of_one(cli, tmp_path, "hydra.launcher.cpus_per_task=16")
    assert f"warning: SLURM has no place for these jobs at the moment: {UNPLACED}\n" in outcome.out
    assert "submitted as 7; " in outcome.out
    output_dir = tmp_path / "none"
    outcome = sweep_of_one(
        cli, tmp_path, "hydra.launcher.cpus_per_task=17", f"output_dir={output_dir}"
    )
    assert_one_clear_line(outcome, ["cpus_per_task=17", "allowed: <= 16"], output_dir)


def test_slurm_has_to_answer_at_first_and_is_waited_for_later(cli, tmp_path, takes_jobs, hurried):
    away = "echo squeue: error: away >&2; exit 1"
    program(takes_jobs, "squeue", away)
    outcome = sweep_of_one(cli, tmp_path)
    told = ["hydra/launcher=slurm: no SLURM answers here", "(squeue: away)"]
    assert_one_clear_line(outcome, told, tmp_path / "out")
    calls = tmp_path / "calls"
    text = f"echo >> {calls}\ncase $(/usr/bin/wc -l < {calls}) in 2|3) {away};; esac"
    program(takes_jobs, "squeue", text)
    outcome = sweep_of_one(cli, tmp_path)
    assert outcome.out.count("squeue: away; retrying until it answers\n") == 1
    assert "submitted as 7; " in outcome.out and outcome.err == ""


def test_programs_that_submit_do_not_get_signals():
    """A terminal sends them to all; who submits gets them afterwards."""
    with pytest.raises(KeyboardInterrupt), held_back(), _kept_from_programs():
        submission = subprocess.Popen(["sleep", "0.3"])
        submission.send_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert submission.wait() == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(TO_STOP)


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), SystemExit(130), SystemExit(143)])
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_a_job_that_is_told_to_stop_goes_to_the_queue_again(monkeypatch, ended, state):
    """Also where it does not train yet, but not where SLURM ends it."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "queue", lambda: {"7": Queued(state)})

    def begins(*_):
        raise ended

    monkeypatch.setattr(BaseSubmititLauncher, "__call__", begins)
    received = []
    monkeypatch.setattr(slurm_launcher, "hand_over", received.append)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(type(ended)):
        SlurmLauncher()()
    signal.signal(signal.SIGUSR1, before)
    assert received == ([signal.SIGUSR2] if state == "RUNNING" else [])


def test_how_many_jobs_at_a_time_is_the_arrays_width():
    sweep = sweep_with("slurm", array_parallelism=16, submitit_folder="there")
    found = concurrency_of(sweep, configs("jobs=auto"))
    assert str(found) == "10 at a time (hydra.launcher.array_parallelism=16)" and found.on_cluster
    assert str(concurrency_of(sweep, configs("jobs=3"))) == "3 at a time (jobs=3)"
    assert with_launcher(sweep, 3, None).hydra.launcher.array_parallelism == 3
    typed = sweep_with("slurm", "hydra.launcher.array_parallelism=4", array_parallelism=4)
    with pytest.raises(ConfigError, match=r"jobs=3: hydra.launcher.array_parallelism=4 says"):
        concurrency_of(typed, configs("jobs=3"))
    assert not is_on_cluster(sweep_with("joblib", n_jobs=4))


def test_a_job_elsewhere_has_its_own_share_of_cores_and_its_own_log(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("cbs_lightning.training.resources.threads.cpu_count", lambda: 64)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert cores() == 6
    Board(tmp_path).go_live()
    shares = {}
    for on_cluster in (False, True):
        job = sweep_job(workers=3, board_directory=str(tmp_path), on_cluster=on_cluster)
        assert job.shown_live != on_cluster
        choices = choose(tiny("threads=null"), None, None, job.sharing, lambda: 1e12)
        shares[on_cluster] = choices.threads
    assert shares == {False: 2, True: 6}


def test_a_job_elsewhere_has_the_memory_for_itself(tiny, monkeypatch):
    monkeypatch.setattr(build, "automatic_slice", lambda *arguments: arguments[-1])
    for on_cluster, jobs in {False: 3, True: 1}.items():
        cfg = tiny("micro_batch_size=auto")
        data = find_data(cfg)
        data.setup()
        sharing = sweep_job(workers=3, on_cluster=on_cluster).sharing
        _, slice_size = build.build_model(cfg, data, "auto", torch.device("cpu"), sharing)
        assert slice_size == jobs


def test_a_gpu_need_not_be_where_jobs_are_submitted(tiny, monkeypatch):
    monkeypatch.setattr("cbs_lightning.config.checks.GPUS", {"cuda": lambda: False})
    cfg = tiny("trainer.accelerator=gpu")
    check(cfg, here=False)
    with pytest.raises(ConfigError, match=r"trainer.accelerator=gpu: there is none here"):
        check(cfg)


def test_without_that_launcher_nothing_of_it_is_imported():
    assert "submitit" not in loaded_by("import train; import cbs_lightning.sweep.sweep")


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
        array = job_id.partition("_")[0]
        self.script = folder.parent / f".submission_file_{array}.sh"
        self.script.unlink(missing_ok=True)
        self.script.symlink_to(folder / f"{array}_submission.sh")

    def leave(self, value: object, status: JobStatus = JobStatus.COMPLETED) -> None:
        returned = JobReturn(status=status, _return_value=value)
        self.paths.result_pickle.write_bytes(pickle.dumps(returned))

    def result(self) -> JobReturn:
        return pickle.loads(self.paths.result_pickle.read_bytes())


@pytest.fixture
def hurried(monkeypatch):
    """SLURM is asked all the time."""
    for name in ("LOOK_SECONDS", "ASK_SECONDS", "PATIENCE"):
        monkeypatch.setattr(slurm_jobs, name, 0.01)


@pytest.fixture
def submitted(tiny, tmp_path, hurried):
    """A run's job that was submitted as 7_0; SLURM is asked all the time."""
    job = RunJob([], tiny("stop.max_steps=2"), sweep_job())
    job.submitted(FakeJob(tmp_path / "digits_tiny" / "_slurm" / "7_0", "7_0"))
    return job


def asked(monkeypatch, *answers):
    """SLURM's answers in turn, the last one from then on; how often it was asked."""
    left = list(answers)
    times = []

    def queue():
        times.append(len(times))
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return {name: Queued(*told.split()) for name, told in answer.items()}

    monkeypatch.setattr(slurm, "queue", queue)
    return times


def test_a_job_that_slurm_ended_is_named_with_its_log(submitted, monkeypatch, capsys):
    away = UserError("squeue: Unable to contact slurm controller")
    asked(monkeypatch, away, {"7_0": "PENDING"}, away, {"7_0": "RUNNING"}, {"7_0": "OUT_OF_MEMORY"})
    wait([submitted])
    assert isinstance(submitted.value, UserError)
    ended = f"SLURM ended its job 7_0 (OUT_OF_MEMORY); its log: {submitted.log}"
    assert capsys.readouterr().out == f"[1/1] adam b=256: failed: {ended}\n"


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
    assert (
        len(lines) == 1 and lines[0].startswith("[1/1] adam b=256: failed: ") and told in lines[0]
    )
    assert str(submitted.log) in lines[0]


def test_jobs_that_may_wait_for_ever_are_told_of_once(submitted, monkeypatch, capsys):
    usual, held = {"7_0": "PENDING Priority"}, {"7_0": "PENDING ReqNodeNotAvail,Nodes:a"}
    other, ended = {"7_0": "PENDING QOSGrpNodeLimit"}, {"7_0": "CANCELLED"}
    asked(monkeypatch, usual, held, held, usual, held, other, other, ended)
    wait([submitted])
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "SLURM keeps 1 job waiting (ReqNodeNotAvail): 7_0",
        "SLURM keeps 1 job waiting (QOSGrpNodeLimit): 7_0",
    ]


def test_what_waits_in_the_queue_is_not_looked_for_on_the_disk(submitted, monkeypatch):
    pending = [{"7_0": "PENDING"}] * 5
    times = asked(monkeypatch, *pending, {"7_0": "RUNNING"})
    looked = []

    def has_left_result():
        looked.append(len(times))
        return len(times) > 5

    monkeypatch.setattr(submitted, "has_left_result", has_left_result)
    monkeypatch.setattr(submitted, "end", lambda state: None)
    wait([submitted])
    assert not {1, 2, 3, 4, 5} & set(looked) and looked[-1] == 6


def test_a_log_is_found_through_a_link(tiny, tmp_path):
    """Though both the outputs and what submitit needs are somewhere else."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "here").symlink_to(tmp_path / "far" / "away")
    (tmp_path / "there").symlink_to(tmp_path / "far")
    job = RunJob([], tiny(f"output_dir={tmp_path / 'here'}"), sweep_job())
    handle = FakeJob(tmp_path / "there" / "jobs", "7")
    handle.paths.stdout.write_text("hello")
    job.submitted(handle)
    assert job.log.read_text() == "hello"
    job.find({"7": Queued("RUNNING", "None", str(handle.script))})
    assert job.earlier


def test_an_earlier_sweeps_job_is_found_while_it_is_in_the_queue(submitted, tiny, tmp_path):
    script = str(submitted.job.script)
    again = RunJob([], tiny("stop.max_steps=2"), sweep_job())
    for state in ("CANCELLED", "COMPLETING", "COMPLETED"):
        again.find({"7_0": Queued(state, "None", script)})
        assert not again.earlier and again.job is None
    again.find({})
    assert not again.earlier
    for other in ("(null)", str(tmp_path / "mine.sh"), "/elsewhere/.submission_file_7.sh"):
        again.find({"7_0": Queued("RUNNING", "None", other)})  # another job has its id
        assert not again.earlier
    queue = {"7_0": Queued("PENDING", "None", script)}
    again.find(queue)
    assert again.earlier and again.job.job_id == "7_0"
    assert again.job.paths.result_pickle == submitted.job.paths.result_pickle
    more = RunJob([], tiny("stop.max_steps=4"), sweep_job())  # than that job was to find out
    more.find(queue)
    submitted.job.leave(run(submitted.cfg))
    wait([again, more])
    assert isinstance(again.value, Result) and more.value is None
    more.find(queue)
    assert not more.earlier  # it has said all that it can say


def test_jobs_are_named_as_scancel_takes_them(tiny, tmp_path):
    jobs = [RunJob([], tiny(f"seed={seed}"), sweep_job()) for seed in range(4)]
    for job, name in zip(jobs, ("7_0", "9", "7_2", "8_3"), strict=True):
        job.submitted(FakeJob(tmp_path / "folder", name))
    assert ids(jobs) == "'7_[0,2]' 9 8_3"
