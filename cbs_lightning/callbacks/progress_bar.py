"""Shows the progress of a single run as a bar in a terminal."""

from rich import progress as rich_progress

from cbs_lightning.callbacks.progress import Progress, ProgressSink


class ShowProgressBar(ProgressSink):
    def __init__(self, title: str) -> None:
        self.title = title

    def start(self, progress: Progress) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[progress]}"),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("[cyan]{task.fields[progress].time_left}"),
            transient=True,
            refresh_per_second=1 / self.every_seconds,  # each takes milliseconds from the steps
        )
        self._task = self._bar.add_task(self.title, total=progress.max_steps, progress=progress)
        self.show(progress)
        self._bar.start()

    def show(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.steps, progress=progress)

    def close(self, progress: Progress | None) -> None:
        self._bar.stop()
