"""Each of a sweep's jobs has its own GPU; shown with GPUs that are not there."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from cbs_lightning.callbacks.job import Alone, Gpu
from cbs_lightning.callbacks.timed_checkpoint import TimedCheckpoint
from cbs_lightning.config import checks
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.errors import ConfigError
from cbs_lightning.results import provenance as record
from cbs_lightning.results.locks import BusyError
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import read_run
from cbs_lightning.sweep import gpus
from cbs_lightning.sweep.concurrency import Concurrency, automatic
from cbs_lightning.sweep.gpus import disagreement, gpu_title, visible_gpus
from cbs_lightning.sweep.launching import concurrency_of
from cbs_lightning.sweep.scratch import scratch_directory
from cbs_lightning.training.resources.memory import automatic_slice
from cbs_lightning.training.resources.threads import cores
from cbs_lightning.training.run import run
from tests import simulated_gpus
from tests.conftest import TINY
from tests.simulated_gpus import events, simulate
from tests.sweep_jobs import sweep_job
from tests.test_cli import ROOT
from tests.test_jobs import configs, sweep_with
from tests.test_memory import made
from tests.test_signals import start, statuses

NAMED = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def seen(monkeypatch):
    """As if torch saw so many GPUs."""

    def see(count, named=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setitem(checks.GPUS, "cuda", lambda: count > 0)
        monkeypatch.delenv(NAMED, raising=False)
        if named is not None:
            monkeypatch.setenv(NAMED, named)

    return see


@pytest.mark.parametrize(
    ("count", "named", "expected", "told"),
    [
        (2, None, ["0", "1"], None),
        (2, "3, 1", ["3", "1"], None),
        (2, "GPU-8932f937,MIG-1/2/3", ["GPU-8932f937", "MIG-1/2/3"], None),
        (2, "0,1,7", ["0", "1"], "CUDA_VISIBLE_DEVICES=0,1,7 names 3, torch sees 2: that counts"),
        (3, "5", ["0", "1", "2"], "CUDA_VISIBLE_DEVICES=5 names 1, torch sees 3: that counts"),
        (0, "", [], None),
    ],
)
def test_the_gpus_are_those_that_torch_sees(seen, count, named, expected, told):
    seen(count, named)
    assert visible_gpus() == expected
    assert disagreement() == told


def test_a_gpu_is_called_as_the_user_calls_it(seen):
    seen(2, "7,GPU-8932f937")
    assert [gpu_title(gpu) for gpu in range(2)] == ["GPU 7", "GPU-8932f937"]


def test_as_many_at_a_time_as_gpus_have_room_for(seen):
    def told(gpus, *overrides, count=10):
        seen(gpus)
        return str(concurrency_of(sweep_with("basic"), configs(*overrides, count=count)))

    auto = "jobs=auto"
    assert told(1, auto) == "1 at a time (on a GPU)"
    assert told(1, auto, "jobs_per_gpu=3") == "3 at a time (on a GPU)"
    assert told(4, auto) == "4 at a time (4 GPUs, 1 job each)"
    assert told(2, auto, "jobs_per_gpu=2") == "4 at a time (2 GPUs, 2 jobs each)"
    assert told(4, auto, count=1) == "1 at a time (on a GPU)"
    assert told(4, auto, count=3) == "3 at a time (3 GPUs, 1 job each)"
    assert told(4, auto, "jobs_per_gpu=2", count=6) == "6 at a time (4 GPUs, up to 2 jobs each)"
    assert told(2, "jobs=5", "jobs_per_gpu=2") == (
        "5 at a time (jobs=5: 2 GPUs, up to 3 jobs each)"
    )
    assert told(4, "jobs=1") == "1 at a time (jobs=1)"
    assert told(0, "jobs=3", "jobs_per_gpu=2") == "3 at a time (jobs=3)"
    joblib = sweep_with("joblib", n_jobs=4)
    seen(2)
    assert str(concurrency_of(joblib, configs("jobs=auto"))) == (
        "4 at a time (hydra.launcher.n_jobs=4: 2 GPUs, 2 jobs each)"
    )


def test_who_hands_out_no_gpus(seen, monkeypatch):
    seen(4)
    cluster = concurrency_of(sweep_with("submitit_slurm"), configs("jobs=auto"))
    assert cluster == Concurrency(1, "in each process of submitit_slurm", gpus=0)
    on_cpu = configs("jobs=auto", "trainer.accelerator=cpu")
    assert concurrency_of(sweep_with("basic"), on_cpu).gpus == 0
    assert automatic(on_cpu).runs == min(10, cores())
    monkeypatch.setitem(checks.GPUS, "cuda", lambda: False)
    monkeypatch.setitem(checks.GPUS, "mps", lambda: True)
    assert concurrency_of(
        sweep_with("basic"), configs("jobs=auto", "jobs_per_gpu=3")
    ) == Concurrency(1, "on a GPU", gpus=0)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "auto", "null", "true"])
def test_a_bad_number_of_jobs_per_gpu(value):
    with pytest.raises(ConfigError, match=r"jobs_per_gpu=.*: must be a whole number >= 1$"):
        checks.check(compose([f"jobs_per_gpu={value}"]))


def test_a_sweep_has_one_number_of_jobs_per_gpu():
    several = [*configs("jobs_per_gpu=1", count=1), *configs("jobs_per_gpu=2", count=1)]
    with pytest.raises(ConfigError, match=r"jobs_per_gpu=1,2: a sweep takes one value of this key"):
        concurrency_of(sweep_with("basic"), several)


@contextmanager
def own_gpu(slots, workers=4, gpus=2, device_type="cuda"):
    """torch's number of the GPU that a job has meanwhile."""
    stop_file = str(slots / "stop")
    job = sweep_job(slots=str(slots), workers=workers, gpus=gpus, stop_file=stop_file)
    with job.gpu(device_type) as gpu:
        yield gpu.number if gpu is not None else None


def test_each_gpu_has_a_job_before_one_has_two(seen, tmp_path):
    seen(2)
    with scratch_directory(tmp_path) as slots:
        with own_gpu(slots) as first, own_gpu(slots) as second:
            with own_gpu(slots) as third, own_gpu(slots) as fourth:
                assert [first, second, third, fourth] == [0, 1, 0, 1]
            with pytest.raises(RuntimeError), own_gpu(slots) as again:
                raise RuntimeError
            with own_gpu(slots) as freed:
                assert freed == again == 0
        with own_gpu(slots, device_type="cpu") as none:
            assert none is None
    assert not slots.exists()


def hold(slots, held):
    with own_gpu(slots, workers=2) as gpu:
        held.put(gpu)
        time.sleep(600)


def test_the_gpu_of_a_killed_process_is_free_again(seen, monkeypatch, tmp_path):
    seen(2)
    fork = multiprocessing.get_context("fork")
    held = fork.SimpleQueue()
    with scratch_directory(tmp_path) as slots:
        holder = fork.Process(target=hold, args=(slots, held))
        holder.start()
        assert held.get() == 0
        with own_gpu(slots, workers=2) as second:
            assert second == 1
            # All are taken, so the next one waits.
            monkeypatch.setattr(gpus.time, "sleep", lambda _: holder.kill())
            with own_gpu(slots, workers=2) as freed:
                assert freed == 0
        holder.join()
        assert holder.exitcode == -signal.SIGKILL


def test_no_job_waits_for_a_gpu_when_the_sweep_stops(seen, tmp_path):
    seen(2)
    with scratch_directory(tmp_path) as slots:
        (slots / "stop").touch()
        with (
            own_gpu(slots, workers=1),
            pytest.raises(BusyError, match="sweep stopped"),
            own_gpu(slots, workers=1),
        ):
            pass


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """Four GPUs in this process, and the configuration of a run on one of them."""
    monkeypatch.setenv(NAMED, "4,5,6,7")
    mode = simulate(4, monkeypatch)
    given = ["model=watched", f"+model.log={tmp_path / 'log'}", "stop.loss=1e-9"]

    def config(gpu, *overrides):
        cfg = compose([*TINY, *given, f"output_dir={tmp_path / 'out'}", *overrides])
        given_gpu = None if gpu is None else Gpu(gpu, gpu_title(gpu))
        monkeypatch.setattr(Alone, "gpu", lambda *_: nullcontext(given_gpu))
        return cfg

    with mode:
        yield SimpleNamespace(config=config, used=mode.used)


def test_a_run_touches_no_gpu_but_its_own(simulated):
    asked = ["micro_batch_size=auto", "stop.max_epochs=2", "checkpoint.keep=true"]
    cfg = simulated.config(2, *asked, "data.normalize=true", "data.augment=true")
    result = run(cfg)
    assert len(simulated.used) > 10 and set(simulated.used) == {2}
    assert result.device == "cuda (Simulated), GPU 6"
    assert result.configuration["trainer"]["devices"] == 1
    assert "jobs_per_gpu" not in result.configuration
    stored = torch.load(run_directory(cfg) / "last.ckpt", weights_only=True)
    assert stored["callbacks"]["TimedCheckpoint"]["cuda"][0].tolist() == [2]


def test_a_run_alone_is_on_the_first_gpu_and_says_no_more_than_before(simulated):
    assert run(simulated.config(None, "stop.max_epochs=1")).device == "cuda (Simulated)"
    assert set(simulated.used) == {0}


def test_a_run_goes_on_another_gpu_as_if_nothing_had_happened(simulated, tmp_path, capsys):
    asked = ["checkpoint.keep=true", "stop.max_epochs=2"]
    first = run(simulated.config(3, *asked))
    simulated.used.clear()
    cfg = simulated.config(1, *asked, "stop.max_epochs=4")
    second = run(cfg)
    out = capsys.readouterr().out
    assert "resuming from" in out and "warning" not in out
    assert set(simulated.used) == {1}
    assert (first.device, second.device) == (
        "cuda (Simulated), GPU 7", "cuda (Simulated), GPU 5"
    )  # fmt: skip
    assert first.config_hash == second.config_hash
    undisturbed = simulated.config(0, "stop.max_epochs=4", f"output_dir={tmp_path / 'other'}")
    run(undisturbed)
    losses = [read_run(run_directory(c)).trajectory.loss for c in (cfg, undisturbed)]
    assert losses[0].tobytes() == losses[1].tobytes()


@pytest.mark.parametrize("states", [[], [7], [7, 8, 9]])
def test_random_numbers_of_one_gpu_or_of_all_of_them(monkeypatch, states):
    """As older checkpoints have those."""
    callback = object.__new__(TimedCheckpoint)
    callback._device, callback.origin = torch.device("cuda", 3), {}
    callback.later_origin = dict
    set_to = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: set_to.append(given))
    stored = {"cpu": torch.get_rng_state(), "cuda": states, "origin": {}}
    callback.load_state_dict(stored)
    assert set_to == [(7, torch.device("cuda", 3))][: len(states)]
    callback._device = torch.device("cpu")
    callback.load_state_dict(stored)
    assert len(set_to) == min(1, len(states)) and callback.state_dict()["cuda"] == []


SWEEP = "from tests.simulated_gpus import main; main()"


def sweep(tmp_path, monkeypatch, simulated, *overrides):
    monkeypatch.setenv(simulated_gpus.VARIABLE, str(simulated))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    log, out = tmp_path / "log", tmp_path / "out"
    command = [sys.executable, "-c", SWEEP, "-m", *TINY, "jobs=auto", "model=watched",
               f"+model.log={log}", f"output_dir={out}"]  # fmt: skip
    return start([*command, "threads=null", "stop.max_epochs=2", "stop.loss=1e-9", *overrides])


def most_at_once(told):
    """Of all jobs, and of those on one GPU."""
    running, together, shared = {}, 0, 0
    for event in told:
        if event["event"] == "begins":
            assert event["process"] not in running
            running[event["process"]] = event["gpu"]
        else:
            assert running.pop(event["process"]) == event["gpu"]
        together = max(together, len(running))
        shared = max([shared, *Counter(running.values()).values()])
    return together, shared


def stored_results(tmp_path):
    return [json.loads(path.read_text()) for path in tmp_path.glob("out/*/*/result.json")]


def test_a_sweep_gives_each_job_its_own_gpu_and_its_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setenv(NAMED, "5,GPU-8932f937")
    together = "+model.together=2"
    process = sweep(tmp_path, monkeypatch, 2, "seed=range(3)", together)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert out.startswith("3 jobs, 2 at a time (2 GPUs, 1 job each)\n") and "warning" not in out
    told = events(tmp_path / "log")
    assert len(told) == 6 and most_at_once(told) == (2, 1)
    names = {0: "GPU 5", 1: "GPU-8932f937"}
    found = stored_results(tmp_path)
    assert {run["seed"]: run["device"] for run in found} == {
        event["seed"]: f"cuda (Simulated), {names[event['gpu']]}" for event in told
    }
    assert {run["threads"] for run in found} == {max(1, cores() // 2)}
    alone = compose([*TINY, "model=watched", f"+model.log={tmp_path / 'log'}", together])
    assert config_hash(alone) in {run["config_hash"] for run in found}


@pytest.mark.slow
def test_several_jobs_share_a_gpu_and_a_killed_one_leaves_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv(NAMED, "0,1,5")
    asked = ["seed=range(6)", "jobs_per_gpu=2", "+model.together=4", "+model.killed=1"]
    process = sweep(tmp_path, monkeypatch, 2, *asked)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert out.startswith(
        "6 jobs, 4 at a time (2 GPUs, 2 jobs each)\n"
        "warning: CUDA_VISIBLE_DEVICES=0,1,5 names 3, torch sees 2: that counts\n"
    )
    assert "a worker process died" in out
    told = events(tmp_path / "log")
    assert sorted(event["gpu"] for event in told[:4]) == [0, 0, 1, 1]
    begun = [event["seed"] for event in told if event["event"] == "begins"]
    assert begun.count(1) == 2
    # Those that the dead worker took along run again alone, so on the first GPU.
    assert told[-1]["gpu"] == told[-2]["gpu"] == 0
    assert {run["seed"] for run in stored_results(tmp_path)} == set(range(6))


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_over_other_gpus(tmp_path, monkeypatch):
    log = tmp_path / "log"
    asked = ["seed=range(3)", "stop.max_epochs=3000", "+model.together=2"]
    process = sweep(tmp_path, monkeypatch, 2, *asked)
    while not log.exists() or len(events(log)) < 2:
        assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in out + err
    assert statuses(tmp_path) == [Status.INTERRUPTED] * 2
    assert most_at_once(events(log)) == (2, 1)
    log.unlink()
    steps = max(run["steps_run"] for run in stored_results(tmp_path)) + 1
    again = [asked[0], f"stop.max_steps={steps}", asked[2], "stop.max_epochs=null"]
    process = sweep(tmp_path, monkeypatch, 3, *again)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert out.startswith("3 jobs, 3 at a time (3 GPUs, 1 job each)\n")
    assert out.count("resuming from") == 2 and "warning: device" not in out
    assert most_at_once(events(log))[1] == 1


def test_a_slice_is_tried_on_the_runs_own_gpu(monkeypatch):
    mode = simulate(2, monkeypatch)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext(devices))
    torch.cuda.set_device(torch.device("cuda", 1))
    with mode:
        assert automatic_slice(made(), torch.device("cuda", 1), (1, 8, 8), 16, 1) is None
    assert set(mode.used) == {1}


def test_the_name_of_a_gpu_is_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"number {device.index}")
    assert record.device_name(torch.device("cuda", 2)) == "cuda (number 2)"
