"""The command line as a user has it: what is printed, the exit code, what is left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY

ROOT = Path(__file__).parents[1]

BAD = {
    "batch_size=0": ["batch_size=0", ">= 1"],
    "batch_size=four": ["batch_size=four", "whole number"],
    "jobs=0": ["jobs=0", "must be a whole number >= 1 or auto"],
    "jobs=-1": ["jobs=-1", ">= 1 or auto"],
    "jobs=many": ["jobs=many", "or auto"],
    "optimizer=sdg": ["optimizer=sdg", "adam, adam_monotone, adamw, amsgrad, momentum"],
    "data=cifar": ["data=cifar", "cifar10, digits, mnist"],
    "model=resnet": ["model=resnet", "resnet18, resnet20, resnet20_authors"],
    "experiment=digit": ["experiment=digit", "cifar10_resnet20, digits, lr_scaling"],
    "batchsize=4": ["batchsize=4", "no such key", "batch_size"],
    "optimizer.beta=0.9": ["optimizer.beta=0.9", "no such key", "optimizer.betas"],
    "stop.los=1": ["stop.los=1", "no such key", "stop.loss"],
    "+batchsize=4": ["batchsize=4", "batch_size"],
    "stop.loss=-1": ["stop.loss=-1", "> 0"],
    "optimizer.lr=0": ["optimizer.lr=0", "> 0"],
    "optimizer.betas=[0.9,2]": ["optimizer.betas=[0.9, 2]", "[0, 1)"],
    "trainer.accelerator=gpu": ["trainer.accelerator=gpu", "auto, cpu"],
    "hydra.nothing=1": ["hydra.nothing=1", "allowed: hydra.callbacks, ", "hydra.sweeper"],
    "budget.runs=1": ["budget.runs=1", "a search has hydra.sweeper.budget.runs, with hydra/sweep"],
    "hydra.sweeper.octaves=1": ["allowed: hydra.sweeper.grid; a search has hydra.sweeper.octaves"],
    "hydra.launcher.partition=a": ["hydra.launcher.partition=a"],
    "stop.loss=${nothing}": ["stop.loss"],
    "~stop.loss": ["stop.loss"],
    "optimizer=null": ["optimizer"],
    "batch_size": ["batch_size"],
    "batch_size=4,8": ["batch_size", "-m"],
}


def assert_one_clear_line(outcome, parts, output_dir):
    assert outcome.code != 0
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in outcome.out + outcome.err
    assert not output_dir.exists()


@pytest.mark.parametrize("mode", ["run", "sweep"])
@pytest.mark.parametrize("argument", BAD)
def test_bad_input_ends_in_one_line_and_writes_nothing(cli, tmp_path, argument, mode):
    if argument == "batch_size=4,8" and mode == "sweep":
        pytest.skip("a sweep is what it asks for")
    if argument == "trainer.accelerator=gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    output_dir = tmp_path / "out"
    sweep = ["-m", "seed=0,1"] if mode == "sweep" else []
    outcome = cli(*sweep, argument, f"output_dir={output_dir}")
    assert_one_clear_line(outcome, BAD[argument], output_dir)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["batch_size=64,0"], ["batch_size=0"]),
        (["optimizer=adam,sdg"], ["optimizer=sdg", "momentum"]),
        (["optimizer=adam,momentum", "optimizer.momentum=0.9"], ["optimizer.momentum"]),
        (["experiment=digits,mnist_resnet18"], ["one experiment"]),
        (["hydra/launcher=cluster"], ["hydra/launcher=cluster", "joblib"]),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], ["n_jobs=0"]),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=4", "jobs=3"], ["jobs=3", "n_jobs=4"]),
        (["jobs=1,2"], ["jobs=1,2", "one value"]),
        (["seed=interval(0,1)"], ["seed=interval(0,1)"]),
    ],
)
def test_a_sweep_is_checked_whole_before_its_first_run(cli, tmp_path, arguments, parts):
    output_dir = tmp_path / "out"
    outcome = cli("-m", "batch_size=64", *arguments, f"output_dir={output_dir}")
    assert_one_clear_line(outcome, parts, output_dir)


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_missing_data_without_network(cli, tmp_path, monkeypatch, data):
    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.HTTPSHandler.https_open", no_network)
    data_dir, output_dir = tmp_path / "data", tmp_path / "out"
    outcome = cli(f"data={data}", f"data_dir={data_dir}", f"output_dir={output_dir}")
    folder = {"mnist": "MNIST/raw", "cifar10": "cifar-10-batches-bin"}[data]
    assert_one_clear_line(outcome, [f"data_dir={data_dir}", folder, "unreachable"], output_dir)
    assert not data_dir.exists()


def test_an_output_directory_that_cannot_be_made(cli, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = cli(*TINY, f"output_dir={tmp_path / 'file'}")
    assert outcome.code != 0 and "output_dir" in outcome.err and "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_one_run_prints_what_it_found(cli, tmp_path):
    outcome = cli(*TINY, "stop.loss=1.5", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("digits_tiny/*/result.json")
    result = json.loads(path.read_text())
    last = outcome.out.strip().splitlines()[-1]
    assert f"{result['steps']:,} steps" in last and f"SFO {result['sfo']:,}" in last
    again = cli(*TINY, "stop.loss=1.5", f"output_dir={tmp_path}")
    assert "known already" in again.out


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def test_a_new_process_needs_nothing_but_the_repository(tmp_path):
    """Also: nothing is written beside the run directory, and progress is quiet lines."""
    done = subprocess.run(
        command(
            "stop.max_steps=40", f"output_dir={tmp_path / 'out'}", "progress.every_seconds=0.01"
        ),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    lines = done.stdout.strip().splitlines()
    assert len(lines) >= 2 and "exhausted after 40 steps" in lines[-1]
    assert "epoch" in lines[0] and "until 0.1" in lines[0] and "left" in lines[0]
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
