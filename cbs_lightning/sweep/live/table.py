"""A sweep in a terminal: one table of its jobs, drawn anew as they go on."""

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.cells import set_cell_size
from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from cbs_lightning.console import count_of, duration, visible
from cbs_lightning.results.result import Status
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.sweep.live.time_left import sweep_seconds_left

UNKNOWN = "…"
NOT_REACHED = "not reached"
OUTCOMES = {
    "reached": "green",
    NOT_REACHED: "yellow",
    "abandoned": "yellow",
    "interrupted": "yellow",
    "failed": "red",
}
SHORTEST_BAR, LONGEST_BAR = 6, 24
GAP = "  "
LINES_BESIDE_ROWS = 6


@contextmanager
def live_table(board: Board, workers: int, started: float) -> Iterator["LiveTable"]:
    """While inside, the terminal is the table's, and whatever is printed appears above it."""
    board.go_live()
    # Named, since jobs in this process put another file in the place of sys.stdout.
    console = Console(file=sys.stdout, highlight=False)
    table = LiveTable(board, workers, started, console)
    try:
        with table.live:
            yield table
    finally:
        table.print_lines()


class LiveTable:
    def __init__(self, board: Board, workers: int, started: float, console: Console) -> None:
        self.board = board
        self.workers = workers
        self.started = started
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self._lines: list[Text] = []  # that are shown

    def show(self, jobs: Sequence[JobState]) -> None:
        width, height = self.live.console.size
        self._erase_wrapped(width)
        text = draw(jobs, self.workers, time.time() - self.started, width, height)
        self.live.update(text, refresh=True)
        self._lines = list(text.split(allow_blank=True))
        self.print_lines()

    def print_lines(self) -> None:
        if lines := self.board.new_lines():
            self.live.console.print(Text("\n".join(map(visible, lines))), soft_wrap=True)

    def _erase_wrapped(self, width: int) -> None:
        """What is shown takes more lines since the terminal got narrower, which rich ignores."""
        more = sum(max(0, line.cell_len - 1) // width for line in self._lines)
        if more:
            up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * more
            self.live.console.control(Control(*up))
            self._lines = []


def draw(jobs: Sequence[JobState], workers: int, elapsed: float, width: int, height: int) -> Text:
    """All that is shown, in fewer than `height` lines of `width`.

    It is a text, not rich's table, which takes the interpreter five times as long: a job of a
    serial sweep trains in the same process.
    """
    # Half of the terminal is left to what jobs print, unless there are many running.
    running = sum(job.phase is Phase.RUNNING for job in jobs)
    most = min(height - 1, max(height // 2, running + LINES_BESIDE_ROWS))
    lines = [_counts(jobs), _times(jobs, workers, elapsed)]
    if jobs and most > LINES_BESIDE_ROWS:
        layout = Layout.fitting(jobs, width)
        rows = [layout.row(job) for job in rows_shown(jobs, most - LINES_BESIDE_ROWS)]
        header = layout.header()
        rule = Text("─" * len(header), style="dim")
        lines = [Text(), header, rule, *rows, Text(), *lines]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def rows_shown(jobs: Sequence[JobState], most: int) -> list[JobState]:
    """The running jobs, the next ones and the latest finished ones, in the jobs' order."""
    phases: dict[Phase, list[JobState]] = {phase: [] for phase in Phase}
    for job in jobs:
        phases[job.phase].append(job)
    running, waiting = phases[Phase.RUNNING][:most], phases[Phase.WAITING]
    finished = sorted(phases[Phase.FINISHED], key=lambda job: (job.updated, job.job), reverse=True)
    room = most - len(running)
    next_ones = min(len(waiting), max(room // 2, room - len(finished)))
    shown = running + waiting[:next_ones] + finished[: room - next_ones]
    return sorted(shown, key=lambda job: job.job)


@dataclass(frozen=True)
class Layout:
    """Widths of the columns; a seed's is 0 where all jobs have the same."""

    job: int
    variant: int
    batch_size: int
    seed: int
    bar: int
    threshold: int
    epoch: int = len("12.3 of 200")
    loss: int = len("0.00123")
    left: int = len("interrupted")

    @classmethod
    def fitting(cls, jobs: Sequence[JobState], width: int) -> "Layout":
        """The variants and the bar share what the numbers leave."""
        several_seeds = len({job.seed for job in jobs}) > 1
        layout = cls(
            job=max(len("job"), len(str(len(jobs)))),
            variant=0,
            batch_size=max(len(str(job.batch_size)) for job in jobs),
            seed=max(len("seed"), *(len(str(job.seed)) for job in jobs)) if several_seeds else 0,
            bar=0,
            threshold=max(len(f"{job.threshold:g}") for job in jobs),
        )
        room = width - len(layout.header())
        longest = max(len("optimizer"), *(len(visible(job.variant)) for job in jobs))
        shortest_bar = SHORTEST_BAR if room >= SHORTEST_BAR + len("optimizer") else 0
        variant = max(1, min(longest, room - shortest_bar))
        return replace(layout, variant=variant, bar=max(0, min(LONGEST_BAR, room - variant)))

    @property
    def _loss_width(self) -> int:
        return self.bar + len(" ") + self.loss + len(" → ") + self.threshold

    def header(self) -> Text:
        loss = Text(set_cell_size("loss → threshold" if self.bar else "loss", self._loss_width))
        left = Text(set_cell_size("left", self.left))
        return self._line("job", "optimizer", "b", "seed", "epoch", loss, left, "bold")

    def row(self, job: JobState) -> Text:
        return self._line(
            str(job.job),
            shortened(visible(job.variant), self.variant),
            str(job.batch_size),
            str(job.seed),
            _epoch(job),
            self._loss(job),
            _left(job),
            "dim" if job.phase is Phase.WAITING else "",
        )

    def _line(
        self,
        job: str,
        variant: str,
        batch_size: str,
        seed: str,
        epoch: str,
        loss: Text,
        left: Text,
        style: str,
    ) -> Text:
        cells = [
            f"{job:>{self.job}}",
            set_cell_size(variant, self.variant),
            f"{batch_size:>{self.batch_size}}",
            *([f"{seed:>{self.seed}}"] if self.seed else []),
            f"{epoch:<{self.epoch}}",
        ]
        return Text.assemble(GAP.join(cells), GAP, loss, GAP, left, style=style)

    def _loss(self, job: JobState) -> Text:
        if job.phase is Phase.WAITING:
            return Text(" " * self._loss_width)
        filled = round(bar_share(job) * self.bar)
        loss = f"{job.loss:.3g}" if job.loss is not None else UNKNOWN
        return Text.assemble(
            ("━" * filled, _style(job)),
            ("─" * (self.bar - filled), "dim"),
            f" {loss:>{self.loss}} → {job.threshold:<{self.threshold}g}",
        )


def bar_share(job: JobState) -> float:
    """How far the loss is from the first one to the threshold, on a log scale."""
    first, loss = job.first_loss, job.loss
    if job.status is Status.REACHED or (loss is not None and loss <= job.threshold):
        return 1.0
    if first is None or loss is None or not job.threshold < loss < first < math.inf:
        return 0.0
    return math.log(first / loss) / math.log(first / job.threshold)


def shortened(text: str, width: int) -> str:
    """With the middle left out: variants differ at their end."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return text[: width - 1 - tail] + UNKNOWN + text[len(text) - tail :]


def _epoch(job: JobState) -> str:
    if job.phase is Phase.WAITING or not job.steps_per_epoch:
        return ""
    epoch = f"{job.steps / job.steps_per_epoch:.1f}"
    return f"{epoch} of {job.max_steps / job.steps_per_epoch:.4g}" if job.max_steps else epoch


def _left(job: JobState) -> Text:
    if job.phase is Phase.FINISHED:
        return Text(str(job.status), style=_style(job))
    if job.phase is Phase.WAITING or job.max_steps is None:
        return Text("waiting" if job.phase is Phase.WAITING else "starting")
    return Text(f"≤ {duration(job.seconds_left)}" if job.seconds_left is not None else UNKNOWN)


def _outcome(job: JobState) -> str:
    return str(job.status) if str(job.status) in OUTCOMES else NOT_REACHED


def _style(job: JobState) -> str:
    return OUTCOMES[_outcome(job)] if job.phase is Phase.FINISHED else ""


def _counts(jobs: Sequence[JobState]) -> Text:
    finished = [job for job in jobs if job.phase is Phase.FINISHED]
    counts = Counter(map(_outcome, finished))
    parts = [Text(f"{len(finished)} of {count_of(len(jobs), 'job')} done")]
    for outcome, style in OUTCOMES.items():
        if counts[outcome]:
            parts.append(Text(f"{counts[outcome]} {outcome}", style=style))
    if known := sum(job.known for job in finished):
        parts.append(Text(f"{known} known already", style="dim"))
    return Text(" · ").join(parts)


def _times(jobs: Sequence[JobState], workers: int, elapsed: float) -> Text:
    left = sweep_seconds_left(jobs, workers)
    about = f"about {duration(left)}" if left is not None else UNKNOWN
    part = jobs[0].part if jobs else "sweep"
    return Text(f"{duration(elapsed)} so far · {about} left for the {part}")
