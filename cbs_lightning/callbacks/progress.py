"""The progress of a run: tracked by one callback, shown by any number of sinks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import lightning as L

from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.console import epoch_of, print_line, time_left


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
        epoch = epoch_of(self.steps, self.max_steps, self.steps_per_epoch)
        return f"{epoch}, loss {loss} (threshold {self.threshold:g})"

    @property
    def time_left(self) -> str:
        """The time left in words; empty before the first step."""
        left = self.seconds_left
        return time_left(left, at_most=True) if left is not None else ""


class Pauses(Protocol):
    """What a run stops for now and then, such as probes."""

    @property
    def seconds(self) -> float:
        """Spent so far."""

    @property
    def seconds_left(self) -> float:
        """To be spent, by the mean of those so far."""


class ProgressSink:
    """Shows or reports progress, at most every `every_seconds`."""

    every_seconds = 0.5

    def start(self, progress: Progress) -> None:
        """Called before the first step."""

    def show(self, progress: Progress) -> None:
        """Called after a step."""

    def close(self, progress: Progress | None) -> None:
        """Called with the last progress; None if training ended with an exception."""


class FollowProgress(L.Callback):
    """Passes a run's progress to its sinks after each chunk."""

    def __init__(
        self,
        stop: StopAtThreshold,
        max_steps: int,
        sinks: Sequence[ProgressSink],
        pauses: Pauses | None = None,
    ) -> None:
        self.stop = stop
        self.pauses = pauses
        self.max_steps = max_steps
        self.sinks = sinks
        self.steps = 0
        self._started = False

    def on_train_start(self, *_: Any) -> None:
        self.steps = self._first_step = len(self.stop.recorder.trajectory)
        self._began = time.monotonic()
        self._paused_before = self.pauses.seconds if self.pauses is not None else 0.0
        self._due = [self._began + sink.every_seconds for sink in self.sinks]
        self._started = True
        for sink in self.sinks:
            sink.start(self.progress())

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.steps = trainer.global_step
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
            first_loss=self.stop.recorder.first_loss,
            loss=self._loss(),
            seconds_left=self._seconds_left(),
        )

    def _loss(self) -> float | None:
        """The latest loss by the rule; before there is one, that of the latest steps, unless a GPU
        would have to wait."""
        if self.stop.latest is not None:
            return self.stop.latest.loss
        return self.stop.recorder.latest_loss

    def _seconds_left(self) -> float | None:
        steps = self.steps - self._first_step
        if steps == 0:
            return None
        paused = left = 0.0
        if self.pauses is not None:
            paused, left = self.pauses.seconds - self._paused_before, self.pauses.seconds_left
        trained = time.monotonic() - self._began - paused
        return (self.max_steps - self.steps) * trained / steps + left


class PrintProgress(ProgressSink):
    """Prints a line now and then, which ends with what `time_left` returns; for logs."""

    def __init__(
        self, title: str, every_seconds: float, time_left: Callable[[Progress], str]
    ) -> None:
        self.title = title
        self.every_seconds = every_seconds
        self.time_left = time_left

    def show(self, progress: Progress) -> None:
        print_line(f"{self.title}: {progress}, {self.time_left(progress)}")


class ReportProgress(ProgressSink):
    """Passes progress to a function, such as a job's `update`."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self.report = report

    def show(self, progress: Progress) -> None:
        self.report(progress)

    start = show

    def close(self, progress: Progress | None) -> None:
        if progress is not None:
            self.report(progress)
