"""The command line as a user has it: what is printed, the exit code, what is left behind."""

import gzip
import importlib
import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

import cbs_lightning
from cbs_lightning.cli.arguments import readable, unreadable
from cbs_lightning.cli.jobs import _print_interrupted
from cbs_lightning.cli.known import nearest_key, options
from cbs_lightning.commands import train_command
from cbs_lightning.config.composition import compose, compose_whole
from cbs_lightning.config.grammar import in_quotes
from cbs_lightning.config.identity import flatten
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import UserError
from cbs_lightning.results.result import Status
from cbs_lightning.search.settings import KEYS
from cbs_lightning.training.run import run
from tests import tiny as tiny_models
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]

BAD = {
    "batch_size=0": ["error: batch_size=0: must be a whole number >= 1"],
    "batch_size=four": ["error: batch_size=four: must be a whole number >= 1"],
    "jobs=0": ["error: jobs=0: must be a whole number >= 1 or auto"],
    "jobs=-1": ["error: jobs=-1: must be a whole number >= 1 or auto"],
    "jobs=many": ["error: jobs=many: must be a whole number >= 1 or auto"],
    "optimizer=sdg": ["did you mean optimizer=sgd? ", "adam, adam_monotone, adamw, amsgrad, lion"],
    "data=cifar": ["data=cifar: did you mean data=cifar10? allowed: cifar10, digits, mnist"],
    "model=resnet": ["did you mean model=resnet20? allowed: byte_gpt, resnet18, resnet20, resn"],
    "experiment=digit": ["did you mean experiment=digits? allowed: betas, cifar10_resnet20, dig"],
    "batchsize=4": ["batchsize=4: no such key; did you mean batch_size=4? allowed: "],
    "optimzer=adam": ["optimzer=adam: no such key; did you mean optimizer=adam? allowed: "],
    "optimizer.beta=0.9": [
        "optimizer.beta=0.9: no such key; did you mean optimizer.betas=0.9? allowed: optimizer."
    ],
    "stop.los=1": ["stop.los=1: no such key; did you mean stop.loss=1? allowed: stop."],
    "lr=0.1": ["lr=0.1: no such key; did you mean optimizer.lr=0.1?"],
    "max_epochs=3": ["max_epochs=3: no such key; did you mean stop.max_epochs=3?"],
    "optimizer=adm": ["optimizer=adm: did you mean optimizer=adam? allowed: adabelief, "],
    "experiment=digts": ["experiment=digts: did you mean experiment=digits? allowed: betas, "],
    "stop.loss={a:1}": ["stop.loss={a:1}: must be a number > 0"],
    "batch_size=4,,": ["=4,,: a value is missing beside a comma; type batch_size=4"],
    "batch_size=,4": ["=,4: a value is missing beside a comma; type batch_size=4"],
    "batch_size=1e3": ["error: batch_size=1e3: must be a whole number >= 1, such as 1000"],
    "batch_size 4": ["batch_size 4: must be key=value; did you mean batch_size=4?"],
    "~data": ["~data: a run needs data; choose one of data=cifar10, digits, mnist, sh"],
    "+model.width=3": ["error: +model.width=3: ResNet20 has no settings"],
    "+batch_size=4": ["+batch_size=4: this key exists; type batch_size=4"],
    "data_dir=~/x": ['data_dir=~/x: ~ is not replaced here; type data_dir="$HOME/x"'],
    "data_dir=/a(b": ["""data_dir=/a(b: has a character that needs quotes: 'data_dir="/a(b"'"""],
    f"study={300 * 'a'}": [f"study={194 * 'a'}…: must be a folder's name", "255 bytes at most"],
    "hydra.sweeper.params={a:1}": ["sweep the keys themselves, such as -m batch_size=4,8"],
    "hydra.run.dir=here": ["hydra.run.dir=here: has no effect here", "set output_dir and study"],
    "hydra.verbose=true": ["hydra.verbose=true: has no effect here", "HYDRA_FULL_ERROR=1"],
    "~optimizer._partial_": ["~optimizer._partial_: must be true; write the line _partial_: true"],
    "hydra.searchpath=[file:///nowhere]": ["hydra.searchpath: /nowhere: no such directory"],
    "model._target_=nothing.Here": ["cannot be imported: No module named 'nothing'"],
    "model.width=3": ["no such key; model=byte_gpt has model.width; ResNet20 has no settings"],
    "optimizer.amsgrad=true": ["no such key; optimizer=amsgrad has optimizer.amsgrad"],
    "optimizer.maximize=true": ["Adam takes it with a plus: +optimizer.maximize=true"],
    "+optimizer.betta=1": ["Adam has no such setting; did you mean optimizer.betas? allowed: am"],
    "--batch-size=4": ["keys are typed without dashes: batch_size=4"],
    "--config-dir=/nowhere": ["--config-dir /nowhere: no such directory"],
    "+batchsize=4": ["error: +batchsize=4: no such key; did you mean batch_size=4? allowed: "],
    "stop.loss=-1": ["error: stop.loss=-1: must be a number > 0"],
    "optimizer.lr=0": ["error: optimizer.lr=0: must be a number > 0"],
    "optimizer.betas=[0.9,2]": [
        "optimizer.betas=[0.9,2]: must be two numbers in [0, 1), such as [0.9,"
    ],
    "trainer.accelerator=gpu": ["trainer.accelerator=gpu: there is none here; allowed: auto, cpu"],
    "hydra.nothing=1": [
        "hydra.nothing=1: no such key; allowed: hydra.callbacks, ",
        "hydra.sweeper",
    ],
    "budget.runs=1": ["budget.runs=1", "a search has hydra.sweeper.budget.runs, with hydra/sweep"],
    "hydra.sweeper.octaves=1": [
        "allowed: hydra.sweeper.grid, hydra.sweeper.params; a search has hydra.sweeper.octaves"
    ],
    "hydra.launcher.partition=a": ["hydra.launcher.partition=a: no such key"],
    "stop.loss=${nothing}": ["error: stop.loss=${nothing}: Interpolation key 'nothing' not found"],
    "~stop.loss": ["error: ~stop.loss: is needed and cannot be removed"],
    "optimizer=null": ["optimizer=null: choose one of the group's options, or leave it out; all"],
    "batch_size": ["error: batch_size: must be key=value, such as batch_size=<value>"],
    "batch_size=4,8": ["error: batch_size=4,8: several values make a sweep, which needs -m"],
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


IN_SWEEPS = [  # of each way to find a mistake, one
    "batch_size=0", "optimizer=sdg", "batchsize=4", "stop.los=1", "experiment=digts",
    "batch_size=4,,", "batch_size=1e3", "~data", "+model.width=3", "+batch_size=4", "data_dir=~/x",
    "hydra.sweeper.params={a:1}", "hydra.run.dir=here", "hydra.searchpath=[file:///nowhere]",
    "model._target_=nothing.Here", "model.width=3", "--batch-size=4", "--config-dir=/nowhere",
    "hydra.sweeper.octaves=1", "hydra.launcher.partition=a", "stop.loss=${nothing}", "~stop.loss",
    "optimizer=null", "batch_size",
]  # fmt: skip


@pytest.mark.parametrize("argument", BAD)
def test_bad_input_ends_in_one_line_and_writes_nothing(cli, tmp_path, argument):
    if argument == "trainer.accelerator=gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    outcome = cli(argument, f"output_dir={tmp_path / 'out'}")
    assert_one_clear_line(outcome, BAD[argument], tmp_path / "out")


@pytest.mark.parametrize("argument", IN_SWEEPS)
def test_bad_input_to_a_sweep_does_so_too(cli, tmp_path, argument):
    outcome = cli("-m", "seed=0,1", argument, f"output_dir={tmp_path / 'out'}")
    assert_one_clear_line(outcome, BAD[argument], tmp_path / "out")


OPTIMIZERS = ", ".join(options("optimizer"))
TOP_LEVEL = sorted({field.name for field in fields(RunConfig)} - {"names"})
LINES = {  # what is typed, and what comes after `error: `
    "optimizer=sgd optimizer.betas=[0.9,0.99]": "optimizer.betas=[0.9,0.99]: no such key; "
    "optimizer=adabelief, adam, adam_monotone, adamw, amsgrad, lion, nadam, radam, schedule_free, "
    "soap, yogi have optimizer.betas; allowed: optimizer.fused, optimizer.lr, "
    "optimizer.weight_decay",
    "optimizer.momentum=0.9": "optimizer.momentum=0.9: no such key; optimizer=momentum, "
    "momentum_ema, muon, rmsprop, signum have optimizer.momentum; allowed: optimizer.betas, "
    "optimizer.eps, optimizer.fused, optimizer.lr, optimizer.weight_decay",
    "optimizer.maximize=true": "optimizer.maximize=true: no such key; "
    "Adam takes it with a plus: +optimizer.maximize=true",
    "width=3": "width=3: no such key; model=byte_gpt has model.width; allowed: "
    f"{', '.join(TOP_LEVEL)}",
    "logger=[csv,wandbb]": "logger=wandbb: did you mean logger=wandb? allowed: csv, mlflow, "
    "tensorboard, wandb",
    "optimizer=own optimizer.lr=0.1": "optimizer.lr=0.1: optimizer=own uses your "
    "configure_optimizers: set it there, or choose optimizer=adam, say",
    "-m 'optimizer=[adam,sgd]'":
        "optimizer=[adam,sgd]: to sweep, without brackets: -m optimizer=adam,sgd",
    "'batch_size=[4,8]'": "batch_size=[4,8]: must be a whole number >= 1; to sweep, without "
    "brackets: batch_size=4,8",
    "stop.rule=windw":
        "stop.rule=windw: did you mean stop.rule=window? allowed: epoch, middle, window",
    "lr_scaling=lin":
        "lr_scaling=lin: did you mean lr_scaling=linear? allowed: linear, none, sqrt, tuned",
    "compile=none": "compile=none: did you mean compile=null? allowed: default, null, "
    "reduce-overhead",
    "optimizer=SGD": f"optimizer=SGD: did you mean optimizer=sgd? allowed: {OPTIMIZERS}",
    "optimizer=null": "optimizer=null: choose one of the group's options, or leave it out; "
    f"allowed: {OPTIMIZERS}",
    "'stop={los:0.1}'": "stop={los:0.1}: no such key; did you mean stop.loss? allowed: "
    "stop.look_every, stop.loss, stop.max_epochs, stop.max_steps, stop.rule, stop.window",
    "optimizer.betas=0.9,0.99": "optimizer.betas=0.9,0.99: several values make a sweep, which "
    "needs -m; a list has brackets: 'optimizer.betas=[0.9,0.99]'",
    "+optimizer=adam": "+optimizer=adam: this key exists; type optimizer=adam",
    "callbacks=early_stopping": "callbacks=early_stopping: a callback is added by "
    "+callbacks.<name>._target_=<class>",
    "trainer.max_epoch=3": "trainer.max_epoch=3: no such key; did you mean trainer.max_epochs? set "
    "stop.max_epochs instead",
    "-m --cfg job":
        "Only one of --run, --multirun, --cfg, --info and --shell_completion can be specified",
    "trainer=gpu": "trainer=gpu: its keys are set one by one, such as trainer.accelerator=gpu",
    "--config-name digit": "--config-name digit: no such file; did you mean experiment=digits? "
    f"experiments: {', '.join(options('experiment'))}",
    "'study=${foo}'": "study=${foo}: Interpolation key 'foo' not found",
    "repeat=nowhere": "repeat=nowhere: No such file or directory; must be a run directory, or its "
    "config.yaml",
    "scheduler=cosine": "scheduler=cosine: needs a horizon: set scheduler.horizon_epochs or "
    "scheduler.horizon_samples",
    "-m hydra/sweeper=critical_batch +hydra.sweeper.octave=2": "+hydra.sweeper.octave=2: no such "
    "key; did you mean hydra.sweeper.octaves? allowed: hydra.sweeper.smallest, "
    "hydra.sweeper.largest, hydra.sweeper.octaves, hydra.sweeper.give_up, hydra.sweeper.probes, "
    "hydra.sweeper.budget",
    "-m hydra/sweeper=critical_batch hydra.sweeper.octave=2": "hydra.sweeper.octave=2: no such "
    "key; did you mean hydra.sweeper.octaves=2? allowed: hydra.sweeper.budget, "
    "hydra.sweeper.give_up, hydra.sweeper.grid, hydra.sweeper.largest, hydra.sweeper.octaves, "
    "hydra.sweeper.params, hydra.sweeper.probes, hydra.sweeper.smallest",
    "'batch_size=2**4'": "batch_size=2**4: must be a whole number >= 1, such as 16",
    "optimizer.lr=0,001": "optimizer.lr=0,001: several values make a sweep, which needs -m; "
    "a number has a decimal point: optimizer.lr=0.001",
    "batch_size=1,000": "batch_size=1,000: several values make a sweep, which needs -m; "
    "a number has no commas: batch_size=1000",
    "seeds=0,1": "seeds=0,1: no such key; did you mean seed=0,1? allowed: "
    f"{', '.join(TOP_LEVEL)}",
    "+lr=0.1": "+lr=0.1: no such key; did you mean optimizer.lr=0.1? allowed: "
    f"{', '.join(TOP_LEVEL)}",
    "accumulate_grad_batches=4": "accumulate_grad_batches=4: no such key; a step is one batch of "
    "batch_size samples; set micro_batch_size to work it in slices instead",
    "checkpoint.every=5": "checkpoint.every=5: no such key; did you mean "
    "checkpoint.every_seconds=5? allowed: checkpoint.every_seconds, checkpoint.keep",
    "model=vision/resnet": f"model=vision/resnet: allowed: {', '.join(options('model'))}",
    "-m optimizer=adam,sgd 'optimizer.betas=[0.9,0.9]'": "optimizer.betas=[0.9,0.9]: not every "
    "option of optimizer in this sweep has this key; optimizer=adabelief, adam, adam_monotone, "
    "adamw, amsgrad, lion, nadam, radam, schedule_free, soap, yogi have optimizer.betas",
    "optimizer._target_=Adam":
        "optimizer._target_=Adam: must be a class's import path, such as my_file.MyClass",
    "-m batch_size=8,sixteen stop.loss=true": "stop.loss=true: must be a number > 0",
    "-m batch_size=8,sixteen": "batch_size=sixteen: must be a whole number >= 1",
}  # fmt: skip


@pytest.mark.parametrize("typed", LINES)
def test_a_mistake_is_answered_with_what_to_type(cli, monkeypatch, tmp_path, typed):
    monkeypatch.chdir(tmp_path)
    outcome = cli(*shlex.split(typed))
    assert outcome.err == f"error: {LINES[typed]}\n" and outcome.code == 1
    assert list(tmp_path.iterdir()) == []


MEANT = {  # a key that there is not, and what may have been meant
    "epochs": "stop.max_epochs",
    "steps": "stop.max_steps",
    "name": "study",
    "gpus": "trainer.devices",
    "optimizer.learning-rate": "optimizer.lr",
    "bs": "batch_size",
    "BatchSize": "batch_size",
    "learning_rate": "optimizer.lr",
    "optimzer.lr": "optimizer.lr",
    "optimizer.loss": "stop.loss",
    "device": "trainer.accelerator",
    "threshold": "stop.loss",
    "experimnt": "experiment",
    "foo": None,
    "optimizer.foo": None,
}


def test_the_key_that_was_meant_is_found_by_its_own_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    cfg = compose_whole([])
    groups = {"optimizer": [f"optimizer.{name}" for name in cfg.optimizer]}
    found = {key: nearest_key(key, cfg, groups.get(key.partition(".")[0], ())) for key in MEANT}
    assert found == MEANT


QUOTES = "has a character that needs quotes"
WORDS = {  # words that Hydra cannot read, or would ignore, and the line about them
    "--config-dr conf": "--config-dr: no such option; did you mean --config-dir?",
    "--multirnu": "--multirnu: no such option; did you mean --multirun?",
    "-multirun": "-multirun: no such option; did you mean --multirun?",
    "--lr 0.1": "--lr: no such option; keys are typed without dashes: optimizer.lr=0.1",
    "--experiment digits":
        "--experiment: no such option; keys are typed without dashes: experiment=digits",
    "--experimental-rerun x":
        "--experimental-rerun: has no effect here: type repeat=<run directory>",
    "--foo": "--foo: no such option; see --help",
    "--config-dir=x batch_size 8": "batch_size 8: must be key=value; did you mean batch_size=8?",
    "--config-dir my conf": "--config-dir my conf: a space needs quotes: --config-dir 'my conf'",
    "-m batch_size=8, 16, 32":
        "batch_size=8, 16, 32: values take commas without spaces; type batch_size=8,16,32",
    "-m batch_size=8 16 seed=1":
        "batch_size=8 16: values take commas without spaces; type batch_size=8,16",
    "batch_size=8 16":
        "batch_size=8 16: values take commas without spaces; type -m batch_size=8,16",
    "optimizer.betas=[0.9, 0.99]": "optimizer.betas=[0.9, 0.99]: values take commas without "
    "spaces; type 'optimizer.betas=[0.9,0.99]'",
    "optimizer=sgd batch_size = 8":
        "batch_size = 8: nothing but = between key and value; type batch_size=8",
    "optimizer=sgd batch_size 8": "batch_size 8: must be key=value; did you mean batch_size=8?",
    "stop.loss= -1": "stop.loss= -1: nothing but = between key and value; type stop.loss=-1",
    "study=my first study":
        "study=my first study: a study's name has no spaces; type study=my_first_study",
    "output_dir=/tmp/my dir":
        "output_dir=/tmp/my dir: a space needs quotes: 'output_dir=/tmp/my dir'",
    "seed=1 output_dir=/a, b (1)":
        f"output_dir=/a, b (1): {QUOTES}: 'output_dir=\"/a, b (1)\"'",
    "help": "help: did you mean --help?",
    "adam": "adam: must be key=value; did you mean optimizer=adam?",
    "optimizer/adam": "optimizer/adam: must be key=value; did you mean optimizer=adam?",
    "optimizer:adam": "optimizer:adam: must be key=value; did you mean optimizer=adam?",
    "batch_size": "batch_size: must be key=value, such as batch_size=<value>",
    "/tmp/out": f"/tmp/out: must be key=value; see {train_command()} --help",
    "=8": f"=8: must be key=value; see {train_command()} --help",
    "hydra.job.num=3":
        "hydra.job.num=3: has no effect here: a run is named after its settings; set study",
    "sweep=3": "sweep=3: has no effect here: a sweep is started by -m",
    "hydra.sweeper=critical_batch":
        "hydra.sweeper=critical_batch: did you mean hydra/sweeper=critical_batch?",
    "experiment=digits.yaml": "experiment=digits.yaml: did you mean experiment=digits?",
    "experiment=conf/experiment/digits.yaml":
        "experiment=conf/experiment/digits.yaml: did you mean experiment=digits?",
    "+hydra.sweeper.params={}": "+hydra.sweeper.params={}: on the command line sweep the keys "
    "themselves, such as -m batch_size=4,8",
    "--config-path x": "--config-path: has no effect here: add a directory by --config-dir",
    "hydra.job.name=x":
        "hydra.job.name=x: has no effect here: a run is named after its settings; set study",
}  # fmt: skip


@pytest.mark.parametrize("typed", WORDS)
def test_words_that_are_no_override_are_put_together(monkeypatch, typed):
    words = typed.split()
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    with pytest.raises(UserError) as error:
        readable(words)
    assert str(error.value) == WORDS[typed]


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("batch_size == 8", "nothing but = between key and value; type batch_size=8"),
        ("batch_size==8", "type batch_size=8"),
        ("optimizer.betas=(0.9, 0.99)", "a list has brackets: 'optimizer.betas=[0.9,0.99]'"),
        ("é=3", "keys are words with dots between them, see python train.py --help"),
        ("batch_size=8;16", "values take commas without spaces; type -m batch_size=8,16"),
        ("batch_size=2^4", "powers are typed as numbers; type batch_size=16"),
        ("batch_size=2^2,2^3", "powers are typed as numbers; type -m batch_size=4,8"),
        ("batch_size=4,,8", "a value is missing beside a comma; type -m batch_size=4,8"),
        ("data_dir=/tmp/a=b", f"{QUOTES}: 'data_dir=\"/tmp/a=b\"'"),
        ("output_dir=/it's here", f"{QUOTES}: 'output_dir=\"/it'\"'\"'s here\"'"),
        ('output_dir="out', "a quote is missing; type output_dir=out"),
        (f"study=({300 * 'a'}", QUOTES),
        ("data_dir=~/x", 'type data_dir="$HOME/x"'),
    ],
)
def test_an_override_that_cannot_be_read_is_mended(monkeypatch, text, cure):
    monkeypatch.setattr(sys, "argv", ["train.py", text])
    assert unreadable(text).endswith(cure)


@pytest.mark.parametrize(
    "argument",
    ["optimizer.lr=-1", "optimizer.betas=0.9", "compile=fast", "repeat=nowhere", "scheduler=cosine",
     "output_dir=/dev/null", "noise.theorem=true", "trainer.max_epochs=3"],
)  # fmt: skip
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_simple_mistake_is_found_before_torch_is_imported(cli, monkeypatch, argument, sweep):
    """Which takes seconds."""
    for module in ("cli.jobs", "config.repeat"):
        monkeypatch.setattr(f"cbs_lightning.{module}.load_frameworks", lambda: 1 / 0)
    sweeper = importlib.import_module("hydra_plugins.cbs_grid_sweeper")
    monkeypatch.setattr(sweeper, "load_frameworks", lambda: 1 / 0)
    outcome = cli(*sweep, argument)
    assert outcome.err.startswith(f"error: {argument.removeprefix('+')}: ")
    assert outcome.err.count("\n") == 1


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


def test_an_output_directory_whose_name_is_too_long(cli, tmp_path):
    for sweep in ((), ("-m",)):
        outcome = cli(*sweep, *TINY, f"output_dir={tmp_path}/{300 * 'n'}")
        assert_one_clear_line(outcome, ["File name too long"], tmp_path / "n")


@pytest.mark.parametrize("sweeper", ["grid", "critical_batch"])
@pytest.mark.parametrize("empty", ["seed=range(0)", "batch_size=range(3,1)"])
def test_a_range_without_values_is_no_sweep(cli, tmp_path, sweeper, empty):
    outcome = cli("-m", f"hydra/sweeper={sweeper}", empty, f"output_dir={tmp_path / 'out'}")
    assert_one_clear_line(outcome, [f"error: {empty}: has no values"], tmp_path / "out")


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
    broken.write_text("_target_: torch.optim.SGD\nlr: [1\n\n\n")
    out = tmp_path / "out"
    outcome = cli(f"--config-dir={tmp_path}/conf", "optimizer=broken", f"output_dir={out}")
    parts = [f"error: optimizer=broken: {broken}, line 2: expected ',' or ']', but got "]
    assert_one_clear_line(outcome, parts, out)


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_what_cannot_be_swept_of_hydras_is_said_with_what_can(cli, tmp_path, mode):
    outcome = cli(*mode, "hydra.sweeper.params.batch_size=4,8", f"output_dir={tmp_path / 'out'}")
    assert_one_clear_line(outcome, ["cannot be swept; type -m batch_size=4,8"], tmp_path / "out")


def test_the_help_is_one_screen_of_keys_that_exist(cli):
    outcome = cli("--help")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and len(lines) <= 36 and max(map(len, lines)) <= 100
    assert "adam, adam_monotone, " in outcome.out and "default," not in outcome.out
    assert "callbacks" not in outcome.out and "own, " in outcome.out
    start = lines.index(next(line for line in lines if line.startswith("Keys")))
    words = [word for line in lines[start + 1 : start + 9] for word in line[17:].split()]
    search = {f"hydra.sweeper.{key}" for key in KEYS}
    keys = {*flatten(asdict(compose([]))), *search, "hydra/launcher"}
    named = [word.partition("=")[0].strip(",") for word in words]
    named = [word for word in named if "_" in word or "." in word.strip(".")]
    assert len(named) > 20 and "noise.probes" in named
    for word in named:
        assert word in keys or any(key.endswith(word) for key in keys if word[0] == "."), word


def test_the_version_is_that_of_this_project(cli):
    outcome = cli("--version")
    assert outcome.out == f"cbs_lightning {cbs_lightning.__version__}\n" and outcome.code == 0


def test_the_help_has_the_options_of_the_users_own_configuration(cli, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "ours.yaml").write_text("")
    outcome = cli("--config-dir", str(tmp_path), "help", "-h")
    assert outcome.code == 0 and "optimizers, ours, prediction" in " ".join(outcome.out.split())


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
    assert len(lines) >= 2 and "budget used up after 40 steps; loss " in lines[-1]
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
