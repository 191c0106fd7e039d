from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.config.identity import canonical, config_hash, run_directory, variant_label
from cbs_lightning.config.schema import Names, RunConfig
from cbs_lightning.errors import ConfigError, UserError


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


NEEDED = {  # beside an option that does not go with the defaults
    "data=stdlib": ["model=byte_gpt"],
    "data=shakespeare": ["model=byte_gpt"],
    "model=byte_gpt": ["data=stdlib"],
    "optimizer=own": ["model=byte_gpt", "data=stdlib"],
}


@pytest.mark.parametrize(
    "override",
    [
        f"{group}={name}"
        for group in ("data", "model", "optimizer", "experiment")
        for name in options(group)
    ],
)
def test_every_config_of_the_project_is_valid(override):
    check(compose([override, *NEEDED.get(override, [])]))


@pytest.mark.parametrize("name", options("data"))
def test_every_data_set_can_be_built(name):
    instantiate(compose([f"data={name}"]).data, data_dir="data", batch_size=4, seed=0)


def test_the_schema_and_the_yaml_files_have_the_same_keys():
    defaults = OmegaConf.to_container(OmegaConf.load(CONF_DIR / "config.yaml"))
    written = set(defaults) - {"defaults", "hydra", "sweep"}
    groups = {"data", "model", "optimizer", "scheduler", "callbacks", "logger", "trainer"}
    assert {field.name for field in fields(RunConfig)} == written | groups | {"names"}
    for name, kind in get_type_hints(RunConfig).items():
        if is_dataclass(kind) and kind is not Names:
            assert {field.name for field in fields(kind)} == set(defaults[name]), name


BAD = [
    ("batch_size=0", "batch_size=0", ">= 1"),
    ("batch_size=-8", "batch_size=-8", ">= 1"),
    ("batch_size=many", "batch_size=many", "whole number"),
    ("batch_size=2.5", "batch_size=2.5", "whole number"),
    ("batch_size=true", "batch_size=true", "whole number"),
    ("batch_size=null", "batch_size=null", "whole number"),
    ("batch_size=[4,8]", "batch_size=[4, 8]", "whole number"),
    ("micro_batch_size=0", "micro_batch_size=0", "null or auto"),
    ("micro_batch_size=some", "micro_batch_size=some", "null or auto"),
    ("micro_batch_size=true", "micro_batch_size=true", "null or auto"),
    ("activation_checkpointing=1", "activation_checkpointing=1", "true or false"),
    ("compile=fast", "compile=fast", "allowed: default, null, reduce-overhead"),
    ("compile={a:1}", "compile={'a': 1}", "allowed: default, null, reduce-overhead"),
    ("compile=[]", "compile=[]", "allowed: default, null, reduce-overhead"),
    ("compile=true", "compile=true", "allowed: default, null, reduce-overhead"),
    (
        "compile=reduce-overhead trainer.accelerator=cpu",
        "compile=reduce-overhead",
        "CUDA graphs need a CUDA GPU; allowed here: null, default",
    ),
    (
        "compile=reduce-overhead micro_batch_size=8",
        "compile=reduce-overhead",
        "not with micro_batch_size; allowed with it: null, default",
    ),
    (
        "compile=default activation_checkpointing=true",
        "compile=default",
        "not with activation_checkpointing=true; allowed with it: null",
    ),
    ("checkpoint.keep=yes_please", "checkpoint.keep=yes_please", "true or false"),
    ("trusted_packages=os", "trusted_packages=os", "list"),
    ("trusted_packages=[1]", "trusted_packages=[1]", "list"),
    ("seed=-1", "seed=-1", ">= 0"),
    ("seed=x", "seed=x", "whole number"),
    ("seed=4294967296", "seed=4294967296", "<= 4294967295"),
    ("threads=0", "threads=0", ">= 1"),
    ("jobs=1.5", "jobs=1.5", "must be a whole number >= 1 or auto"),
    ("jobs=true", "jobs=true", "must be a whole number >= 1 or auto"),
    ("jobs=null", "jobs=null", "must be a whole number >= 1 or auto"),
    ("stop.loss=0", "stop.loss=0", "> 0"),
    ("stop.loss=-0.1", "stop.loss=-0.1", "> 0"),
    ("stop.loss=low", "stop.loss=low", "number"),
    ("stop.loss=nan", "stop.loss=nan", "> 0"),
    ("stop.loss=inf", "stop.loss=inf", "> 0"),
    ("stop.loss=null", "stop.loss=null", "> 0"),
    ("stop.rule=step", "stop.rule=step", "epoch, middle, window"),
    ("stop.window=0", "stop.window=0", ">= 1"),
    ("stop.max_epochs=0", "stop.max_epochs=0", ">= 1"),
    ("stop.max_steps=1.5", "stop.max_steps=1.5", "whole number"),
    ("stop.max_epochs=null", "stop.max_epochs=null", "budget"),
    ("optimizer.lr=0", "optimizer.lr=0", "> 0"),
    ("optimizer.lr=-1", "optimizer.lr=-1", "> 0"),
    ("optimizer.lr=fast", "optimizer.lr=fast", "number"),
    ("optimizer.betas=[0.9,1]", "optimizer.betas=[0.9, 1]", "[0, 1)"),
    ("optimizer.betas=[-0.1,0.9]", "optimizer.betas=[-0.1, 0.9]", "[0, 1)"),
    ("optimizer.betas=[0.9]", "optimizer.betas=[0.9]", "must be two numbers in [0, 1), such as [0"),
    ("optimizer.betas=0.9", "optimizer.betas=0.9", "two numbers"),
    ("optimizer.eps=-1", "optimizer.eps=-1", ">= 0"),
    ("optimizer.weight_decay=-1", "optimizer.weight_decay=-1", ">= 0"),
    ("optimizer=momentum optimizer.momentum=1", "optimizer.momentum=1", "[0, 1)"),
    ("optimizer=sgd +optimizer.nesterov=true", "optimizer=sgd", "Nesterov"),
    ("+optimizer.speed=1", "optimizer.speed=1", "amsgrad"),
    ("+data.speed=1", "data.speed=1", "normalize"),
    ("+model.depth=1", "model.depth=1", "ResNet20 has no settings"),
    ("+model.micro_batch_size=8", "model.micro_batch_size=8", "ResNet20 has no settings"),
    ("+data.seed=9", "data.seed=9", "normalize"),
    ("+trainer.speed=1", "trainer.speed=1", "accelerator"),
    ("+stop.speed=1", "stop.speed=1", "max_epochs"),
    ("+speed=1", "speed=1", "batch_size"),
    ("data.normalize=maybe", "data.normalize=maybe", "true or false"),
    ("trainer.accelerator=tpus", "trainer.accelerator=tpus", "auto, cpu"),
    ("trainer.devices=2", "trainer.devices=2", "1 device"),
    ("trainer.precision=8", "trainer.precision=8", "32-true"),
    ("trainer.precision=16-mixed", "trainer.precision=16-mixed", "bf16-mixed"),
    ("trainer.deterministic=maybe", "trainer.deterministic=maybe", "warn"),
    ("+trainer.limit_train_batches=2", "trainer.limit_train_batches=2", "stop.max_steps"),
    ("+trainer.logger=true", "trainer.logger=true", "logger=csv"),
    ("optimizer.fused=maybe", "optimizer.fused=maybe", "true or false"),
    ("optimizer.eps=abc", "optimizer.eps=abc", "number >= 0"),
    ("optimizer._target_=foo.Bar", "optimizer._target_=foo.Bar", "imported"),
    (
        "optimizer._target_=torch.optim.Adamm",
        "optimizer._target_=torch.optim.Adamm",
        "module torch.optim has no Adamm; did you mean torch.optim.Adam?",
    ),
    (
        "model._target_=tests.tiny.Tinny",
        "model._target_=tests.tiny.Tinny",
        "module tests.tiny has no Tinny; did you mean tests.tiny.Tiny?",
    ),
    ("model._target_=null", "model._target_=null", "must be a class's import path, such as my"),
    ("model._target_=torch.nn.Linear", "model._target_=torch.nn.Linear", "LightningModule"),
    ("stop=5", "stop=5", "group"),
    ("report=maybe", "report=maybe", "must be true or false"),
    ("tensorboard=null", "tensorboard=null", "group"),
    ("+trainer.max_epochs=3", "trainer.max_epochs=3", "stop.max_epochs"),
    ("+trainer.profiler=nonsense", "trainer.profiler=nonsense", "simple"),
    ("+trainer.benchmark=fast", "trainer.benchmark=fast", "true or false"),
    ("study=a/b", "study=a/b", "folder"),
    ("study=..", "study=..", "folder"),
    (f"study={256 * 'a'}", f"study={194 * 'a'}…", "255 bytes at most"),
    ("study='a\nb'", r"study=a\nb", "folder"),
    ("+model._partial_=true", "model._partial_=true", "must be false"),
    ("+data._partial_=true", "data._partial_=true", "must be false"),
    ("checkpoint.every_seconds=0", "checkpoint.every_seconds=0", "> 0"),
    ("tensorboard.points=1", "tensorboard.points=1", ">= 2"),
]


@pytest.mark.parametrize(("overrides", "named", "allowed"), BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_value_is_named_with_what_is_allowed(overrides, named, allowed):
    with pytest.raises(ConfigError) as error:
        check(compose(overrides.split(" ")))
    message = str(error.value)
    assert message.startswith(f"{named}:") and allowed in message and "\n" not in message


SAME = [
    [],
    ["stop.loss=0.5"],
    ["stop.rule=window", "stop.window=7", "stop.max_epochs=3", "stop.max_steps=5"],
    ["output_dir=elsewhere", "data_dir=elsewhere"],
    ["trainer.accelerator=cpu", "threads=1"],
    ["checkpoint.every_seconds=1", "tensorboard.points=2", "progress.every_seconds=1"],
    ["optimizer.weight_decay=0", "optimizer.lr=0.001"],
    ["study=other"],
]
DIFFERENT = [
    ["batch_size=8"],
    ["micro_batch_size=8"],
    ["compile=default"],
    ["compile=reduce-overhead"],
    ["seed=1"],
    ["optimizer=sgd"],
    ["optimizer.lr=0.01"],
    ["optimizer.betas=[0.9,0.99]"],
    ["optimizer.fused=false"],
    ["model=resnet18"],
    ["data=mnist"],
    ["data.normalize=true"],
    ["data.augment=true"],
    ["data.replacement=true"],
    ["trainer.precision=bf16-mixed"],
    ["trainer.deterministic=false"],
    ["~optimizer.fused"],
    ["optimizer.betas=[0.9,0.9999999]"],
    ["optimizer.betas=[0.9,0.99999999]"],
]


def test_the_hash_covers_what_determines_the_losses_and_nothing_else():
    assert len({config_hash(compose(overrides)) for overrides in SAME}) == 1
    distinct = [[], *DIFFERENT]
    assert len({config_hash(compose(overrides)) for overrides in distinct}) == len(distinct)


def test_the_hash_of_a_configuration_stays_what_it_was():
    """Else finished runs would not be found again."""
    assert config_hash(compose([])) == "2055d13b89a807b9"
    paper = compose(["experiment=cifar10_resnet20", "batch_size=2048"])
    assert config_hash(paper) == "7a03f5a7fd0dccdc"


def test_numbers_that_are_equal_are_one_setting_and_texts_are_compared_by_the_letter():
    values = {"a": [1, {"b": 2}], "c": 1e5, "d": 1e16, "e": 0.5, "f": True}
    floats = {"a": [1.0, {"b": 2.0}], "c": 100_000, "d": 1e16, "e": 0.5, "f": True}
    assert canonical(values) == canonical(floats)
    assert canonical(values) == '{"a": [1, {"b": 2}], "c": 100000, "d": 1e+16, "e": 0.5, "f": true}'
    assert len({canonical(text) for text in ("v1", "v1.0", "corpus-1.1", "corpus-1.0.1")}) == 4


@pytest.mark.parametrize(
    ("name", "before"), [("nadam", "1be04468bc345c9b"), ("radam", "c244729a2657dde0")]
)
def test_a_later_key_of_an_optimizer_leaves_hash_and_label(name, before):
    """Stored configurations from before have no `decoupled_weight_decay`."""
    cfg = compose([f"optimizer={name}"])
    earlier = {k: v for k, v in cfg.optimizer.items() if k != "decoupled_weight_decay"}
    assert len(earlier) < len(cfg.optimizer)
    assert config_hash(cfg) == config_hash(replace(cfg, optimizer=earlier)) == before
    assert variant_label(replace(cfg, optimizer=earlier), cfg) == name
    decoupled = compose([f"optimizer={name}", "optimizer.decoupled_weight_decay=true"])
    assert config_hash(decoupled) != before
    assert decoupled.names.variant == f"{name} decoupled_weight_decay=true"


@pytest.mark.parametrize(
    ("overrides", "study", "variant"),
    [
        ([], "digits_resnet20", "adam"),
        (["batch_size=8", "seed=3", "stop.loss=1"], "digits_resnet20", "adam"),
        (["optimizer=sgd", "optimizer.lr=0.01"], "digits_resnet20", "sgd lr=0.01"),
        (["optimizer.lr=0.001"], "digits_resnet20", "adam"),
        (["optimizer.betas=[0.8,0.99]"], "digits_resnet20", "adam betas=0.8,0.99"),
        (["data.normalize=true"], "digits_resnet20", "adam normalize=true"),
        (["data=mnist", "model=resnet18"], "mnist_resnet18", "adam"),
        (["experiment=cifar10_resnet20"], "cifar10_resnet20", "adam"),
        # the same study, but not the authors' net
        (["data=cifar10"], "cifar10_resnet20", "adam resnet20"),
        (["study=mine", "data=mnist", "model=resnet18"], "mine", "adam mnist resnet18"),
        (["experiment=digits", "study=mine"], "mine", "adam"),
        (["micro_batch_size=8"], "digits_resnet20", "adam micro_batch_size=8"),
        (["compile=default"], "digits_resnet20", "adam compile=default"),
    ],
)
def test_study_and_variant(overrides, study, variant):
    cfg = compose(overrides)
    assert (cfg.study, cfg.names.variant) == (study, variant)


def test_different_configurations_have_different_labels():
    apart = [o for o in DIFFERENT if o not in (["batch_size=8"], ["seed=1"], ["data=mnist"])]
    apart = [o for o in apart if o != ["model=resnet18"]]  # another study
    variants = [compose(overrides).names.variant for overrides in ([], *apart)]
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("override", ["~stop.loss", "~seed", "~stop", "stop.loss=${nothing}"])
def test_what_is_missing_is_named_in_one_line(override):
    with pytest.raises(UserError) as error:
        compose([override])
    assert "\n" not in str(error.value)
    assert override.lstrip("~").partition("=")[0] in str(error.value)


def test_run_directories_are_readable_and_distinct():
    paths = [run_directory(compose(overrides)) for overrides in ([], *DIFFERENT)]
    assert len(set(paths)) == len(paths)
    path = run_directory(compose(["optimizer.betas=[0.8,0.99]", "batch_size=8", "seed=3"]))
    assert path.parent == Path("outputs/digits_resnet20")
    assert path.name.startswith("adam,betas=0.8,0.99-b8-seed3-")


def test_data_dir_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("CBS_DATA_DIR", "/somewhere")
    assert compose([]).data_dir == "/somewhere"
    monkeypatch.delenv("CBS_DATA_DIR")
    assert compose([]).data_dir == "data"


def test_an_experiment_is_a_delta_over_the_defaults_and_yields_to_the_command_line():
    cfg = compose(["experiment=mnist_resnet18"])
    assert (cfg.stop.loss, cfg.stop.max_epochs) == (0.01, 200)
    assert compose(["experiment=digits"]).stop.max_epochs == 30
    assert compose(["experiment=digits", "stop.max_epochs=7"]).stop.max_epochs == 7
