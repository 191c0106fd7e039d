"""What to type for something, where this process was started."""

import sys
from pathlib import Path
from shlex import quote

from cbs_lightning.files import PROJECT

IN_CLONE = (PROJECT / "Makefile").exists() and (PROJECT / "train.py").exists()


def train_command() -> str:
    """What trains: the clone's script, or the installed command."""
    if not IN_CLONE:
        return "cbs-train"
    return "python train.py" if _is_here() else f"python {quote(str(PROJECT / 'train.py'))}"


def study_commands(output_dir: Path, *targets: str) -> str:
    """What makes figures, the report or TensorBoard of the studies below a directory.

    Args:
        output_dir: the directory.
        targets: `figures`, `report` and `tensorboard`, or some of them.
    """
    usual = str(output_dir) == "outputs"
    if not IN_CLONE:
        where = "" if usual else f" {quote(str(output_dir))}"
        return "; ".join(f"cbs-{target}{where}" for target in targets)
    if _is_here():
        where = "" if usual else f" OUTPUT_DIR={quote(str(output_dir))}"
        return f"make {' '.join(targets)}{where}"
    where = f" OUTPUT_DIR={quote(str(output_dir.absolute()))}"
    return f"make -C {quote(str(PROJECT))} {' '.join(targets)}{where}"


def install_command(extra: str) -> str:
    """What installs one of this project's extras: of the clone, or of the installed package."""
    if not IN_CLONE:
        return f"pip install 'cbs_lightning[{extra}]'"
    where = "." if _is_here() else str(PROJECT)
    return f"pip install {quote(f'{where}[{extra}]')}"


def option(name: str, value: str | None = None) -> str:
    """How an option of figures, report and TensorBoard is typed: --loss, or LOSS for make."""
    typed = f"--{name}" if _is_installed_command() else name.upper()
    return typed if value is None else f"{typed}={value}"


def output_directory(path: Path | str) -> str:
    """How that directory is typed for them: as it is, or OUTPUT_DIR=<path> for make."""
    return str(path) if _is_installed_command() else f"OUTPUT_DIR={path}"


def _is_installed_command() -> bool:
    return Path(sys.argv[0]).name.startswith("cbs-")


def _is_here() -> bool:
    try:
        return Path.cwd() == PROJECT
    except OSError:  # the current directory was removed
        return False
