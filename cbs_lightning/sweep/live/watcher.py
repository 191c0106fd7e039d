"""While a sweep runs, others are called from a thread beside it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from cbs_lightning.console import in_terminal, print_line
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.sweep.live.table import live_table

LOOK_SECONDS = 0.5
FINISHED_SECONDS = 5.0
LARGEST_SHARE = 0.05  # of the thread's time for `on_finished`: it holds the interpreter's lock
JOIN_SECONDS = 10.0


@contextmanager
def watched_board(
    jobs: Sequence[JobState],
    workers: int,
    started: float,
    on_finished: Sequence[Callable[[], None]],
    directory: Path,
) -> Iterator[Board]:
    """A board for these jobs in the directory; in a terminal, with a live table.

    In a directory that is not there the board stays empty, and there is no table.
    """
    with ExitStack() as stack:
        board = Board(directory)
        board.plan(jobs)
        show = None
        if in_terminal() and directory.is_dir():
            show = stack.enter_context(live_table(board, workers, started)).show
        stack.enter_context(Watcher(board, show, on_finished))
        yield board


class Watcher:
    """Looks at a board as long as its context lasts.

    `on_look` is called with the jobs several times a second. `on_finished` are called when more
    jobs have finished, every few seconds at most, a slow one less often, and at the end if there is
    news. All are called from one thread, one after the other. One that raises is told of in a line
    the first time, and called again the next. Without anybody to call there is no thread.
    """

    def __init__(
        self,
        board: Board,
        on_look: Callable[[list[JobState]], None] | None = None,
        on_finished: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.board = board
        self.on_look = on_look
        self.on_finished = on_finished
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cbs-watcher", daemon=True)
        self._called_at: dict[Callable[[], None], int] = {}  # with so many finished
        self._next_call: dict[Callable[[], None], float] = {}
        self._told_of: set[object] = set()

    def __enter__(self) -> None:
        if self.on_look or self.on_finished:
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _watch(self) -> None:
        every = LOOK_SECONDS if self.on_look else FINISHED_SECONDS
        self._look()
        while not self._over.wait(every):
            self._look()
        self._look(last=True)

    def _look(self, *, last: bool = False) -> None:
        jobs = self.board.jobs()
        if self.on_look is not None:
            self._call(self.on_look, jobs)
        finished = sum(job.phase is Phase.FINISHED for job in jobs)
        for listener in self.on_finished:
            began = time.monotonic()
            due = last or began >= self._next_call.get(listener, 0.0)
            if due and finished > self._called_at.get(listener, 0):
                self._called_at[listener] = finished
                self._call(listener)
                ended = time.monotonic()
                pause = max(FINISHED_SECONDS, (ended - began) / LARGEST_SHARE)
                self._next_call[listener] = ended + pause

    def _call(self, listener: Callable[..., None], *arguments: object) -> None:
        try:
            listener(*arguments)
        except Exception as error:
            if listener not in self._told_of:
                self._told_of.add(listener)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                with suppress(OSError):  # of a terminal that is gone
                    print_line(f"warning: {_name(listener)}: {reason}")


def _name(listener: Callable[..., None]) -> str:
    return getattr(listener, "__name__", type(listener).__name__)
