"""What a run leaves out, so that it starts soon: imports it has no use for, doing things twice."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from sklearn.datasets import load_digits

from cbs_lightning.config.checks import check_all
from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.data import Digits, datamodule
from cbs_lightning.sweep.job_loader import JobLoader
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]


def loaded_by(code: str) -> set[str]:
    """The modules and packages that a new interpreter has loaded after it ran this."""
    told = "; import sys; print(*sys.modules)"
    command = [sys.executable, "-c", code + told]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = done.stdout.splitlines()[-1].split()
    return {*names, *(name.partition(".")[0] for name in names)}


def test_a_configuration_is_composed_before_torch_is_imported(tmp_path):
    code = "from cbs_lightning.config.composition import compose; import train; compose([])"
    assert loaded_by(code).isdisjoint(
        {"torch", "torchvision", "lightning", "sklearn", "scipy", "matplotlib", "pandas", "joblib"}
    )


def test_a_run_imports_nothing_that_only_sweeps_and_figures_need(tmp_path):
    arguments = ["train.py", *TINY, "stop.max_steps=1", f"output_dir={tmp_path}"]
    code = (
        f"import sys; sys.path.insert(0, '.'); sys.argv = {arguments!r}; "
        "from train import train; train()"
    )
    loaded = loaded_by(code)
    assert "cbs_lightning.training.train" in loaded and list(tmp_path.glob("*/*/result.json"))
    assert loaded.isdisjoint(
        {
            "sklearn",
            "pandas",
            "tensorflow",
            "cbs_lightning.fit.curve_fit",
            "cbs_lightning.reporting.figures",
            "cbs_lightning.reporting.live_study",
            "cbs_lightning.sweep.report",
        }
    )


def test_the_digits_are_those_of_scikit_learn():
    images, expected = Digits.load(Path()).train, load_digits()
    assert torch.equal(images.pixels.squeeze(-1).double(), torch.from_numpy(expected.images))
    assert torch.equal(images.labels, torch.from_numpy(expected.target))
    assert images.pixels.dtype == torch.uint8 and images.pixels.is_contiguous()


def test_the_data_are_loaded_once_for_all_runs_of_a_process(cli, tmp_path, monkeypatch):
    loads = []
    load = Digits.load
    datamodule._loaded.cache_clear()
    monkeypatch.setattr(Digits, "load", lambda data_dir: loads.append(data_dir) or load(data_dir))
    outcome = cli("-m", *TINY, "seed=0,1", "stop.max_steps=1", f"output_dir={tmp_path}")
    assert outcome.code == 0 and len(list(tmp_path.glob("*/*/result.json"))) == 2
    assert len(loads) == 1


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=1"],
        ["optimizer=sgd", "batch_size=8", "optimizer.lr=0.1", 'sweep=\'{"a": "b=c"}\''],
        ["experiment=cifar10_resnet20", "optimizer=momentum", "batch_size=4", "batch_size=8"],
        ["+model.extra=1", "seed=2"],
        ["~stop.max_epochs", "seed=2"],
        ["optimizer={lr:0.5}", "seed=3"],
        ["optimizer.betas=[0.5,0.6]", "stop={loss:2}", "hydra.job.chdir=false"],
    ],
)
def test_a_jobs_configuration_is_what_hydra_composes(overrides):
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        hydra = GlobalHydra.instance().config_loader()
        loader = JobLoader(hydra)
        master = hydra.load_configuration("config", ["data=digits"], RunMode.MULTIRUN)
        for _ in range(2):
            found = loader.load_sweep_config(master, [*overrides, "seed=7"])
            assert found == hydra.load_sweep_config(master, [*overrides, "seed=7"])
            found.seed = 8
            found.hydra.runtime.choices.data = "changed"
            own, facts = loader.load_run_config(master, [*overrides, "seed=7"])
            whole = hydra.load_sweep_config(master, [*overrides, "seed=7"])
            assert {**own, "hydra": None} == {**whole, "hydra": None}
            assert facts.runtime.choices == whole.hydra.runtime.choices
            assert facts.overrides.task == whole.hydra.overrides.task
            own.seed = 8


@pytest.mark.parametrize("wrong", ["optimizer.speed=1", "sead=1", "optimizer=spd"])
def test_hydra_says_what_is_wrong_with_a_job(wrong):
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        hydra = GlobalHydra.instance().config_loader()
        master = hydra.load_configuration("config", [], RunMode.MULTIRUN)
        with pytest.raises(HydraException) as expected:
            hydra.load_sweep_config(master, ["seed=1", wrong])
        with pytest.raises(HydraException) as error:
            JobLoader(hydra).load_run_config(master, ["seed=1", wrong])
        assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("sweeper", ["grid", "critical_batch"])
def test_an_absent_package_is_named_before_anything_is_composed(
    cli, tmp_path, monkeypatch, sweeper
):
    monkeypatch.setattr("cbs_lightning.optim.packages.find_spec", lambda name: None)
    monkeypatch.setattr("cbs_lightning.sweep.sweeper.MANY_JOBS", 4)
    composed = []
    monkeypatch.setattr(JobLoader, "load_run_config", lambda *_: composed.append(1))
    out = tmp_path / "out"
    outcome = cli("-m", *TINY, f"hydra/sweeper={sweeper}", "optimizer=adam,soap", "seed=0,1",
                  f"output_dir={out}")  # fmt: skip
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "optimizer=soap: needs the package pytorch-optimizer" in outcome.err
    assert outcome.out == "checking 4 jobs\n" and not composed and not out.exists()


def test_jobs_that_differ_in_batch_size_and_seed_alone_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr("cbs_lightning.config.checks.check", lambda cfg, here: checked.append(cfg))
    base = compose([])
    configs = [replace(base, batch_size=size, seed=seed) for size in (4, 8) for seed in (0, 1)]
    other = replace(base, optimizer=base.optimizer | {"lr": 0.5})
    check_all([*configs, other], here=False)
    assert checked == [configs[0], other]


COUNTING = """
import gc, runpy
from hydra.core.utils import JobReturn
import cbs_lightning.training.run
train = cbs_lightning.training.run.train
def counting(*arguments):
    gc.collect()
    print("kept", sum(isinstance(thing, JobReturn) for thing in gc.get_objects()))
    return train(*arguments)
cbs_lightning.training.run.train = counting
runpy.run_path("train.py", run_name="__main__")
"""


def test_a_sweep_in_one_process_keeps_nothing_of_its_finished_jobs(tmp_path):
    arguments = ["-m", *TINY, "seed=range(4)", "stop.max_steps=1", f"output_dir={tmp_path}"]
    command = [sys.executable, "-c", COUNTING, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    kept = [line for line in done.stdout.splitlines() if line.startswith("kept")]
    assert kept == ["kept 1"] * 4  # this job's
