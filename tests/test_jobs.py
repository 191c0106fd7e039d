"""How many runs of a sweep train at a time."""

import pytest
import torch
from omegaconf import OmegaConf

from cbs_lightning.config import checks
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash
from cbs_lightning.errors import ConfigError
from cbs_lightning.sweep import concurrency as jobs
from cbs_lightning.sweep.concurrency import COMPILER, PROCESS, Need, at_a_time, automatic, needs
from cbs_lightning.sweep.launching import concurrency_of
from cbs_lightning.training.resources import system_memory
from cbs_lightning.training.resources.memory import USABLE, peak_of_batch, peak_of_step
from tests.conftest import TINY
from tests.test_memory import images, made

GB = 2**30
SMALL, LARGE = Need(GB, 0), Need(GB, 4 * GB)


@pytest.mark.parametrize(
    ("count", "cores", "gigabytes", "needed", "expected"),
    [
        (27, 2, 1000, [SMALL], 2),
        (3, 8, 1000, [SMALL], 3),
        (27, 8, 30, [SMALL], 8),
        (27, 8, 30, [SMALL, LARGE], 4),  # 21 GB are for the sweep's process and four of 5
        (27, 8, 29, [SMALL, LARGE], 3),
        (27, 8, 1, [LARGE], 1),
        (27, 0, 1000, [SMALL], 1),
        (1, 8, 1000, [], 1),
    ],
)
def test_a_core_each_as_far_as_memory_goes(count, cores, gigabytes, needed, expected):
    assert at_a_time(count, cores, gigabytes * GB * 0.7 / USABLE, needed) == expected


@pytest.fixture
def machine(monkeypatch):
    """As if this were a machine with so many cores and so much memory, and no GPU."""

    def be(cores, memory=1000 * GB, gpu=False):
        monkeypatch.setattr("cbs_lightning.training.resources.threads.cores", lambda: cores)
        monkeypatch.setattr(jobs, "cores", lambda: cores)
        monkeypatch.setattr(jobs, "total_memory", lambda: memory)
        monkeypatch.setitem(checks.GPUS, "cuda", lambda: gpu)

    return be


def configs(*overrides, count=10):
    cfg = compose([*TINY, "threads=null", *overrides])
    return [cfg] * count


def room_for(runs, config):
    """Bytes in which just so many of these runs fit."""
    (need,) = needs([config])
    return ((runs + 0.5) * (need.process + need.training) + need.process) / USABLE


def test_the_choice_and_its_reason(machine):
    machine(cores=8)
    assert str(automatic(configs())) == "8 at a time (one core each)"
    assert str(automatic(configs(count=3))) == "3 at a time (2 cores each)"
    assert str(automatic(configs(count=1))) == "1 at a time (8 cores)"
    assert str(automatic(configs("threads=3"))) == "2 at a time (3 cores each)"
    assert str(automatic(configs("threads=16"))) == "1 at a time (16 cores)"
    machine(cores=8, memory=room_for(3, configs()[0]))
    assert str(automatic(configs())) == "3 at a time (2 cores each, memory allows no more)"
    machine(cores=8, memory=GB // 4)
    assert automatic(configs()).runs == 1
    machine(cores=8, gpu=True)
    assert str(automatic(configs())) == "1 at a time (on a GPU)"
    assert automatic(configs("trainer.accelerator=cpu")).runs == 8


def test_the_most_demanding_job_counts(machine):
    large, small = compose(["batch_size=1797"]), compose(["batch_size=4"])
    machine(cores=8, memory=room_for(4, large))
    assert automatic([small] * 10).runs > 4
    assert automatic([large, *[small] * 9]).runs == automatic([*[small] * 9, large]).runs == 4


def training(*overrides):
    (need,) = needs([compose(list(overrides))])
    assert need.process > PROCESS
    return need.training


def test_what_a_run_needs_follows_its_slices_and_no_batch_exceeds_the_data():
    whole = training("batch_size=1797")
    assert whole > 1797 * 80 * 2**10  # of saved activations, on images of 8x8
    assert training("batch_size=65536") == whole
    assert training("batch_size=1797", "micro_batch_size=5000") == whole
    assert training("batch_size=1797", "activation_checkpointing=true") < 0.7 * whole
    sliced = training("batch_size=1797", "micro_batch_size=100")
    assert training("batch_size=1797", "micro_batch_size=auto") < sliced < 0.15 * whole


def test_compilers_need_memory_too():
    assert training("compile=default") == training() + COMPILER


def test_a_model_is_looked_at_once_for_all_jobs_and_no_random_number_is_used(monkeypatch):
    looked = []
    peak = jobs.peak_of_batch
    monkeypatch.setattr(
        jobs, "peak_of_batch", lambda *given: looked.append(given[2]) or peak(*given)
    )
    sweep = [
        compose([*TINY, f"model={model}", f"batch_size={size}", f"optimizer={optimizer}"])
        for model in ("tiny", "restless")
        for size in (8, 512, 64)
        for optimizer in ("adam", "sgd")
    ]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert len(needs(sweep)) == 2 and looked == [512, 512]
    assert torch.equal(torch.rand(3), expected)


def test_a_net_that_looks_at_values_is_measured_on_small_batches():
    model = made()
    expected = peak_of_batch(model, (1, 8, 8), 500)
    assert expected == pytest.approx(peak_of_step(model, images(500)[0]), rel=0.05)
    model.net.register_forward_pre_hook(lambda _, given: (given[0].sum().item(), None)[1])
    assert peak_of_batch(model, (1, 8, 8), 500) == pytest.approx(expected, rel=0.1)


def test_a_model_that_cannot_be_looked_at_is_run_alone(machine, monkeypatch):
    machine(cores=8)
    monkeypatch.setattr(jobs, "peak_of_batch", None)
    found = automatic(configs())
    assert found.runs == 1 and "8 cores, their memory needs are unknown" in found.why


def test_memory_is_what_the_smallest_control_group_has(monkeypatch, tmp_path):
    monkeypatch.setattr(system_memory, "CGROUP", tmp_path)
    monkeypatch.setattr(system_memory, "OWN_CGROUPS", tmp_path / "own")
    physical = system_memory.total_memory()
    (tmp_path / "own").write_text("4:memory:/host/only\n1:cpu:/x\n0::/job/step\n")
    step, version_1 = tmp_path / "job" / "step", tmp_path / "memory"
    step.mkdir(parents=True)
    version_1.mkdir()
    (step / "memory.max").write_text("max\n")
    (step / "memory.current").write_text("5\n")
    assert system_memory.total_memory() == physical
    (step.parent / "memory.max").write_text("1000000\n")
    (step.parent / "memory.current").write_text("400000\n")
    assert system_memory.total_memory() == 1000000
    assert system_memory.available_memory() == 600000
    (version_1 / "memory.limit_in_bytes").write_text("700000\n")
    (version_1 / "memory.usage_in_bytes").write_text("200000\n")
    assert system_memory.total_memory() == 700000
    assert system_memory.available_memory() == 500000


def sweep_with(launcher, *overrides, **settings):
    return OmegaConf.create(
        {"hydra": {"runtime": {"choices": {"hydra/launcher": launcher}},
                   "launcher": settings, "overrides": {"hydra": list(overrides)}}}
    )  # fmt: skip


def test_a_launcher_that_is_named_decides(machine):
    machine(cores=8)
    assert concurrency_of(sweep_with("basic"), configs("jobs=auto")).runs == 8
    assert concurrency_of(sweep_with("basic"), configs("jobs=3")).runs == 3
    assert concurrency_of(sweep_with("basic"), configs("jobs=30")).runs == 10
    typed = sweep_with("basic", "hydra/launcher=basic", _target_="somewhere.BasicLauncher")
    assert str(concurrency_of(typed, configs("jobs=auto"))) == "1 at a time (hydra/launcher=basic)"
    local = sweep_with("submitit_local", _target_="somewhere.LocalLauncher")
    assert (
        str(concurrency_of(local, configs("jobs=1")))
        == "1 at a time (hydra/launcher=submitit_local)"
    )
    joblib = sweep_with("joblib", "hydra.launcher.n_jobs=4", n_jobs=4)
    assert (
        str(concurrency_of(joblib, configs("jobs=auto"))) == "4 at a time (hydra.launcher.n_jobs=4)"
    )
    assert concurrency_of(joblib, configs("jobs=4")).runs == 4
    with pytest.raises(ConfigError, match=r"jobs=3: hydra.launcher.n_jobs=4 says otherwise"):
        concurrency_of(joblib, configs("jobs=3"))
    assert concurrency_of(sweep_with("joblib", n_jobs=-1), configs("jobs=3")).runs == 3
    cluster = sweep_with("submitit_slurm")
    assert str(concurrency_of(cluster, configs("jobs=auto"))) == (
        "1 at a time (in each process of submitit_slurm)"
    )
    with pytest.raises(ConfigError, match=r"jobs=3: hydra/launcher=submitit_slurm has settings"):
        concurrency_of(cluster, configs("jobs=3"))


def test_how_many_at_a_time_is_no_part_of_a_run(tiny):
    from cbs_lightning.training.run import run

    one, other = tiny("stop.max_steps=1"), tiny("stop.max_steps=1", "jobs=5")
    assert config_hash(one) == config_hash(other)
    assert "jobs" not in run(other).configuration
