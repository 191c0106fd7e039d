"""The command line as a user has it: what is printed, the exit code, what is left behind."""

import gzip
import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from cbs_lightning.cli.jobs import _print_interrupted
from cbs_lightning.config.composition import compose
from cbs_lightning.config.grammar import in_quotes
from cbs_lightning.config.identity import flatten
from cbs_lightning.results.result import Status
from cbs_lightning.training.run import run
from tests import tiny as tiny_models
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]

BAD = {
    "batch_size=0": ["batch_size=0", ">= 1"],
    "batch_size=four": ["batch_size=four", "whole number"],
    "jobs=0": ["jobs=0", "must be a whole number >= 1 or auto"],
    "jobs=-1": ["jobs=-1", ">= 1 or auto"],
    "jobs=many": ["jobs=many", "or auto"],
    "optimizer=sdg": ["optimizer=sdg", "adam, adam_monotone, adamw, amsgrad, default, "],
    "data=cifar": ["data=cifar", "cifar10, digits, mnist"],
    "model=resnet": ["model=resnet", "resnet18, resnet20, resnet20_authors"],
    "experiment=digit": ["experiment=digit", "cifar10_resnet20, digits, gpt_bytes, "],
    "batchsize=4": ["batchsize=4: no such key; did you mean batch_size=4? allowed: "],
    "optimzer=adam": ["optimzer=adam: no such key; did you mean optimizer=adam? allowed: "],
    "optimizer.beta=0.9": ["optimizer.beta=0.9", "did you mean optimizer.betas=0.9? allowed: "],
    "stop.los=1": ["stop.los=1: no such key; did you mean stop.loss=1? allowed: stop."],
    "lr=0.1": ["lr=0.1: no such key; did you mean optimizer.lr=0.1?"],
    "max_epochs=3": ["max_epochs=3: no such key; did you mean stop.max_epochs=3?"],
    "optimizer=adm": ["optimizer=adm: did you mean optimizer=adam? allowed: adabelief, "],
    "experiment=digts": ["experiment=digts: did you mean experiment=digits? allowed: betas, "],
    "stop.loss={a:1}": ["stop.loss={'a': 1}"],
    "batch_size=4,,": ["=4,,: a value is missing beside a comma; type batch_size=4"],
    "batch_size=,4": ["=,4: a value is missing beside a comma; type batch_size=4"],
    "batch_size=1e3": ["batch_size=1000.0: must be a whole number >= 1, such as 1000"],
    "batch_size 4": ["batch_size 4: must be key=value, such as batch_size=4"],
    "~data": ["~data: a run needs data; choose another with data=<option>"],
    "+model.width=3": ["model.width=3: ResNet20 has no such setting; allowed: none"],
    "+batch_size=4": ["+batch_size=4: this key exists; type batch_size=4"],
    "data_dir=~/x": ['data_dir=~/x: ~ is not replaced here; type data_dir="$HOME/x"'],
    "data_dir=/a(b": ["data_dir=/a(b: cannot be read", """to pass it as text: 'data_dir="/a(b"'"""],
    f"study={300 * 'a'}": [f"study={300 * 'a'}: must be a folder's name", "255 bytes at most"],
    "hydra.sweeper.params={a:1}": ["sweep the keys themselves, such as -m batch_size=4,8"],
    "hydra.run.dir=here": ["hydra.run.dir=here: has no effect here", "set output_dir and study"],
    "hydra.verbose=true": ["hydra.verbose=true: has no effect here", "HYDRA_FULL_ERROR=1"],
    "~optimizer._partial_": ["optimizer._partial_=False: must be true; write the line _partial_"],
    "hydra.searchpath=[file:///nowhere]": ["hydra.searchpath: /nowhere: no such directory"],
    "model._target_=nothing.Here": ["cannot be imported: No module named 'nothing'"],
    "model.width=3": ["model.width=3: no such key; allowed: none"],
    "optimizer.amsgrad=true": [
        "optimizer.amsgrad=true: an argument of torch.optim.Adam that its file does not set; "
        "type +optimizer.amsgrad=true"
    ],
    "+optimizer.betta=1": ["Adam has no such setting; did you mean optimizer.betas? allowed: am"],
    "--batch-size=4": ["--batch-size=4: no such option; keys are typed as batch_size=<value>"],
    "--config-dir=/nowhere": ["/nowhere' not found"],
    "+batchsize=4": ["batchsize=4", "batch_size"],
    "stop.loss=-1": ["stop.loss=-1", "> 0"],
    "optimizer.lr=0": ["optimizer.lr=0", "> 0"],
    "optimizer.betas=[0.9,2]": ["optimizer.betas=[0.9, 2]", "[0, 1)"],
    "trainer.accelerator=gpu": ["trainer.accelerator=gpu", "auto, cpu"],
    "hydra.nothing=1": ["hydra.nothing=1", "allowed: hydra.callbacks, ", "hydra.sweeper"],
    "budget.runs=1": ["budget.runs=1", "a search has hydra.sweeper.budget.runs, with hydra/sweep"],
    "hydra.sweeper.octaves=1": [
        "allowed: hydra.sweeper.grid, hydra.sweeper.params; a search has hydra.sweeper.octaves"
    ],
    "hydra.launcher.partition=a": ["hydra.launcher.partition=a: no such key"],
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
    assert outcome.err.endswith("nothing was written; choose another output_dir\n")


def test_a_path_with_a_comma_is_told_how_to_be_quoted(cli, tmp_path):
    outcome = cli(*TINY, f"output_dir={tmp_path}/a, b")
    assert_one_clear_line(outcome, ["a comma separates several values"], tmp_path / "a, b")
    (typed,) = shlex.split(outcome.err.partition("to pass one, quote it: ")[2])
    outcome = cli(*TINY, typed, "stop.max_steps=1")
    assert outcome.code == 0 and (tmp_path / "a, b").is_dir()


@pytest.mark.parametrize("value", ['it\'s "so", \\', "a,b\\", '"', "(", "{a}", "a b"])
def test_what_is_to_be_typed_can_be_pasted(value):
    (word,) = shlex.split(in_quotes("output_dir", value))
    assert compose([word]).output_dir == value


def test_a_sweep_has_one_output_directory(cli, tmp_path):
    outcome = cli("-m", *TINY, f"output_dir={tmp_path}/a,b")
    assert_one_clear_line(outcome, ["a sweep takes one value of this key"], tmp_path / "a")
    (typed,) = shlex.split(outcome.err.partition("to pass a comma, quote it: ")[2])
    assert compose([typed]).output_dir == f"{tmp_path}/a,b"


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_sweep_that_cannot_write_does_not_begin(cli, tmp_path, monkeypatch, below):
    closed = tmp_path / "closed"
    closed.mkdir()
    # Root may write where the mode forbids it.
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != closed)
    outcome = cli("-m", *TINY, "seed=0,1", f"output_dir={closed / below}")
    parts = [f"{closed} cannot be written to; nothing was written; choose another output_dir"]
    assert_one_clear_line(outcome, parts, closed / "digits_tiny")
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"garbage", "train-images-idx3-ubyte.gz beside it cannot be unpacked (Not a gzipped"),
        (
            gzip.compress(b"images", mtime=0),
            "train-images-idx3-ubyte.gz is there: unpack it with gunzip",
        ),
    ],
)
def test_a_gz_file_in_the_data_directory(cli, tmp_path, packed, reason):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(packed)
    out = tmp_path / "out"
    outcome = cli("data=mnist", f"data_dir={tmp_path / 'data'}", f"output_dir={out}")
    assert_one_clear_line(outcome, ["MNIST/raw/train-images-idx3-ubyte: missing", reason], out)


def test_a_file_that_is_no_yaml_is_named(cli, tmp_path):
    broken = tmp_path / "conf" / "optimizer" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("lr: [\n")
    out = tmp_path / "out"
    outcome = cli(f"--config-dir={tmp_path}/conf", "optimizer=broken", f"output_dir={out}")
    parts = [f'"{broken}", line 2', "expected the node content", "; correct that file"]
    assert_one_clear_line(outcome, parts, out)


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_what_cannot_be_swept_of_hydras_is_said_with_what_can(cli, tmp_path, mode):
    outcome = cli(*mode, "hydra.sweeper.params.batch_size=4,8", f"output_dir={tmp_path / 'out'}")
    assert_one_clear_line(outcome, ["cannot be swept; type -m batch_size=4,8"], tmp_path / "out")


def test_the_help_is_one_screen_of_keys_that_exist(cli):
    outcome = cli("--help")
    lines = outcome.out.splitlines()
    options = re.compile(r"(experiment|optimizer): ")  # which a terminal wraps
    longest = max(len(line) for line in lines if not options.match(line))
    assert outcome.code == 0 and len(lines) <= 40 and longest <= 100
    assert "adam, adam_monotone, " in outcome.out and "sweep: null" not in outcome.out
    start = lines.index(next(line for line in lines if line.startswith("Keys")))
    words = [word for line in lines[start + 1 : start + 7] for word in line[17:].split()]
    keys = flatten(asdict(compose([])))
    groups = {key.partition(".")[0] for key in keys}
    named = [word.partition("=")[0].rstrip(",") for word in words]
    named = [word for word in named if "_" in word or "." in word.strip(".")]
    assert len(named) > 15
    for word in named:
        assert word in keys or word in groups or word in ("hydra/launcher", ".betas"), word


def test_a_run_that_fails_points_to_its_traceback(cli, tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("the roof\nfell in")

    monkeypatch.setattr(tiny_models.Tiny, "on_train_start", fails)
    outcome = cli(*TINY, f"output_dir={tmp_path}")
    (where,) = tmp_path.glob("*/*/error.txt")
    line = f"error: adam b=256: RuntimeError: the roof fell in; see {where}\n"
    assert outcome.code == 1 and outcome.err.endswith(line)
    assert "in fails" in where.read_text()


def test_one_run_prints_what_it_found(cli, tmp_path):
    outcome = cli(*TINY, "stop.loss=1.5", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("digits_tiny/*/result.json")
    result = json.loads(path.read_text())
    last = outcome.out.strip().splitlines()[-1]
    assert f"{result['steps']:,} steps" in last and f"SFO {result['sfo']:,}" in last
    again = cli(*TINY, "stop.loss=1.5", f"output_dir={tmp_path}")
    assert "already finished" in again.out


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
    assert re.search(
        r": epoch \d\.\d of 1\.4, loss .* \(threshold 0\.1\), (at most .+|less than 1 s) left",
        lines[0],
    )
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_an_interrupted_run_that_had_met_its_threshold_says_so(tiny, capsys):
    cfg = tiny("stop.loss=1.5")
    result = run(cfg)
    capsys.readouterr()
    _print_interrupted(cfg, "title", replace(result, status=Status.INTERRUPTED, steps=None))
    said = capsys.readouterr().out
    assert said.startswith(f"title: reached 1.5 after {result.steps} steps, SFO {result.sfo:,}")
    assert "before it was interrupted; run the same command to finish it" in said
