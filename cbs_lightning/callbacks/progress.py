"""How far a run is, as a line now and then."""

import time
from collections.abc import Callable
from typing import Any, TypeGuard

import lightning as L
from torch import Tensor

from cbs_lightning.callbacks.stop import StopAtThreshold
from cbs_lightning.console import duration, say


class FollowProgress(L.Callback):
    """Progress towards the budget of `max_steps`; a run that reaches its threshold ends sooner.

    Calls `show` after a chunk, at most every `every_seconds`.
    """

    def __init__(self, stop: StopAtThreshold, max_steps: int, every_seconds: float) -> None:
        self.stop = stop
        self.max_steps = max_steps
        self.every_seconds = every_seconds
        self.steps = 0
        self._first_chunk: Tensor | None = None
        self._latest_chunk: Tensor | None = None

    def show(self) -> None:
        raise NotImplementedError

    def on_train_start(self, *_: Any) -> None:
        self.steps = self._first_step = len(self.stop.recorder.trajectory)
        self._started = self._shown = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        self.steps += len(outputs["size"])
        self._latest_chunk = outputs["loss"]
        if self._first_chunk is None:
            self._first_chunk = outputs["loss"]
        if time.monotonic() - self._shown >= self.every_seconds:
            self._shown = time.monotonic()
            self.show()

    @property
    def first_loss(self) -> float | None:
        """That of the run's first step."""
        recorded = self.stop.recorder.trajectory.loss
        if len(recorded):
            return float(recorded[0])
        return float(self._first_chunk[0]) if _is_at_hand(self._first_chunk) else None

    @property
    def loss(self) -> float | None:
        """The latest one by the stop's rule, so that of the last epoch.

        During the first, that of the latest chunk, unless reading it would make a GPU wait.
        """
        if self.stop.latest is not None:
            return self.stop.latest.loss
        return float(self._latest_chunk.mean()) if _is_at_hand(self._latest_chunk) else None

    @property
    def seconds_left(self) -> float | None:
        """At most; None before the first step."""
        steps = self.steps - self._first_step
        if steps == 0:
            return None
        return (self.max_steps - self.steps) * (time.monotonic() - self._started) / steps

    def described(self) -> str:
        per_epoch = self.stop.rule.steps_per_epoch
        loss = f"{self.loss:.3g}" if self.loss is not None else "..."
        epochs = f"epoch {self.steps / per_epoch:.1f} of {self.max_steps / per_epoch:.4g}"
        return f"{epochs}, loss {loss} (until {self.stop.threshold:g})"


def _is_at_hand(losses: Tensor | None) -> TypeGuard[Tensor]:
    return losses is not None and losses.device.type == "cpu"


class PrintProgress(FollowProgress):
    """For a log. `sweep_left` says in words how long the sweep, or what `part` of it is at hand,
    still takes, where that is known."""

    def __init__(
        self,
        title: str,
        stop: StopAtThreshold,
        max_steps: int,
        every_seconds: float,
        sweep_left: Callable[[], str | None],
        part: str,
    ) -> None:
        super().__init__(stop, max_steps, every_seconds)
        self.title = title
        self.sweep_left = sweep_left
        self.part = part

    def show(self) -> None:
        assert self.seconds_left is not None  # a chunk was trained
        left = f"at most {duration(self.seconds_left)} left for this run"
        sweep_left = self.sweep_left()
        sweep = f", {sweep_left} for the {self.part}" if sweep_left else ""
        say(f"{self.title}: {self.described()}, {left}{sweep}")
