"""A model of 8x8 images that trains in milliseconds."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cbs_lightning.models import Classifier


class Tiny(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, num_classes),
        )


class Linear(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 8 * 8, num_classes, bias=False))


class Peeking(Tiny):
    """Its way depends on what it computed."""

    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return Peek(super().build_net(in_channels, num_classes))


class Peek(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits if float(logits.sum()) > 0 else -logits


class Deadly(Tiny):
    """Its process is killed as soon as seed 1 trains."""

    def on_train_start(self) -> None:
        if self.trainer.train_dataloader.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Counted(Tiny):
    """Leaves a line in a file whenever it begins to train, and then takes its time."""

    def __init__(self, counted: str, chunk_seconds: float = 0, **classifier: Any) -> None:
        super().__init__(**classifier)
        self.counted = Path(counted)
        self.chunk_seconds = chunk_seconds

    def train_chunk(self, *arguments: Any) -> Any:
        time.sleep(self.chunk_seconds)
        return super().train_chunk(*arguments)

    def on_train_start(self) -> None:
        with self.counted.open("a") as file:
            file.write(f"{self.trainer.train_dataloader.seed}\n")

    def on_train_epoch_end(self) -> None:
        time.sleep(0.2)


class Leisurely(Counted):
    """Takes a second for an epoch, until there is a file `go` beside the one with the lines."""

    def on_train_epoch_end(self) -> None:
        if not self.counted.with_name("go").exists():
            time.sleep(1)


class Restless(Classifier):
    """Has all that a checkpoint must hold: BatchNorm's statistics, and dropout's random numbers."""

    def __init__(self, *arguments: Any, dropout: float = 0.2, **classifier: Any) -> None:
        self.dropout = dropout
        super().__init__(*arguments, **classifier)

    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, num_classes),
        )
