"""A command that makes something of every study below a directory."""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cbs_lightning.analysis.study import Question
from cbs_lightning.commands import train_command
from cbs_lightning.console import print_line, print_lines, visible
from cbs_lightning.errors import PartlyDoneError, UserError, output_errors
from cbs_lightning.fit.comparison import WITHIN
from cbs_lightning.results.store import studies
from cbs_lightning.results.trajectory import RuleName


def for_every_study(description: str | None, write: Callable[[Path, Question], list[str]]) -> None:
    """Parse the command line, and print the lines that `write` returns for each study.

    What cannot be written of a study is told at the end, in a line each; the others are written.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    parser.add_argument("--loss", help="the threshold; without it that of most runs")
    parser.add_argument(
        "--rule", help=f"one of {', '.join(RuleName)}; without it that of most runs"
    )
    parser.add_argument("--window", help="samples of the rules window and middle")
    parser.add_argument("--within", help="share of the least SFO, for the range; 0.1 without it")
    parser.add_argument("--variants", help="only these, such as 'adam,sgd*'")
    arguments = parser.parse_args()
    output_dir: Path = arguments.output_dir
    question = _question(arguments)
    found = [path for path in studies(output_dir) if arguments.study in (None, path.name)]
    errors: list[str] = []
    for directory in found:
        try:
            with output_errors(output_dir):
                print_lines(write(directory, question))
        except PartlyDoneError as error:
            print_lines(error.lines)
            errors += error.problems
        except UserError as error:
            errors.append(str(error))
    if errors:
        sys.exit("\n".join(f"error: {line}" for line in errors))
    if not output_dir.is_dir():
        sys.exit(f"error: OUTPUT_DIR={output_dir}: no such directory")
    if not found and arguments.study and (names := [path.name for path in studies(output_dir)]):
        allowed = visible(", ".join(names))
        sys.exit(f"error: STUDY={visible(arguments.study)}: allowed: {allowed}")
    if not found:
        one, study = train_command(), f"{train_command()} -m experiment=digits"
        print_line(f"{output_dir}: no runs yet; {one} makes one, {study} a whole study")


def _question(given: argparse.Namespace) -> Question:
    """What the command line asks, by the names that `make` has for it; exits where it cannot be."""
    if given.rule is not None and given.rule not in list(RuleName):
        sys.exit(f"error: RULE={visible(given.rule)}: must be one of {', '.join(RuleName)}")
    return Question(
        _number("LOSS", given.loss),
        given.rule and RuleName(given.rule),
        _whole("WINDOW", given.window),
        _number("WITHIN", given.within) or WITHIN,
        given.variants,
    )


def _number(name: str, text: str | None) -> float | None:
    with suppress(ValueError):
        if text is None or 0 < float(text) < math.inf:
            return None if text is None else float(text)
    sys.exit(f"error: {name}={visible(str(text))}: must be a number > 0")


def _whole(name: str, text: str | None) -> int | None:
    if text is None or (text.isdecimal() and int(text) > 0):
        return None if text is None else int(text)
    sys.exit(f"error: {name}={visible(text)}: must be a whole number >= 1")
