import math

import pytest

from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.results.checkpoints import Checkpoint
from cbs_lightning.results.store import read_run
from cbs_lightning.training.choices import choose
from cbs_lightning.training.resources.operations import operations_of_step
from cbs_lightning.training.resources.threads import WORTH_SHARING
from cbs_lightning.training.run import check_run, run
from tests.sweep_jobs import sweep_job


def resolved(*overrides, checkpoint=None, stored=None, sharing=1, operations=WORTH_SHARING):
    return choose(compose(list(overrides)), checkpoint, stored, sharing, lambda: operations)


@pytest.mark.parametrize(
    ("overrides", "workers", "expected"),
    [([], 1, 8), ([], 3, 2), ([], 16, 1), (["threads=5"], 16, 5)],
)
def test_threads_are_shared_between_workers(monkeypatch, overrides, workers, expected):
    monkeypatch.setattr("cbs_lightning.training.resources.threads.cores", lambda: 8)
    sharing = sweep_job(workers=workers).sharing
    assert resolved(*overrides, sharing=sharing).threads == expected
    auto = resolved(*overrides, "micro_batch_size=auto", sharing=sharing)
    assert auto.micro_batch_size == "auto"


def test_small_steps_get_one_thread(monkeypatch):
    monkeypatch.setattr("cbs_lightning.training.resources.threads.cores", lambda: 8)
    assert resolved(operations=WORTH_SHARING / 2).threads == 1
    assert resolved("threads=5", operations=WORTH_SHARING / 2).threads == 5


def operations(*overrides: str) -> float:
    cfg = compose(list(overrides))
    data = check_run(cfg)
    data.setup()
    return operations_of_step(cfg, data)


def test_operations_are_those_of_the_layers():
    linear = ["model._target_=tests.tiny.Linear"]
    # A product of 64 x 10 weights with a sample, three times; a multiplication and an addition.
    assert operations(*linear, "batch_size=5") == 5 * 3 * 2 * 64 * 10
    assert operations(*linear, "batch_size=5000") == 1797 * 3 * 2 * 64 * 10
    assert operations(*linear, "batch_size=500", "micro_batch_size=7") == 7 * 3 * 2 * 64 * 10
    assert operations("batch_size=8") == pytest.approx(8 * operations("batch_size=1"))


def test_of_a_net_that_looks_at_values_nothing_is_known():
    assert operations("model._target_=tests.tiny.Peeking") == math.inf


def test_a_run_that_goes_on_keeps_its_choices(tmp_path):
    checkpoint = Checkpoint(tmp_path, {"threads": 3, "micro_batch_size": 17}, steps=1)
    assert resolved(checkpoint=checkpoint).threads == 3
    assert resolved("threads=1", checkpoint=checkpoint).threads == 1
    auto = resolved("micro_batch_size=auto", checkpoint=checkpoint)
    assert auto.micro_batch_size == 17
    assert resolved("micro_batch_size=5", checkpoint=checkpoint).micro_batch_size == 5
    assert resolved(checkpoint=checkpoint).micro_batch_size is None


def test_a_run_that_is_trained_anew_keeps_its_choices(tiny):
    cfg = tiny("micro_batch_size=100", "stop.max_steps=2")
    run(cfg)
    stored = read_run(run_directory(cfg))
    auto = resolved("micro_batch_size=auto", stored=stored)
    assert (auto.threads, auto.micro_batch_size) == (1, 100)
