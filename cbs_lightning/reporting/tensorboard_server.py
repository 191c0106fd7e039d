"""TensorBoard on the studies below a directory, with links to the pages that show them best."""

import argparse
import os
import socket
import sys
from pathlib import Path

from cbs_lightning.console import print_lines, visible

PAGES = {
    "Steps and SFO against batch size:": "scalars&regexInput=_sweep&_smoothingWeight=0",
    "The same, in groups:": "custom_scalars&regexInput=_sweep&_smoothingWeight=0",
    "Figures:": "images&regexInput=_sweep",
    "Every run and what it found:": "hparams",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", nargs="?", default="outputs")
    parser.add_argument("--port", default="6006", help="of http://localhost (default: 6006)")
    arguments = parser.parse_args()
    output_dir, port = arguments.output_dir, arguments.port
    if not Path(output_dir).is_dir():
        sys.exit(f"error: OUTPUT_DIR={visible(output_dir)}: no such directory")
    if not _is_free(port):
        sys.exit(f"error: PORT={visible(port)}: taken, or not a port; another one, such as 6007")
    print_lines(f"{what:<34}http://localhost:{port}/#{page}" for what, page in PAGES.items())
    command = [
        sys.executable, "-m", "tensorboard.main", f"--logdir={output_dir}", "--host=localhost",
        f"--port={port}", f"--window_title={output_dir}", "--reload_multifile=true",
    ]  # fmt: skip
    os.execv(sys.executable, command)


def _is_free(port: str) -> bool:
    try:
        with socket.create_server(("localhost", int(port))):
            return True
    except (OSError, ValueError, OverflowError):
        return False


if __name__ == "__main__":
    main()
