import pytest

from cbs_lightning import results
from cbs_lightning.config import compose
from cbs_lightning.threads import threads


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
    assert threads(compose(overrides), tmp_path) == expected


def test_a_resumed_run_keeps_its_threads(tmp_path):
    (tmp_path / results.CONFIG).write_text("threads: 3\n")
    (tmp_path / results.CHECKPOINT).write_bytes(b"")
    assert threads(compose([]), tmp_path) == 3
    assert threads(compose(["threads=1"]), tmp_path) == 1
