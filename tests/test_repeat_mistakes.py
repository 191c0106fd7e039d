"""A stored configuration that is damaged or hostile takes one line, or is told of."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from cbs_lightning.config import agreement
from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import ConfigError
from cbs_lightning.results.store import CONFIG, RESULT
from cbs_lightning.training.run import run
from tests.conftest import TESTS, TINY

TRUSTED = "trusted_packages=[tests]"
BOMB = "a: &a [x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghijk")
)


@pytest.fixture
def stored(tiny) -> Path:
    """The directory of a run that is not as the defaults have it."""
    cfg = tiny("optimizer=momentum", "optimizer.momentum=0.8", "seed=3", "stop.max_steps=6")
    run(cfg)
    return run_directory(cfg)


def put(directory: Path, change: str) -> None:
    """Give a dotted key of the configuration another value."""
    values = OmegaConf.to_container(OmegaConf.load(directory / CONFIG))
    ((key, value),) = yaml.safe_load(change).items()
    *groups, last = key.split(".")
    group = values
    for name in groups:
        group = group[name]
    group[last] = value
    (directory / CONFIG).write_text(yaml.safe_dump(values, sort_keys=False))


UNREADABLE = {
    "a: &a [1]\nb: *a": "may not have anchors and aliases",
    "a: &a 1": "may not have anchors and aliases",
    BOMB: "may not have anchors and aliases",
    "a: !!str 1": "may not have tags",
    "a: !mine 1": "may not have tags",
    "names: {}\na: ???": "a value is missing",
    "[" * 30: "more than 20 levels",
    "- " * 30_000: "more than 20 levels",
    "a: " + "x" * 100_000: "more than 65,536 bytes",
    "seed: 1\nseed: 2": "duplicate key seed",
    "a: 1\n---\nb: 1": "cannot be read",
    "a: \x07": "cannot be read",
    "seed: 1" + 5000 * "0": "cannot be read",
}


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_no_run_writes_is_refused_before_anything_is_made_of_it(tmp_path, content):
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(ConfigError) as error:
        compose([f"repeat='{tmp_path}'"])
    message = str(error.value)
    assert message.startswith(f"repeat={tmp_path}: ") and UNREADABLE[content] in message
    assert "\n" not in message and len(message) < 1000


def test_what_is_no_text_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / CONFIG)
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="is no file"):
            compose([f"repeat='{path}'"])
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        compose([f"repeat='{tmp_path / 'bytes'}'"])


WRONG = {  # what a stored configuration could say, and what is said to it
    "batch_sizm: 512": "batch_sizm=512: no such key; did you mean batch_size? allowed: act",
    "names.optimiser: adam": "names.optimiser=adam: no such key; did you mean names.optimizer?",
    "stop.los: 0.1": "stop.los=0.1: no such key; did you mean stop.loss? allowed: stop.look",
    '"two\\nlines": 1': r"two\nlines=1: no such key",
    "names.data: 5": "names.data=5: must be an option's name",
    "names.data: [a]": "names.data=['a']: must be an option's name",
    "names.model: ../../etc": "names.model=../../etc: must be an option's name",
    "names.optimizer: a/b": "names.optimizer=a/b: must be an option's name",
    "names.optimizer: ..": "names.optimizer=..: must be an option's name",
    'names.optimizer: "a\\nb"': r"names.optimizer=a\nb: must be an option's name",
    "names.optimizer: null": "names.optimizer=null: must be an option's name",
    "names.experiment: 1.5": "names.experiment=1.5: must be an option's name",
    "names.variant: 5": "names.variant=5: must be a line of text",
    'names.variant: "a\\nb"': r"names.variant=a\nb: must be a line of text",
    f"study: {256 * 'a'}": "255 bytes at most",
    'study: "a\\nb"': r"study=a\nb: must be a folder's name",
    "study: null": "study=null: must be a folder's name",
    "data._partial_: true": "data._partial_=true: must be false",
    "model._partial_: true": "model._partial_=true: must be false",
    "optimizer._partial_: false": "optimizer._partial_=false: must be true",
    "model._args_: [1]": "model._args_=[1]: Tiny has no settings",
    "model._recursive_: maybe": "model._recursive_=maybe: must be true or false",
    "model._convert_: maybe": "model._convert_=maybe: allowed: all, none, object, partial",
    "trainer._target_: 1": "trainer._target_=1: a stored configuration may only use",
    "optimizer: {_target_: torch.optim.LBFGS, _partial_: true, lr: 0.1}": (
        "optimizer=momentum: needs several losses per step (a closure); choose one that needs a"
    ),
    "optimizer: {_target_: torch.optim.SparseAdam, _partial_: true, lr: 0.1}": (
        "optimizer=momentum: needs sparse gradients; those of nets here are dense"
    ),
    "optimizer.dampening: many": "optimizer.dampening=many: must be a number",
    f"stop.loss: 1{400 * '0'}": "must be a number > 0",
    "threads: 4000000000": "must be a whole number >= 1 and <= 32768",
    "trainer.deterministic: 1": "trainer.deterministic=1: allowed: true, false, warn",
    "trainer.devices: true": "trainer.devices=true: a run has 1 device",
    "trainer.devices: 1.0": "trainer.devices=1.0: a run has 1 device",
}


@pytest.mark.parametrize("change", WRONG, ids=[change[:40] for change in WRONG])
def test_a_mistake_in_a_stored_configuration_takes_one_line(cli, tmp_path, stored, change):
    put(stored, change)
    outcome = cli(f"repeat={stored}", TRUSTED, f"output_dir={tmp_path / 'again'}")
    assert outcome.code == 1
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("error: ") and WRONG[change] in line
    assert not (tmp_path / "again").exists()


def test_an_optimizer_may_be_called_null(stored):
    for name in ("null", "1", "true", "0.5"):
        put(stored, f"names.optimizer: '{name}'")
        assert compose([f"repeat='{stored}'", TRUSTED]).names.optimizer == name


@pytest.mark.parametrize(
    "target",
    [
        "torchvision.models.ResNet",
        "torchmetrics.image.fid.FrechetInceptionDistance",
        "lightning.pytorch.demos.mnist_datamodule.MNISTDataModule",
        "cbs_lightning.data.MNIST",
        "torch.distributed.nn.api.remote_module.RemoteModule",
        "torchvision.models.resnet18",
        "torchvision.datasets.MNIST",
    ],
)
def test_what_is_inside_arguments_may_only_be_a_plain_module(stored, target):
    """Others download what they are made of."""
    put(stored, f"model.inside: {{_target_: {target}, weights: DEFAULT, download: true}}")
    with pytest.raises(ConfigError, match=rf"model.inside._target_={target}: .*only modules"):
        compose([f"repeat='{stored}'", TRUSTED])
    put(stored, "model.inside: {_target_: torch.nn.ReLU}")
    assert compose([f"repeat='{stored}'", TRUSTED]).model["inside"]


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "deeplabv3_resnet50", "[1]", "null"])
def test_only_classifiers_of_torchvision_are_built(stored, name):
    """Its other nets download what they begin with."""
    target = "_target_: cbs_lightning.models.TorchvisionNet"
    put(stored, f"model: {{{target}, name: {name}}}")
    with pytest.raises(ConfigError, match=r"model\.name=.*allowed: alexnet"):
        check(compose([f"repeat='{stored}'"]))
    put(stored, f"model: {{{target}, name: resnet34}}")
    check(compose([f"repeat='{stored}'"]))


DIFFERENT = {
    "seed: 4": "seed=4 (result.json: 3)",
    "batch_size: 128": "batch_size=128 (result.json: 256)",
    "optimizer.lr: 0.002": "optimizer.lr=0.002 (result.json: 0.001)",
    "stop.max_steps: 7": "stop.max_steps=7 (result.json: 6)",
    "micro_batch_size: 16": "micro_batch_size=16 (result.json: null)",
    "optimizer.nesterov: false": "optimizer.nesterov=false (result.json: missing)",
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_a_configuration_that_is_not_its_results_is_told_of(cli, tmp_path, stored, change):
    put(stored, change)
    outcome = cli(f"repeat={stored}", TRUSTED, f"output_dir={tmp_path / 'again'}")
    assert outcome.code == 0, outcome.err
    said = "differs from what result.json beside it was made with"
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: {stored / CONFIG}: {said}: {DIFFERENT[change]}")


def test_a_sweep_over_such_a_configuration_tells_it_once(cli, tmp_path, stored, capsys):
    put(stored, "stop.loss: 0.3")
    given = ("-m", f"repeat={stored}", TRUSTED, "seed=3,4", f"output_dir={tmp_path / 'swept'}")
    outcome = cli(*given, "jobs=1")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("stop.loss=0.3 (result.json: 0.1)") == 1
    agreement._warn.cache_clear()  # as in a worker's process
    compose([f"repeat='{stored}'", TRUSTED, "sweep=job"])
    assert capsys.readouterr().out == ""


def test_a_missing_key_is_told_of_and_a_missing_result_is_not(stored, capsys):
    values = OmegaConf.load(stored / CONFIG)
    del values["batch_size"]
    (stored / CONFIG).write_text(OmegaConf.to_yaml(values))
    capsys.readouterr()
    assert compose([f"repeat='{stored}'", TRUSTED]).batch_size == 64
    out = capsys.readouterr().out
    assert "batch_size=missing (result.json: 256), config_hash=" in out and out.count("\n") == 1
    (stored / RESULT).unlink()
    compose([f"repeat='{stored}'", TRUSTED])
    assert capsys.readouterr().out == ""


def test_a_result_that_is_damaged_cannot_be_compared_with(stored, capsys):
    (stored / RESULT).write_text("{")
    capsys.readouterr()
    compose([f"repeat='{stored}'", TRUSTED])
    out = capsys.readouterr().out
    assert "cannot be compared with result.json beside it" in out and out.count("\n") == 1


def test_what_was_not_changed_is_not_told_of(tiny, capsys, monkeypatch):
    """Also where a slice or the threads were chosen automatically, and for runs of old."""
    monkeypatch.setattr("cbs_lightning.training.build.automatic_slice", lambda *_: 100)
    directories = [path.parent for path in (TESTS / "first_release").glob("*/*/*/config.yaml")]
    assert len(directories) > 2
    for given in (["micro_batch_size=auto", "threads=null"], ["micro_batch_size=100"], []):
        cfg = tiny("stop.max_steps=2", *given)
        run(cfg)
        # Answered from the losses, which changes the result's threshold.
        run(tiny("stop.max_steps=1", "stop.loss=2", *given))
        directories.append(run_directory(cfg))
    capsys.readouterr()
    for directory in directories:
        compose([f"repeat='{directory}'", TRUSTED, "seed=17", "batch_size=8"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "argument",
    [f"study={256 * 'a'}", f"study={300 * 'é'}", "study='a\nb'", "study=a\nb", "stud\ny=1", "a\nb"],
    ids=["long", "bytes", "quoted", "newline", "key", "word"],
)
@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
def test_odd_words_on_the_command_line_take_one_line(cli, tmp_path, argument, sweep):
    outcome = cli(*sweep, *TINY, argument, "stop.max_steps=1", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1 and len(outcome.err) < 1000
    assert not (tmp_path / "out").exists()
