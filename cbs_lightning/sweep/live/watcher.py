"""A thread that shows a sweep's jobs while they run, and reports finished ones."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cbs_lightning.console import in_terminal, print_line
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.sweep.live.table import LiveTable

SHOW_SECONDS = 1.0  # a draw takes milliseconds, from a run that trains in this process
FINISHED_SECONDS = 5.0
LARGEST_SHARE = 0.05  # of the thread's time for a listener: it holds the interpreter's lock
JOIN_SECONDS = 10.0


@contextmanager
def watched_board(
    jobs: Sequence[JobState],
    workers: int,
    started: float,
    on_finished: Sequence[Callable[[], None]],
    directory: Path,
) -> Iterator[Board]:
    """A board for these jobs in the directory, with a live table if this is a terminal.

    If the directory does not exist, the board stays empty and there is no table.
    """
    board = Board(directory)
    board.plan(jobs)
    with ExitStack() as stack:
        show = None
        if in_terminal() and directory.is_dir():
            show = stack.enter_context(LiveTable(board, workers, started)).show
        stack.enter_context(watching(board, show, on_finished))
        yield board


@contextmanager
def watching(
    board: Board,
    show: Callable[[list[JobState]], None] | None = None,
    on_finished: Sequence[Callable[[], None]] = (),
) -> Iterator[None]:
    """While inside, a thread calls `show` with the jobs, and `on_finished` when more have finished.

    The `on_finished` functions are called every few seconds at most, slow ones less often, and once
    at the end if there is news. If one raises, a line says so the first time; it is called again
    anyway. If there is nothing to call, there is no thread.
    """
    over = threading.Event()
    listeners = [Listener(call) for call in on_finished]
    table = Listener(show) if show is not None else None

    def watch() -> None:
        last = False
        while True:
            jobs = board.jobs()
            if table is not None:
                table.call(jobs)
            finished = sum(job.phase is Phase.FINISHED for job in jobs)
            for listener in listeners:
                listener.notify(finished, last=last)
            if last:
                return
            last = over.wait(SHOW_SECONDS if table is not None else FINISHED_SECONDS)

    thread = threading.Thread(target=watch, name="cbs-watcher", daemon=True)
    if table is not None or listeners:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(JOIN_SECONDS)


class Listener:
    def __init__(self, listener: Callable[..., None]) -> None:
        self.listener = listener
        self._finished = 0  # jobs, when it was last told
        self._due = 0.0
        self._warned = False

    def notify(self, finished: int, *, last: bool) -> None:
        """Call it if more jobs have finished and the last call was long enough ago."""
        began = time.monotonic()
        if finished > self._finished and (last or began >= self._due):
            self._finished = finished
            self.call()
            ended = time.monotonic()
            self._due = ended + max(FINISHED_SECONDS, (ended - began) / LARGEST_SHARE)

    def call(self, *arguments: Any) -> None:
        try:
            self.listener(*arguments)
        except Exception as error:
            if not self._warned:
                self._warned = True
                name = getattr(self.listener, "__name__", type(self.listener).__name__)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                with suppress(OSError):  # of a terminal that is gone
                    print_line(f"warning: {name}: {reason}")
