"""A stored configuration repeats its run, and can build nothing that was not trusted."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.results import provenance as record
from cbs_lightning.results.store import CONFIG, RESULT, read_run
from cbs_lightning.training.run import run
from tests.conftest import TINY

TRUSTED = "trusted_packages=[tests]"


@pytest.fixture
def stored(cli, tmp_path) -> Path:
    """The directory of a run that is not as the defaults have it."""
    outcome = cli(
        *TINY, "optimizer=momentum", "optimizer.momentum=0.8", "seed=3", "stop.max_steps=6",
        f"output_dir={tmp_path / 'original'}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (directory,) = (tmp_path / "original").glob("*/*/")
    return directory


def test_a_stored_configuration_repeats_the_run(cli, tmp_path, stored):
    outcome = cli(f"repeat={stored}", TRUSTED, f"output_dir={tmp_path / 'again'}")
    assert outcome.code == 0, outcome.err
    (again,) = (tmp_path / "again").glob("*/*/")
    assert again.name == stored.name
    one, other = read_run(stored), read_run(again)
    assert np.array_equal(one.trajectory.loss, other.trajectory.loss)
    assert one.result.config_hash == other.result.config_hash
    assert one.result.variant == other.result.variant == "momentum momentum=0.8"
    # also from its file, and the same command twice reuses what is finished
    outcome = cli(f"repeat={stored / CONFIG}", TRUSTED, f"output_dir={tmp_path / 'again'}")
    assert "already finished" in outcome.out


def test_a_result_holds_what_is_needed_to_run_it_again(stored):
    result = json.loads((stored / RESULT).read_text())
    configuration = OmegaConf.to_container(OmegaConf.load(stored / CONFIG))
    assert result["configuration"] == configuration
    assert configuration["optimizer"]["momentum"] == 0.8 and configuration["threads"] == 1
    assert "sweep" not in configuration
    assert result["versions"].keys() == {"python", *record.PACKAGES}
    assert result["device"] == "cpu" and result["threads"] == 1
    assert result["commit"] == record.commit()


def test_the_commit_is_that_of_the_code(tmp_path, monkeypatch):
    import subprocess

    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(record, "PROJECT", tmp_path)
    commit = record.commit.__wrapped__
    assert commit() is None
    git("init")
    assert commit() is None
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    clean = commit()
    assert clean is not None and len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert commit() == clean + "+"
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_the_command_line_overrides_what_is_stored(stored):
    paths = [f"repeat='{stored}'", TRUSTED]
    same = compose(paths)
    assert (same.seed, same.batch_size, same.optimizer["momentum"]) == (3, 256, 0.8)
    assert same.output_dir == "outputs"  # where things are is not somebody else's to say
    other = compose([*paths, "seed=4", "stop.loss=0.5", "batch_size=8"])
    assert (other.seed, other.stop.loss, other.batch_size) == (4, 0.5, 8)
    assert other.optimizer["momentum"] == 0.8 and other.stop.max_steps == 6
    adam = compose([*paths, "optimizer=adam", "optimizer.lr=0.5"])
    assert adam.names.optimizer == "adam" and adam.optimizer["betas"] == [0.9, 0.999]
    assert "momentum" not in adam.optimizer and adam.optimizer["lr"] == 0.5


def test_stored_configurations_can_be_swept_over(cli, tmp_path, stored):
    out = tmp_path / "swept"
    outcome = cli("-m", f"repeat={stored}", TRUSTED, "seed=3,4", "jobs=1", f"output_dir={out}")
    assert outcome.code == 0, outcome.err
    seeds = sorted(json.loads(path.read_text())["seed"] for path in out.glob("*/*/result.json"))
    assert seeds == [3, 4]


def test_a_run_with_an_automatic_slice_repeats_with_that_slice(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("cbs_lightning.training.build.automatic_slice", lambda *_: 100)
    cfg = tiny("model=restless", "micro_batch_size=auto", "stop.max_steps=4")
    run(cfg)
    again = compose([f"repeat='{run_directory(cfg)}'", TRUSTED, f"output_dir={tmp_path / 'again'}"])
    assert again.micro_batch_size == 100
    run(again)
    one, other = (read_run(run_directory(c)).trajectory.loss for c in (cfg, again))
    assert np.array_equal(one, other)


def test_a_configuration_of_an_optimizer_that_has_no_name_here(stored):
    values = OmegaConf.load(stored / CONFIG)
    values.names.optimizer = "mine"
    values.names.variant = "mine momentum=0.8"
    (stored / CONFIG).write_text(OmegaConf.to_yaml(values))
    assert compose([f"repeat='{stored}'", TRUSTED]).names.variant == "mine momentum=0.8"


EVIL = {  # what a stored configuration could try, and what is said to it
    "optimizer._target_=os.system": "may only use cbs_lightning, torch",
    "optimizer._target_=subprocess.Popen": "may only use",
    "model._target_=mine.Net": "trusted_packages",
    "data._target_=builtins.eval": "may only use",
    "optimizer._target_=torch.os.system": "only modules, optimizers",
    "optimizer._target_=torch.hub.load": "only modules, optimizers",
    "optimizer._target_=torch.load": "only modules, optimizers",
    "optimizer._target_=torch.distributed.elastic.multiprocessing.api.SubprocessContext": (
        "only modules, optimizers"
    ),
    "optimizer._target_=torch.nothing": "only modules, optimizers",
    "optimizer._target_=cbs_lightning.files.os.remove": "only modules, optimizers",
    "optimizer._target_=hydra.utils.instantiate": "may only use",
    "+optimizer.eps._target_=os.system": "optimizer.eps._target_=os.system",
    "+model.extra.deep._target_=os.system": "model.extra.deep._target_=os.system",
    "+data.list=[{_target_: os.system}]": "data.list.0._target_=os.system",
    "optimizer._target_=1": "may only use",
}


@pytest.mark.parametrize("change", EVIL)
def test_a_stored_configuration_builds_nothing_that_was_not_trusted(cli, tmp_path, stored, change):
    key, _, value = change.lstrip("+").partition("=")
    values = OmegaConf.load(stored / CONFIG)
    values.model._target_ = "cbs_lightning.models.ResNet20"
    OmegaConf.update(values, key, OmegaConf.create(f"x: {value}").x, force_add=True)
    (stored / CONFIG).write_text(OmegaConf.to_yaml(values))
    outcome = cli(f"repeat={stored}", f"output_dir={tmp_path / 'again'}")
    assert outcome.code == 1
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("error: ") and EVIL[change] in line
    assert not (tmp_path / "again").exists()


def test_a_package_that_the_user_trusts_is_used(stored):
    with pytest.raises(ConfigError, match=r"tests\.tiny\.Tiny: a stored configuration may only"):
        compose([f"repeat='{stored}'"])
    assert compose([f"repeat='{stored}'", TRUSTED]).model["_target_"] == "tests.tiny.Tiny"
    # What is stored cannot add to the list.
    values = OmegaConf.load(stored / CONFIG)
    values.trusted_packages = ["tests"]
    (stored / CONFIG).write_text(OmegaConf.to_yaml(values))
    with pytest.raises(ConfigError):
        compose([f"repeat='{stored}'"])


def test_a_users_own_code_on_their_own_command_line_just_works(cli, tmp_path):
    outcome = cli("model._target_=tests.tiny.Tiny", "stop.max_steps=1", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err


UNREADABLE = {
    "": "is not a run's configuration",
    "{": "cannot be read",
    "- 1": "is not a run's configuration",
    "names: {}\nseed: ${oc.env:HOME}": "may not have interpolations",
    'names: {}\nseed: "\\x24{oc.env:HOME}"': "may not have interpolations",
    'names: {}\noptimizer: {dampening: "\\x24{oc.create:{_target_: os.system}}"}': (
        "may not have interpolations"
    ),
    'names: {}\n"\\x24{a}": 1': "may not have interpolations",
    "names: {}": "is not a run's configuration",
    "names: {data: digits, model: tiny, optimizer: adam}": "is not a run's configuration",
    "!!python/object/apply:os.system [true]": "cannot be read",
    "a: 1": "is not a run's configuration",
}


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_stored_configuration_that_cannot_be_used(tmp_path, content):
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(ConfigError) as error:
        compose([f"repeat='{tmp_path}'"])
    message = str(error.value)
    assert message.startswith(f"repeat={tmp_path}: ") and UNREADABLE[content] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["repeat=/nowhere/at/all"], "No such file"),
        (["repeat=[1]"], "must be a run directory"),
        (["experiment=digits"], "experiment=digits: cannot be combined"),
        (["~seed"], "cannot be combined|needed"),
    ],
)
def test_what_repeat_cannot_do(stored, arguments, said):
    if not arguments[0].startswith("repeat"):
        arguments = [f"repeat='{stored}'", TRUSTED, *arguments]
    with pytest.raises(UserError, match=said):
        compose(arguments)


def test_keys_that_came_later_have_their_defaults(stored):
    values = OmegaConf.load(stored / CONFIG)
    del values["activation_checkpointing"], values["checkpoint"]["keep"]
    (stored / CONFIG).write_text(OmegaConf.to_yaml(values))
    cfg = compose([f"repeat='{stored}'", TRUSTED])
    assert cfg.activation_checkpointing is False and cfg.checkpoint.keep is False


def test_a_copied_run_directory_repeats_as_well(tmp_path, stored):
    shutil.copytree(stored, tmp_path / "copy")
    one, other = (compose([f"repeat='{path}'", TRUSTED]) for path in (stored, tmp_path / "copy"))
    assert config_hash(one) == config_hash(other) == read_run(stored).result.config_hash
