"""Numbers and results in words, and how they are said."""

import os
import sys
from pathlib import Path

from rich.console import Console

from cbs_lightning.results import Result, Status
from cbs_lightning.trajectory import RuleName

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


def describe(result: Result) -> str:
    """What a run found, in half a line."""
    if result.status is Status.REACHED and result.steps is not None:
        steps = count_of(result.steps, "step")
        found = f"reached {result.threshold:g} after {steps}, SFO {result.sfo:,}"
    else:
        end = result.steps_answered
        loss = f", loss {result.loss:.3g}" if result.loss is not None else ""
        sfo = f", SFO {result.sfo_answered:,}" if result.status is Status.ABANDONED else ""
        steps = count_of(end, "step")
        found = f"{result.status} after {steps}{sfo}{loss} (until {result.threshold:g})"
        if result.rule is RuleName.EPOCH and end < result.steps_per_epoch:
            found += " within the first epoch"
    return f"{found}, {duration(result.seconds)}"


def say(text: str) -> None:
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
