"""This project's own path, as `train.py` goes it, which gives others their turn now and then."""

import io
import tempfile
import time
from contextlib import redirect_stdout, suppress
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from cbs_lightning.config.composition import compose
from cbs_lightning.models import Classifier, ResNet20, ResNet20Authors
from cbs_lightning.training.run import run


class Guests(Protocol):
    every: int  # steps of a run between two turns of theirs

    def between_steps(self) -> None: ...

    def after_chunk(self, steps: int, seconds: float) -> bool:
        """What the run did since it was here last; whether it is to go on."""


class SeenEnoughError(Exception):
    """Ends a run, which would go on to its threshold."""


class Hosting(Classifier):
    """Lets guests in between two steps, and after each chunk when all callbacks are through.

    Its clock stands still meanwhile. Deterministic algorithms, which a run asks torch for, are off
    for them. Its progress bar is drawn in their time, too: a millisecond, twice a second.
    """

    hooks_per_chunk = True
    guests: ClassVar[Guests]

    def __init__(self, **classifier: Any) -> None:
        super().__init__(**classifier)
        self.net.register_forward_pre_hook(self._before_step)
        self._steps = 0  # of this chunk
        self._seconds = 0.0
        self._resumed = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self._pause()
        if not self.guests.after_chunk(self._steps, self._seconds):
            raise SeenEnoughError
        self._steps, self._seconds = 0, 0.0
        self._resume()

    def _before_step(self, *_: Any) -> None:
        if self._steps and self._steps % self.guests.every == 0:
            self._pause()
            self.guests.between_steps()
            self._resume()
        self._steps += 1

    def _pause(self) -> None:
        self._seconds += time.perf_counter() - self._resumed
        torch.use_deterministic_algorithms(False)

    def _resume(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        self._resumed = time.perf_counter()


class HostingResNet20(Hosting, ResNet20):
    pass


class HostingResNet20Authors(Hosting, ResNet20Authors):
    pass


class HostingLinear(Hosting):
    """Of digits, for what does not depend on the net."""

    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 8 * 8, num_classes))


NETS: dict[str, type[Hosting]] = {
    "resnet20": HostingResNet20,
    "resnet20_authors": HostingResNet20Authors,
}


class Terminal(io.StringIO):
    """Looks like one, so that a run shows its progress bar."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def train(overrides: list[str], host: type[Hosting], guests: Guests) -> None:
    """Run a configuration with everything on, until the guests have seen enough."""
    host.guests = guests
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(Terminal()):
        cfg = compose(
            [
                *overrides,
                f"model._target_={host.__module__}.{host.__qualname__}",
                "stop.loss=1e-30",
                "stop.max_epochs=null",
                "stop.max_steps=100000000",
                f"output_dir={directory}",
                "trainer.accelerator=cpu",
            ]
        )
        with suppress(SeenEnoughError):
            run(cfg)
