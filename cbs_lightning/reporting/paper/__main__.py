"""The command `python -m cbs_lightning.reporting.paper`: the paper's figures and tables, redrawn.

Uses the published files alone and trains nothing: the paper's Figures 1 to 4 and its tables beside
what was measured, and the numbers on the page. With OUTPUT_DIR, finished runs of the paper's
studies in it are drawn beside the published ones, into OUTPUT_DIR/paper.
"""

import argparse
import sys
from pathlib import Path

from cbs_lightning.console import print_lines
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.files import PROJECT
from cbs_lightning.reporting.paper.write import write_beside, write_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path, nargs="?", help="your own runs")
    parser.add_argument("--docs", type=Path, default=PROJECT / "docs", help="with paper.md, paper/")
    arguments = parser.parse_args()
    docs: Path = arguments.docs
    output_dir: Path | None = arguments.output_dir
    try:
        if output_dir is None:
            with output_errors(docs):
                print_lines(write_page(docs))
            return
        if not output_dir.is_dir():
            raise UserError(f"OUTPUT_DIR={output_dir}: no such directory")
        with output_errors(output_dir):
            print_lines(write_beside(docs / "paper", output_dir))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
