"""Shows how far a run is: a bar in a terminal, a line now and then elsewhere."""

import time
from typing import Any

import lightning as L
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from cbs_lightning.callbacks.stop import StopAtThreshold
from cbs_lightning.wording import duration, say


class ShowProgress(L.Callback):
    """Progress towards the budget of `max_steps`; a run that reaches its threshold ends sooner.

    The loss shown is the latest one by the stop's rule, so that of the last epoch; during the
    first, that of the latest chunk, unless reading it would make a GPU wait.
    """

    def __init__(
        self, title: str, stop: StopAtThreshold, max_steps: int, every_seconds: float, live: bool
    ) -> None:
        self.title = title
        self.stop = stop
        self.max_steps = max_steps
        self.every_seconds = every_seconds
        self.live = live
        self._steps = 0
        self._chunk_loss: float | None = None

    def on_train_start(self, *_: Any) -> None:
        self._steps = self._first_step = len(self.stop.recorder.trajectory)
        self._started = self._shown = time.monotonic()
        if self.live:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TimeLeftColumn(),
                transient=True,
            )
            self._task = self._bar.add_task(
                self.title, total=self.max_steps, completed=self._steps, state=self._state()
            )
            self._bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        self._steps += len(outputs["size"])
        if outputs["loss"].device.type == "cpu":
            self._chunk_loss = float(outputs["loss"].mean())
        if self.live:
            self._bar.update(self._task, completed=self._steps, state=self._state())
        elif time.monotonic() - self._shown >= self.every_seconds:
            self._shown = time.monotonic()
            say(f"{self.title}: {self._state()}, {self._time_left()}")

    def on_train_end(self, *_: Any) -> None:
        if self.live:
            self._bar.stop()

    def on_exception(self, *_: Any) -> None:
        if self.live and hasattr(self, "_bar"):
            self._bar.stop()

    def _state(self) -> str:
        per_epoch = self.stop.rule.steps_per_epoch
        latest = self.stop.latest.loss if self.stop.latest is not None else self._chunk_loss
        loss = f"{latest:.3g}" if latest is not None else "..."
        epochs = f"epoch {self._steps / per_epoch:.1f} of {self.max_steps / per_epoch:.4g}"
        return f"{epochs}, loss {loss} (until {self.stop.threshold:g})"

    def _time_left(self) -> str:
        per_step = (self._shown - self._started) / max(1, self._steps - self._first_step)
        return f"at most {duration((self.max_steps - self._steps) * per_step)} left for this run"


class TimeLeftColumn(ProgressColumn):
    """Time left to the end of the budget."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        if task.time_remaining is None:
            return Text("")
        return Text(f"at most {duration(task.time_remaining)} left", style="cyan")
