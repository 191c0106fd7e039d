"""Lines for people: numbers in words, and printing."""

import os
import sys
from pathlib import Path

from rich.console import Console

INTERRUPTED = "interrupted; the same command goes on with what is not finished"


def duration(seconds: float) -> str:
    """For people: two digits are enough."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def count_of(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def print_line(text: str) -> None:
    """Print a line at once. A reader that went away, such as `head`, does not end a run."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - to the process's end


def in_terminal() -> bool:
    """Whether what is printed can be overwritten later, and every character be shown."""
    console = Console()
    shows_all = console.encoding.startswith("utf")
    # A build server's log is no terminal, also where its FORCE_COLOR tells rich that it is one.
    return sys.stdout.isatty() and console.is_interactive and shows_all
