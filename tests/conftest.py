import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

import cbs_lightning.training.run
from cbs_lightning.cli import one_line_errors
from cbs_lightning.config.composition import compose
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.signals import TO_STOP
from tests.forks import Forks
from train import train

TESTS = Path(__file__).parent
TINY = [
    f"hydra.searchpath=[file://{TESTS / 'conf'}]", "model=tiny", "batch_size=256", "threads=1",
    "report=false", "jobs=1",
]  # fmt: skip
LOSS = 0.35  # as in the count by hand
STRANGE = [
    TINY[0], "model=strange", "data=strange", "threads=1", "batch_size=16", f"stop.loss={LOSS}",
    "report=false", "jobs=1",
]  # fmt: skip


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What an optional package is needed for is skipped without it."""
    if find_spec("pytorch_optimizer") is None:
        for item in items:
            if "soap" in item.name:
                item.add_marker(pytest.mark.skip(reason="needs the package pytorch-optimizer"))


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    threads = torch.get_num_threads()
    for number in TO_STOP:  # whatever an earlier test left
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    GlobalHydra.instance().clear()
    torch.set_num_threads(threads)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`python train.py <arguments>` without a new process."""

    def call(*arguments: str) -> Outcome:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        code: object = 0
        try:
            with one_line_errors():
                train()
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        err = captured.err
        if isinstance(code, str):  # the interpreter would print it and exit with 1
            code, err = 1, err + code + "\n"
        assert isinstance(code, int)
        return Outcome(code, captured.out, err)

    return call


@pytest.fixture
def seed_1_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training with that seed does."""
    train_run = cbs_lightning.training.run.train

    def fails(cfg: RunConfig, *rest: Any) -> Any:
        if cfg.seed == 1:
            raise RuntimeError("the roof\nfell in")
        return train_run(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", fails)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., RunConfig]:
    """A completed configuration of a run that takes milliseconds."""

    def config(*overrides: str) -> RunConfig:
        return compose([*TINY, f"output_dir={tmp_path}", *overrides])

    return config


@pytest.fixture
def strange(tmp_path: Path) -> Callable[..., RunConfig]:
    """A completed configuration of a stranger's module and data."""

    def config(*overrides: str) -> RunConfig:
        return compose([*STRANGE, f"output_dir={tmp_path}", *overrides])

    return config


@pytest.fixture
def real_data() -> Path:
    """The folder with the original data sets; without it the test is skipped."""
    path = Path(os.environ.get("CBS_DATA_DIR", "data"))
    for folder in ("MNIST/raw", "cifar-10-batches-bin"):
        if not (path / folder).exists():
            pytest.skip(f"{path / folder} is not there: the real data sets are needed")
    return path
