"""A command that makes something of every study below a directory."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from cbs_lightning.console import print_line
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.results.store import studies


def for_every_study(description: str | None, write: Callable[[Path], list[str]]) -> None:
    """Parse the command line, and print the lines that `write` returns for each study."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    arguments = parser.parse_args()
    output_dir: Path = arguments.output_dir
    found = [path for path in studies(output_dir) if arguments.study in (None, path.name)]
    for directory in found:
        try:
            with output_errors(output_dir):
                print_line("\n".join(write(directory)))
        except UserError as error:
            sys.exit(f"error: {error}")
    if not output_dir.is_dir():
        sys.exit(f"error: OUTPUT_DIR={output_dir}: no such directory")
    if not found and arguments.study and (names := [path.name for path in studies(output_dir)]):
        sys.exit(f"error: --study {arguments.study}: allowed: {', '.join(names)}")
    if not found:
        print_line(f"{output_dir}: no runs yet; python train.py makes one, make demo a whole study")
