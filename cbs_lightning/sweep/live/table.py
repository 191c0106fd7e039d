"""A sweep in a terminal: one table of its jobs, redrawn as they progress."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import ControlType, Segment, SegmentLines
from rich.table import Column, Table
from rich.text import Text

from cbs_lightning.console import count_of, duration, epoch_of, visible
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.sweep.live.time_left import TimeLeft, time_left

UNKNOWN = "…"
NOT_REACHED = "not reached"
OUTCOMES = {
    "reached": "green",
    NOT_REACHED: "yellow",
    "abandoned": "yellow",
    "interrupted": "yellow",
    "failed": "red",
}
LINES_BESIDE_ROWS = 6
NARROWEST_WITH_BAR, WIDEST = 80, 120
SHORTEST_BAR = 6


class LiveTable(Live):
    """Has the terminal while it is shown; anything printed appears above it."""

    def __init__(
        self, board: Board, workers: int, started: float, console: Console | None = None
    ) -> None:
        # Named, since jobs in this process put another file in the place of sys.stdout.
        console = console or Console(file=sys.stdout, highlight=False)
        super().__init__(console=console, auto_refresh=False, transient=True)
        self.board = board
        self.workers = workers
        self.started = started
        self._widths: list[int] = []  # of the lines that are shown
        board.go_live()

    def show(self, jobs: Sequence[JobState]) -> None:
        self._erase_wrapped()
        renderable = draw(jobs, self.workers, time.time() - self.started, *self.console.size)
        lines = self.console.render_lines(renderable, pad=False)
        self.update(SegmentLines(lines, new_lines=True), refresh=True)
        self._widths = [Segment.get_line_length(line) for line in lines]
        self._print_lines()

    def stop(self) -> None:
        super().stop()
        self._print_lines()

    def _print_lines(self) -> None:
        if lines := self.board.new_lines():
            self.console.print(Text("\n".join(map(visible, lines))), soft_wrap=True)

    def _erase_wrapped(self) -> None:
        """Erase lines that wrapped when the terminal became narrower, which rich ignores."""
        more = sum(max(0, width - 1) // self.console.width for width in self._widths)
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * more
        self.console.control(Control(*up))


def draw(jobs: Sequence[JobState], workers: int, elapsed: float, width: int, height: int) -> Group:
    """Everything that is shown, in fewer than `height` lines of at most `width` characters."""
    # Half of the terminal is left to what jobs print, unless there are many running.
    running = sum(job.phase is Phase.RUNNING for job in jobs)
    most = min(height - 1, max(height // 2, running + LINES_BESIDE_ROWS))
    left, sweep_left = time_left(jobs, workers)
    part = jobs[0].part if jobs else "sweep"
    times = f"{duration(elapsed)} so far · {sweep_left or f'{UNKNOWN} left'} for the {part}"
    lines = [Text.from_markup(line) for line in (_counts(jobs), times)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    if not jobs or most <= LINES_BESIDE_ROWS:
        return Group(*lines)
    rows = rows_shown(jobs, most - LINES_BESIDE_ROWS)
    several_seeds = len({job.seed for job in jobs}) > 1
    return Group("", _table(rows, left, several_seeds, width), "", *lines)


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


def _table(
    rows: Sequence[JobState], left: Mapping[int, TimeLeft], several_seeds: bool, width: int
) -> Table:
    number = partial(Column, justify="right", no_wrap=True)
    text = partial(Column, no_wrap=True)
    has_bar = width >= NARROWEST_WITH_BAR
    epochs, bars, losses = zip(*map(_way, rows), strict=True)
    columns: list[tuple[Column, Sequence[RenderableType]]] = [
        (number("job"), [str(job.job) for job in rows]),
        (Column("optimizer"), [Name(visible(job.variant)) for job in rows]),
        (number("b"), [str(job.batch_size) for job in rows]),
        (number("seed"), [str(job.seed) for job in rows] if several_seeds else []),
        (text("epoch", min_width=len("12.3 of 200")), epochs),
        (Column(width=SHORTEST_BAR, ratio=1), bars if has_bar else []),
        (text("loss → threshold" if has_bar else "loss"), losses),
        (text("left", min_width=len("interrupted")), [_state(job, left) for job in rows]),
    ]
    columns = [(column, cells) for column, cells in columns if cells]
    table = Table(
        *(column for column, _ in columns),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        width=min(width, WIDEST),
    )
    for job, *cells in zip(rows, *(cells for _, cells in columns), strict=True):
        table.add_row(*cells, style="dim" if job.phase is Phase.WAITING else "")
    return table


class Name:
    """A name in one line, as wide as its column."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(shortened(self.text, options.max_width), no_wrap=True)


def shortened(text: str, width: int) -> str:
    """The text with its middle left out, because variants differ at the end."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return text[: width - 1 - tail] + UNKNOWN + text[len(text) - tail :]


def _way(job: JobState) -> tuple[str, RenderableType, str]:
    """Epoch, progress bar and loss of a job that has begun."""
    if job.phase is Phase.WAITING:
        return "", "", ""
    epoch = epoch_of(job.steps, job.max_steps, job.steps_per_epoch).removeprefix("epoch ")
    style = _style(job)
    renderable = ProgressBar(1, job.share, complete_style=style, finished_style=style)
    loss = f"{job.loss:.3g}" if job.loss is not None else UNKNOWN
    return epoch, renderable, f"{loss:>7} → {job.threshold:g}"


def _state(job: JobState, times_left: Mapping[int, TimeLeft]) -> str:
    if job.phase is Phase.FINISHED:
        return f"[{_style(job)}]{job.status}[/]"
    if job.phase is Phase.WAITING or job.max_steps is None:
        return "waiting" if job.phase is Phase.WAITING else "starting"
    left = times_left.get(job.job)
    return f"{'≤' if left.at_most else '≈'} {duration(left.seconds)}" if left else UNKNOWN


def _outcome(job: JobState) -> str:
    return str(job.status) if str(job.status) in OUTCOMES else NOT_REACHED


def _style(job: JobState) -> str:
    return OUTCOMES[_outcome(job)] if job.phase is Phase.FINISHED else "none"


def _counts(jobs: Sequence[JobState]) -> str:
    finished = [job for job in jobs if job.phase is Phase.FINISHED]
    counts = Counter(map(_outcome, finished))
    parts = [f"{len(finished)} of {count_of(len(jobs), 'job')} done"]
    parts += [f"[{OUTCOMES[each]}]{counts[each]} {each}[/]" for each in OUTCOMES if counts[each]]
    if known := sum(job.known for job in finished):
        parts.append(f"[dim]{known} already finished[/]")
    return " · ".join(parts)
