"""How far a run of its own is, as a bar in a terminal."""

from rich import progress as rich_progress
from rich.text import Text

from cbs_lightning.callbacks.progress import Progress
from cbs_lightning.console import duration


class ShowProgressBar:
    """A sink of `FollowProgress`."""

    every_seconds = 0.5

    def __init__(self, title: str) -> None:
        self.title = title

    def start(self, progress: Progress) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[state]}"),
            rich_progress.TimeElapsedColumn(),
            TimeLeftColumn(),
            transient=True,
            refresh_per_second=1 / self.every_seconds,  # each takes milliseconds from the steps
        )
        self._task = self._bar.add_task(
            self.title, total=progress.max_steps, completed=progress.steps, state=str(progress)
        )
        self._bar.start()

    def show(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.steps, state=str(progress))

    def close(self, progress: Progress | None) -> None:
        self._bar.stop()


class TimeLeftColumn(rich_progress.ProgressColumn):
    """Time left to the end of the budget."""

    max_refresh = 0.5

    def render(self, task: rich_progress.Task) -> Text:
        if task.time_remaining is None:
            return Text("")
        return Text(f"at most {duration(task.time_remaining)} left", style="cyan")
