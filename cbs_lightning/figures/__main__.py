"""The command `python -m cbs_lightning.figures`."""

import argparse
import sys
from pathlib import Path

from cbs_lightning.figures import __doc__ as description
from cbs_lightning.figures import write_study
from cbs_lightning.results import studies
from cbs_lightning.wording import say


def main() -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    arguments = parser.parse_args()
    output_dir: Path = arguments.output_dir
    found = [path for path in studies(output_dir) if arguments.study in (None, path.name)]
    for directory in found:
        say("\n".join(write_study(directory)))
    if not output_dir.is_dir():
        sys.exit(f"error: OUTPUT_DIR={output_dir}: no such directory")
    if not found and arguments.study and (names := [path.name for path in studies(output_dir)]):
        sys.exit(f"error: --study {arguments.study}: allowed: {', '.join(names)}")
    if not found:
        say(f"{output_dir}: no runs yet; python train.py makes one, make demo a whole study")


if __name__ == "__main__":
    main()
