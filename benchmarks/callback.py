"""What `StopAtThreshold` costs in anybody's Trainer: the same one with it and without, in turns."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.steps import data_dir
from cbs_lightning import StopAtThreshold
from cbs_lightning.data import Digits
from cbs_lightning.models import ResNet20Net

BATCH_SIZE = 4
STEPS, FIRST = 260, 20  # of a turn, and those of it that do not count
TURNS = 12
TARGET = Target("with the callback / without, b = 4", 1.02, 1.01)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet20Net(1, 10)

    def training_step(self, batch: Any, _: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), fused=True)


class Clock(L.Callback):
    """Seconds of the steps after the first ones."""

    seconds = 0.0

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == FIRST:
            self._began = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self.seconds = time.perf_counter() - self._began


def _seconds_per_step(loader: DataLoader[Any], *, counted: bool) -> float:
    clock = Clock()
    stop = [StopAtThreshold(1e-9, "window", 1797)] if counted else []
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=STEPS, max_epochs=-1, callbacks=[*stop, clock], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), loader)
    return clock.seconds / (STEPS - FIRST)


def run(report: Callable[[str], None]) -> Outcome:
    train = Digits.load(data_dir()).train
    images = train.pixels.permute(0, 3, 1, 2).float() / train.scale
    loader = DataLoader(TensorDataset(images, train.labels), BATCH_SIZE, shuffle=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratios, plain = [], []
    for turn in range(TURNS):
        report(f"turn {turn + 1} of {TURNS}")
        order = (True, False) if turn % 2 else (False, True)
        seconds = {counted: _seconds_per_step(loader, counted=counted) for counted in order}
        ratios.append(seconds[True] / seconds[False])
        plain.append(seconds[False])
    torch.set_num_threads(threads)
    spread = Spread.of(ratios)
    table = Table(
        "StopAtThreshold in a Trainer of one's own: digits, ResNet-20, b = 4, one thread",
        ["", "without, ms", "with / without", "turns"],
        [["StopAtThreshold", f"{1000 * Spread.of(plain).median:.4g}", str(spread), str(TURNS)]],
    )
    return Outcome([{"ratio": asdict(spread)}], [table], [Finding.of(TARGET, {"digits": spread})])
