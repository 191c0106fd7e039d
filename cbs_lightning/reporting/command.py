"""A command that writes something for every study below a directory."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cbs_lightning.analysis.study import Question
from cbs_lightning.commands import option, output_directory, train_command
from cbs_lightning.console import print_line, print_lines, visible
from cbs_lightning.errors import PartlyDoneError, UserError, did_you_mean, output_errors
from cbs_lightning.fit.comparison import WITHIN
from cbs_lightning.results.store import studies
from cbs_lightning.results.trajectory import RuleName

OPTIONS = ("study", "variants", "loss", "rule", "window", "within")


def for_every_study(description: str | None, write: Callable[[Path, Question], list[str]]) -> None:
    """Parse the command line, and print the lines that `write` returns for each study.

    A study that cannot be written is reported at the end, in one line; the others are written.
    """
    _refuse_variables_of_make(sys.argv[1:])
    arguments = _parser(description).parse_args()
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
    check_output_dir(output_dir)
    check_study(arguments.study, output_dir)
    if not found:
        one, study = train_command(), f"{train_command()} -m experiment=digits"
        print_line(f"{output_dir}: no runs yet; {one} makes one, {study} a whole study")


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake in one line, with the option that may have been meant."""

    def error(self, message: str) -> NoReturn:
        known = list(self._option_string_actions)
        typed = re.search(r"--[\w-]+", message)
        meant = did_you_mean(typed[0], known) if typed and typed[0] not in known else ""
        sys.exit(f"error: {visible(message)}; {meant}see {self.prog} --help")


def directory(text: str) -> Path:
    """What is typed as a directory; exits if that is nothing, which would be the current one."""
    if not text:
        sys.exit(f"error: {output_directory('')}: must name a directory")
    return Path(text)


def check_output_dir(output_dir: Path) -> None:
    """Exit unless the directory exists."""
    if not output_dir.is_dir():
        sys.exit(visible(f"error: {output_directory(output_dir)}: no such directory"))


def check_study(name: str | None, output_dir: Path) -> None:
    """Exit if there are studies, but none of that name; None: all are meant."""
    names = [path.name for path in studies(output_dir)]
    if name is not None and names and name not in names:
        allowed = f"{did_you_mean(name, names)}allowed: {', '.join(names)}"
        sys.exit(visible(f"error: {option('study', name)}: {allowed}"))


def _refuse_variables_of_make(words: list[str]) -> None:
    """Exit at LOSS=0.5, which is for make; what follows -- is the output directory."""
    for word in words[: words.index("--") if "--" in words else None]:
        name, _, value = word.partition("=")
        if value and name.lower() == "output_dir":
            sys.exit(visible(f"error: {word}: type {value}"))
        if value and name.lower() in OPTIONS:
            sys.exit(visible(f"error: {word}: type --{name.lower()}={value}"))


def _parser(description: str | None) -> argparse.ArgumentParser:
    usual = "default: that of most runs"
    other = "The answer to another question than a study's own goes into a folder of its own there."
    parser = OneLineParser(description=description, epilog=other)
    parser.add_argument(
        "output_dir", type=directory, nargs="?", default=Path("outputs"), help="default: outputs"
    )
    parser.add_argument("--study", help="a folder in output_dir; default: all")
    parser.add_argument("--variants", help="names, such as 'adam,sgd*'; default: all")
    parser.add_argument("--loss", help=f"loss threshold; {usual}")
    parser.add_argument("--rule", help=f"{', '.join(RuleName)}; {usual}")
    parser.add_argument(
        "--window", help=f"samples that the rules window and middle average over; {usual}"
    )
    parser.add_argument(
        "--within", help="extra SFO allowed in the recommended range, as a share; default: 0.1"
    )
    return parser


def _question(given: argparse.Namespace) -> Question:
    """The question on the command line; exits if it is not a valid one."""
    if given.rule is not None and given.rule not in list(RuleName):
        allowed = f"{did_you_mean(given.rule, RuleName)}must be one of {', '.join(RuleName)}"
        sys.exit(visible(f"error: {option('rule', given.rule)}: {allowed}"))
    return Question(
        _number("loss", given.loss),
        given.rule and RuleName(given.rule),
        _whole("window", given.window),
        _number("within", given.within) or WITHIN,
        given.variants,
    )


def _number(name: str, text: str | None) -> float | None:
    with suppress(ValueError):
        if text is None or 0 < float(text) < math.inf:
            return None if text is None else float(text)
    sys.exit(visible(f"error: {option(name, text)}: must be a number > 0"))


def _whole(name: str, text: str | None) -> int | None:
    if text is None or (text.isdecimal() and int(text) > 0):
        return None if text is None else int(text)
    sys.exit(visible(f"error: {option(name, text)}: must be a whole number >= 1"))
