"""A command that makes something of every study below a directory."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from cbs_lightning.console import print_line, print_lines, visible
from cbs_lightning.errors import PartlyDoneError, UserError, output_errors
from cbs_lightning.results.store import studies


def for_every_study(description: str | None, write: Callable[[Path], list[str]]) -> None:
    """Parse the command line, and print the lines that `write` returns for each study.

    What cannot be written of a study is told at the end, in a line each; the others are written.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    arguments = parser.parse_args()
    output_dir: Path = arguments.output_dir
    found = [path for path in studies(output_dir) if arguments.study in (None, path.name)]
    errors: list[str] = []
    for directory in found:
        try:
            with output_errors(output_dir):
                print_lines(write(directory))
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
        sys.exit(f"error: --study {arguments.study}: allowed: {allowed}")
    if not found:
        print_line(f"{output_dir}: no runs yet; python train.py makes one, make demo a whole study")
