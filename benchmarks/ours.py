"""This project's own path, as `train.py` goes it, giving others their turn between two chunks."""

import io
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, ClassVar

import torch

from cbs_lightning.config import compose
from cbs_lightning.models import Classifier, ResNet20, ResNet20Authors
from cbs_lightning.run import run

Turn = Callable[[int, float], bool]  # steps made and seconds they took -> whether to go on


class Terminal(io.StringIO):
    """Looks like one, so that a run shows its progress bar."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Hosting(Classifier):
    """Calls `turn` after each chunk, when all callbacks are through; its clock stands still then.

    Deterministic algorithms, which a run asks torch for, are off for the others.
    """

    turn: ClassVar[Turn]
    _resumed: float | None = None

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        now = time.perf_counter()
        torch.use_deterministic_algorithms(False)
        steps = len(outputs["size"])
        go_on = type(self).turn(steps, now - self._resumed) if self._resumed is not None else True
        self.trainer.should_stop = not go_on
        torch.use_deterministic_algorithms(True, warn_only=True)
        self._resumed = time.perf_counter()


class HostingResNet20(Hosting, ResNet20):
    pass


class HostingResNet20Authors(Hosting, ResNet20Authors):
    pass


HOSTS: dict[str, type[Hosting]] = {
    "resnet20": HostingResNet20,
    "resnet20_authors": HostingResNet20Authors,
}


def train(overrides: list[str], model: str, turn: Turn) -> None:
    """Run a configuration with everything on, until `turn` says that it is enough."""
    host = HOSTS[model]
    host.turn = staticmethod(turn)
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(Terminal()):
        cfg = compose(
            [
                *overrides,
                f"model={model}",
                f"model._target_={host.__module__}.{host.__qualname__}",
                "stop.loss=1e-30",
                "stop.max_epochs=null",
                "stop.max_steps=100000000",
                f"output_dir={directory}",
                "trainer.accelerator=cpu",
            ]
        )
        run(cfg)
