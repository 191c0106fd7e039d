"""Starts TensorBoard on the studies below a directory, with links to the most useful pages."""

import errno
import os
import socket
import sys
from pathlib import Path

from cbs_lightning.commands import option
from cbs_lightning.console import print_lines, visible
from cbs_lightning.reporting.command import OneLineParser, check_output_dir
from cbs_lightning.reporting.tensorboard import SWEEP
from cbs_lightning.results.store import studies

PAGES = {
    "Steps and SFO against batch size:": "scalars&regexInput=_sweep&_smoothingWeight=0",
    "The same, in groups:": "custom_scalars&regexInput=_sweep&_smoothingWeight=0",
    "Figures:": "images&regexInput=_sweep$",
    "Every run and what it found:": "hparams",
}
MOST_TICKED = 40  # runs that match; of more, TensorBoard ticks none


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("output_dir", nargs="?", default="outputs", help="default: outputs")
    parser.add_argument("--port", default="6006", help="of http://localhost; default: 6006")
    arguments = parser.parse_args()
    output_dir, port = arguments.output_dir, arguments.port
    check_output_dir(Path(output_dir))
    if (reason := _refusal(port)) is not None:
        sys.exit(visible(f"error: {option('port', port)}: {reason}"))
    links = [f"{what:<34}http://localhost:{port}/#{page}" for what, page in PAGES.items()]
    print_lines([*links, *_hints(Path(output_dir))])
    command = [
        sys.executable, "-m", "tensorboard.main", f"--logdir={output_dir}", "--host=localhost",
        f"--port={port}", f"--window_title={output_dir}", "--reload_multifile=true",
    ]  # fmt: skip
    os.execv(sys.executable, command)


def _hints(output_dir: Path) -> list[str]:
    """What to do if the charts would be empty because TensorBoard ticks no run."""
    sweeps = [study / SWEEP for study in studies(output_dir) if (study / SWEEP).is_dir()]
    curves = [path for sweep in sweeps for path in (sweep, *sweep.iterdir()) if path.is_dir()]
    if len(curves) <= MOST_TICKED:
        return []
    return [
        f"There are {len(curves)} curves, too many for TensorBoard to tick by itself: press TOGGLE "
        "ALL RUNS below their names, or type a narrower pattern above them."
    ]


def _refusal(port: str) -> str | None:
    """Why the port cannot be used; None if it can."""
    if not port.isascii() or not port.isdecimal() or int(port) >= 2**16:
        return "must be a whole number up to 65535"
    try:
        with socket.create_server(("localhost", int(port))):
            return None
    except OSError as error:
        reason = "is taken" if error.errno == errno.EADDRINUSE else error.strerror
        return f"{reason}; try another, such as {6007 if port != '6007' else 6008}"


if __name__ == "__main__":
    main()
