"""The flags of Lightning's Trainer: passed on, or answered with the key to use instead."""

import importlib.util
import inspect
import logging
import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import yaml

from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.config.identity import (
    LATER_KEYS,
    NEUTRAL_TRAINER_KEYS,
    config_hash,
    run_directory,
)
from cbs_lightning.config.trainer_flags import INSTEAD, PASSED_ON, check_trainer, refusal
from cbs_lightning.errors import ConfigError
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.test_lr_scaling import losses

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTED = ("trainer.md", "learning_rates.md")
PLAIN_HASH = "2055d13b89a807b9"


def test_every_flag_is_passed_on_or_answered():
    flags = set(inspect.signature(L.Trainer).parameters)
    assert set(PASSED_ON) | set(INSTEAD) == flags and not set(PASSED_ON) & set(INSTEAD)


@pytest.mark.parametrize("key", INSTEAD)
def test_a_flag_that_makes_no_sense_here_is_answered(key):
    with pytest.raises(ConfigError) as error:
        check_trainer({key: 2}, None)
    assert str(error.value) == f"trainer.{key}=2: {INSTEAD[key]}"


@pytest.mark.parametrize("typed", ["trainer.max_epochs=2", "+trainer.max_epochs=2"])
def test_the_answer_needs_no_plus(cli, tmp_path, typed):
    outcome = cli(*TINY, typed, f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and not (tmp_path / "out").exists()
    assert outcome.err == f"error: {typed}: set stop.max_epochs instead\n"


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("max_epochs", "stop.max_epochs"),
        ("accumulate_grad_batches", "micro_batch_size"),
        ("fast_dev_run", "stop.max_steps"),
        ("logger", "logger=csv"),
        ("callbacks", "callbacks.<name>._target_"),
        ("default_root_dir", "output_dir"),
        ("enable_checkpointing", "checkpoint.every_seconds"),
        ("strategy", "1 device"),
    ],
)
def test_the_key_to_use_is_named(key, instead):
    assert instead in str(refusal(key))


@pytest.mark.parametrize("typed", ["trainer.gradient_clipval=1", "+trainer.gradient_clipval=1"])
def test_a_misspelt_flag_is_guessed(cli, typed):
    outcome = cli(*TINY, typed)
    meant, allowed = outcome.err.removeprefix(f"error: {typed}: no such key; ").split("? ")
    assert meant.removesuffix("=1") == "did you mean trainer.gradient_clip_val"
    assert allowed.startswith("allowed: trainer.accelerator, ")


def test_a_misspelt_flag_that_is_refused_is_guessed_too():
    assert "did you mean trainer.max_epochs?" in str(refusal("max_epoch"))
    assert "did you mean" not in str(refusal("zzz"))


def test_a_flag_that_the_configuration_does_not_list_needs_a_plus(cli):
    outcome = cli(*TINY, "trainer.benchmark=true")
    assert outcome.err == "error: trainer.benchmark=true: type +trainer.benchmark=true\n"
    check(compose(["+trainer.benchmark=true"]))


BAD = {
    "trainer.gradient_clip_val=0": "trainer.gradient_clip_val=0: must be a number > 0",
    "trainer.gradient_clip_val=high": "trainer.gradient_clip_val=high: must be a number > 0",
    "trainer.gradient_clip_val=1 trainer.gradient_clip_algorithm=sign":
        "trainer.gradient_clip_algorithm=sign: allowed: norm, value",
    "trainer.gradient_clip_algorithm=value":
        "trainer.gradient_clip_algorithm=value: needs trainer.gradient_clip_val as well",
    "trainer.log_every_n_steps=-1": "trainer.log_every_n_steps=-1: must be a whole number >= 0",
    "trainer.detect_anomaly=maybe": "trainer.detect_anomaly=maybe: must be true or false",
    "+trainer.inference_mode=1": "trainer.inference_mode=1: must be true or false",
    "trainer.check_val_every_n_epoch=0":
        "trainer.check_val_every_n_epoch=0: must be a whole number >= 1 or null",
    "trainer.check_val_every_n_epoch=null":
        "trainer.check_val_every_n_epoch=null: needs trainer.val_check_interval as a whole number",
    "trainer.val_check_interval=1.5":
        "trainer.val_check_interval=1.5: must be a whole number of steps >= 1, a share",
    "trainer.val_check_interval=0": "trainer.val_check_interval=0: must be a whole number",
    "trainer.val_check_interval=01:00:00":
        "trainer.val_check_interval=01:00:00: must be a whole number of steps",
    "trainer.limit_val_batches=-1": "trainer.limit_val_batches=-1: must be a whole number >= 0",
    "trainer.limit_val_batches=1.5": "trainer.limit_val_batches=1.5: must be a whole number >= 0",
    "trainer.profiler=xla": "trainer.profiler=xla: allowed: advanced, null, pytorch, simple",
    "trainer.devices=2": "trainer.devices=2: a run has 1 device",
    "trainer.devices=true": "trainer.devices=true: a run has 1 device",
}  # fmt: skip


@pytest.mark.parametrize("overrides", BAD)
def test_a_bad_value_is_named_with_what_is_allowed(overrides):
    with pytest.raises(ConfigError) as error:
        check(compose(overrides.split()))
    assert str(error.value).startswith(BAD[overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        "trainer.gradient_clip_val=0.5 trainer.gradient_clip_algorithm=value",
        "trainer.check_val_every_n_epoch=null trainer.val_check_interval=10",
        "trainer.val_check_interval=0.5 trainer.limit_val_batches=0",
        "trainer.limit_val_batches=1.0 trainer.log_every_n_steps=0",
    ],
)
def test_lightning_takes_what_is_allowed(overrides):
    trainer = compose(overrides.split()).trainer
    check_trainer(trainer, has_gpu=lambda kind: False)
    L.Trainer(**trainer, logger=False, enable_checkpointing=False, max_steps=1)


@pytest.mark.parametrize(
    ("accelerator", "present", "refused"),
    [("gpu", {"mps"}, False), ("cuda", {"mps"}, True), ("mps", set(), True), ("cpu", set(), False),
     ("auto", set(), False), ("gpu", None, False)],
)  # fmt: skip
def test_an_accelerator_must_be_here_where_that_is_known(accelerator, present, refused):
    trainer = compose([f"trainer.accelerator={accelerator}"]).trainer
    has_gpu = None if present is None else present.__contains__
    if not refused:
        check_trainer(trainer, has_gpu)
        return
    with pytest.raises(ConfigError, match="there is none here"):
        check_trainer(trainer, has_gpu)


def test_the_hash_covers_flags_that_may_change_losses_and_old_hashes_stay():
    neutral = [
        "trainer.profiler=simple", "trainer.log_every_n_steps=1", "trainer.detect_anomaly=true",
        "+trainer.inference_mode=false", "trainer.gradient_clip_algorithm=norm",
    ]  # fmt: skip
    assert {config_hash(compose([each])) for each in neutral} == {PLAIN_HASH}
    changing = [
        "trainer.gradient_clip_val=1", "trainer.gradient_clip_val=2",
        "trainer.check_val_every_n_epoch=2", "trainer.val_check_interval=0.5",
        "trainer.limit_val_batches=3",
    ]  # fmt: skip
    assert len({config_hash(compose([each])) for each in changing} | {PLAIN_HASH}) == 6
    for key in ("val_check_interval", "limit_val_batches"):  # 1 is one batch, 1.0 is all
        assert config_hash(compose([f"trainer.{key}=1.0"])) == PLAIN_HASH
        assert config_hash(compose([f"trainer.{key}=1"])) != PLAIN_HASH
    labels = {compose([each]).names.variant for each in changing}
    assert "adam gradient_clip_val=1" in labels and len(labels) == 5


def test_the_defaults_that_the_hash_leaves_out_are_those_of_the_configuration():
    trainer = compose([]).trainer
    later = {key.removeprefix("trainer."): v for key, v in LATER_KEYS.items() if "trainer." in key}
    assert {key: trainer[key] for key in later} == later
    first_release = {"accelerator", "devices", "precision", "deterministic"}
    assert set(trainer) == first_release | set(later) | (set(NEUTRAL_TRAINER_KEYS) & set(trainer))
    assert (CONF_DIR / "trainer" / "default.yaml").exists()


def test_a_run_may_look_for_anomalies_without_another_loss(tiny):
    plain, looking = tiny("stop.max_steps=5"), tiny("trainer.detect_anomaly=true")
    run(plain)
    expected = losses(plain).copy()
    assert run_directory(plain) == run_directory(looking)
    (run_directory(plain) / "result.json").unlink()
    run(tiny("trainer.detect_anomaly=true", "stop.max_steps=5"))
    assert (losses(plain) == expected).all()


@pytest.mark.parametrize("profiler", ["simple", "advanced", "pytorch"])
def test_a_profiler_prints_its_table_at_the_end_of_a_run(tiny, profiler):
    """Through Lightning's log, the rest of which is kept quiet."""
    printed: list[str] = []

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            printed.append(record.getMessage())

    handler = Printed()
    logging.getLogger("lightning.pytorch").addHandler(handler)
    try:
        run(tiny("stop.max_steps=3", f"trainer.profiler={profiler}"))
    finally:
        logging.getLogger("lightning.pytorch").removeHandler(handler)
    (table,) = printed
    assert table.startswith("FIT Profiler Report")


PAGES = {name: (DOCS / name).read_text() for name in DOCUMENTED}
COMMANDS = [
    (name, line)
    for name, page in PAGES.items()
    for line in re.findall(r"^python train\.py (.*)$", page, re.MULTILINE)
    if "experiment=" not in line
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_commands_of_the_pages_are_valid(page, command, monkeypatch):
    """With the first value of what they sweep."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    words = [re.sub(r"=([^\[,]*),.*", r"=\1", word) for word in command.split() if word != "-m"]
    check(compose([word for word in words if word != "lr_scaling=tuned"]))


def test_the_answers_on_the_page_are_those_that_are_given(cli):
    given = re.findall(
        r"^\$ python train\.py (.*)\n(error: .*)$", PAGES["trainer.md"], re.MULTILINE
    )
    assert len(given) == 3
    for command, said in given:
        assert cli(command).err.startswith(said.removesuffix("..."))


def test_the_page_has_the_flags_with_their_defaults():
    rows = re.findall(r"^\| `trainer\.(\w+)` \| (\S+) \|", PAGES["trainer.md"], re.MULTILINE)
    defaults = compose([]).trainer
    shown = {key: yaml.safe_load(value.strip("`")) for key, value in rows}
    assert shown == {key: defaults[key] for key in shown}
    elsewhere = {"accelerator", "devices", "precision", "deterministic"}
    assert shown.keys() == defaults.keys() - elsewhere


def test_the_schedule_of_the_page_is_one():
    (block,) = re.findall(r"```python\n(class .*?)```", PAGES["learning_rates.md"], re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    halved = names["Halved"](horizon_samples=10)
    assert [halved.factor(samples) for samples in (0, 9, 10)] == [1, 1, 0.5]
