import pytest

from cbs_lightning import results
from cbs_lightning.choices import resolve
from cbs_lightning.config import compose


def resolved(directory, *overrides):
    cfg = compose(list(overrides))
    resolve(cfg, directory)
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
def test_threads_are_shared_between_workers(monkeypatch, tmp_path, overrides, expected):
    monkeypatch.setattr("cbs_lightning.threads.cores", lambda: 8)
    assert resolved(tmp_path, *overrides).threads == expected


def test_a_run_that_goes_on_keeps_its_choices(tmp_path):
    (tmp_path / results.CONFIG).write_text("threads: 3\nmicro_batch_size: 17\n")
    assert resolved(tmp_path).threads == 3
    assert resolved(tmp_path, "threads=1").threads == 1
    assert resolved(tmp_path, "micro_batch_size=auto").micro_batch_size == 17
    assert resolved(tmp_path, "micro_batch_size=5").micro_batch_size == 5
    assert resolved(tmp_path).micro_batch_size is None


@pytest.mark.parametrize("content", ["", "{", "- 1", "threads: many\n", "\x00\x01", "a: ${"])
def test_a_damaged_configuration_is_no_obstacle(tmp_path, monkeypatch, content):
    monkeypatch.setattr("cbs_lightning.threads.cores", lambda: 8)
    (tmp_path / results.CONFIG).write_text(content)
    assert resolved(tmp_path, "micro_batch_size=auto").threads == 8
