import pytest

from cbs_lightning.checkpoints import Checkpoint
from cbs_lightning.choices import resolve
from cbs_lightning.config import compose
from cbs_lightning.results import read_run
from cbs_lightning.run import run, run_directory


def resolved(*overrides, checkpoint=None, stored=None):
    cfg = compose(list(overrides))
    resolve(cfg, checkpoint, stored)
    return cfg


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 8),
        (["sweep.workers=3"], 2),
        (["sweep.workers=16"], 1),
        (["threads=5", "sweep.workers=16"], 5),
    ],
)
def test_threads_are_shared_between_workers(monkeypatch, overrides, expected):
    monkeypatch.setattr("cbs_lightning.threads.cores", lambda: 8)
    assert resolved(*overrides).threads == expected
    assert resolved(*overrides, "micro_batch_size=auto").micro_batch_size == "auto"


def test_a_run_that_goes_on_keeps_its_choices(tmp_path):
    checkpoint = Checkpoint(tmp_path, {"threads": 3, "micro_batch_size": 17})
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
