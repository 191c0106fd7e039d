"""How far a run of its own is, as a bar in a terminal."""

from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from cbs_lightning.callbacks.progress import FollowProgress
from cbs_lightning.callbacks.stop import StopAtThreshold
from cbs_lightning.console import duration

EVERY_SECONDS = 0.5


class ShowProgressBar(FollowProgress):
    def __init__(self, title: str, stop: StopAtThreshold, max_steps: int) -> None:
        super().__init__(stop, max_steps, EVERY_SECONDS)
        self.title = title

    def on_train_start(self, *arguments: Any) -> None:
        super().on_train_start(*arguments)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeLeftColumn(),
            transient=True,
            refresh_per_second=1 / EVERY_SECONDS,  # each takes milliseconds from the steps
        )
        self._task = self._bar.add_task(
            self.title, total=self.max_steps, completed=self.steps, state=self.described()
        )
        self._bar.start()

    def show(self) -> None:
        self._bar.update(self._task, completed=self.steps, state=self.described())

    def on_train_end(self, *_: Any) -> None:
        self._bar.stop()

    def on_exception(self, *_: Any) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


class TimeLeftColumn(ProgressColumn):
    """Time left to the end of the budget."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        if task.time_remaining is None:
            return Text("")
        return Text(f"at most {duration(task.time_remaining)} left", style="cyan")
