"""How far a run is: followed by one callback, shown by any number of sinks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import lightning as L
from torch import Tensor

from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.console import duration, print_line


@dataclass(frozen=True)
class Progress:
    """How far a run is on its way to the threshold, or to the end of its budget."""

    steps: int
    max_steps: int
    steps_per_epoch: int
    threshold: float
    first_loss: float | None
    loss: float | None  # the latest one by the rule, so that of the last epoch
    seconds_left: float | None  # at most, to the end of the budget; None before the first step

    def __str__(self) -> str:
        loss = f"{self.loss:.3g}" if self.loss is not None else "..."
        epoch, epochs = self.steps / self.steps_per_epoch, self.max_steps / self.steps_per_epoch
        return f"epoch {epoch:.1f} of {epochs:.4g}, loss {loss} (until {self.threshold:g})"


class ProgressSink(Protocol):
    """Shows or reports progress, at most every `every_seconds`."""

    every_seconds: float

    def start(self, progress: Progress) -> None: ...
    def show(self, progress: Progress) -> None: ...
    def close(self, progress: Progress | None) -> None:
        """The last one; None where training ended with an exception."""


class FollowProgress(L.Callback):
    """Hands a run's progress to its sinks, after a chunk."""

    def __init__(
        self, stop: StopAtThreshold, max_steps: int, sinks: Sequence[ProgressSink]
    ) -> None:
        self.stop = stop
        self.max_steps = max_steps
        self.sinks = sinks
        self.steps = 0
        self._first_chunk: Tensor | None = None
        self._latest_chunk: Tensor | None = None
        self._started = False

    def on_train_start(self, *_: Any) -> None:
        self.steps = self._first_step = len(self.stop.recorder.trajectory)
        self._began = time.monotonic()
        self._due = [self._began + sink.every_seconds for sink in self.sinks]
        self._started = True
        for sink in self.sinks:
            sink.start(self.progress())

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        self.steps += len(outputs["size"])
        self._latest_chunk = outputs["loss"]
        if self._first_chunk is None:
            self._first_chunk = outputs["loss"]
        now = time.monotonic()
        for number, sink in enumerate(self.sinks):
            if now >= self._due[number]:
                self._due[number] = now + sink.every_seconds
                sink.show(self.progress())

    def on_train_end(self, *_: Any) -> None:
        for sink in self.sinks:
            sink.close(self.progress())

    def on_exception(self, *_: Any) -> None:
        if self._started:
            for sink in self.sinks:
                sink.close(None)

    def progress(self) -> Progress:
        return Progress(
            steps=self.steps,
            max_steps=self.max_steps,
            steps_per_epoch=self.stop.rule.steps_per_epoch,
            threshold=self.stop.threshold,
            first_loss=self._first_loss(),
            loss=self._loss(),
            seconds_left=self._seconds_left(),
        )

    def _first_loss(self) -> float | None:
        recorded = self.stop.recorder.trajectory.loss
        if len(recorded):
            return float(recorded[0])
        return float(self._first_chunk[0]) if _is_at_hand(self._first_chunk) else None

    def _loss(self) -> float | None:
        """During the first epoch that of the latest chunk, unless a GPU would have to wait."""
        if self.stop.latest is not None:
            return self.stop.latest.loss
        return float(self._latest_chunk.mean()) if _is_at_hand(self._latest_chunk) else None

    def _seconds_left(self) -> float | None:
        steps = self.steps - self._first_step
        if steps == 0:
            return None
        return (self.max_steps - self.steps) * (time.monotonic() - self._began) / steps


def _is_at_hand(losses: Tensor | None) -> TypeGuard[Tensor]:
    return losses is not None and losses.device.type == "cpu"


class PrintProgress:
    """A sink for a log: a line now and then, with `sweep_left` where that is known."""

    def __init__(
        self, title: str, every_seconds: float, sweep_left: Callable[[], str | None]
    ) -> None:
        self.title = title
        self.every_seconds = every_seconds
        self.sweep_left = sweep_left

    def start(self, progress: Progress) -> None:
        pass

    def show(self, progress: Progress) -> None:
        assert progress.seconds_left is not None  # a chunk was trained
        left = f"at most {duration(progress.seconds_left)} left for this run"
        sweep_left = self.sweep_left()
        sweep = f", {sweep_left}" if sweep_left else ""
        print_line(f"{self.title}: {progress}, {left}{sweep}")

    def close(self, progress: Progress | None) -> None:
        pass


class ReportProgress:
    """A sink that hands progress on to a function, such as a job's `update`."""

    every_seconds = 0.5

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self.report = report

    def start(self, progress: Progress) -> None:
        self.report(progress)

    def show(self, progress: Progress) -> None:
        self.report(progress)

    def close(self, progress: Progress | None) -> None:
        if progress is not None:
            self.report(progress)
