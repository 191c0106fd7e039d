"""Lines for people: numbers in words, and printing."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

INTERRUPTED = "interrupted; run the same command to resume"


def duration(seconds: float) -> str:
    """For people: two digits are enough."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def time_left(seconds: float, *, at_most: bool) -> str:
    """The end of a progress line; `at_most` if it is the rest of a budget, not an estimate."""
    if seconds < 1:
        return "less than 1 s left"
    return f"{'at most' if at_most else 'about'} {duration(seconds)} left"


def count_of(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def epoch_of(steps: int, max_steps: int | None, steps_per_epoch: int | None) -> str:
    """How far a run is: "epoch 12.3 of 200", or "step 30 of 85" in a budget below one."""
    if not steps_per_epoch:
        return ""
    epoch = f"epoch {steps / steps_per_epoch:.1f}"
    if max_steps is None:
        return epoch
    if max_steps < steps_per_epoch:
        return f"step {steps:,} of {max_steps:,}"
    return f"{epoch} of {max_steps / steps_per_epoch:.1f}".removesuffix(".0")


def one_line(text: str) -> str:
    """The words of a text of several lines."""
    return " ".join(text.split())


def visible(text: str) -> str:
    """The text in one line, with escapes such as \\x1b for whatever cannot be printed.

    Names in a study may be somebody else's: they must not move a terminal's cursor, hide lines or
    add some.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def print_line(text: str) -> None:
    """Print a line, or several, at once; what is not `visible` is escaped.

    A reader that went away, such as `head`, does not end a run.
    """
    try:
        print("\n".join(map(visible, text.split("\n"))), flush=True)
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - to the process's end


def print_lines(lines: Iterable[str]) -> None:
    """Print lines at once; a name with line breaks in it adds none."""
    print_line("\n".join(map(visible, lines)))


def in_terminal() -> bool:
    """Whether what is printed can be overwritten later, and every character be shown."""
    console = Console()
    shows_all = console.encoding.startswith("utf")
    # A build server's log is no terminal, also where its FORCE_COLOR tells rich that it is one.
    return sys.stdout.isatty() and console.is_interactive and shows_all
