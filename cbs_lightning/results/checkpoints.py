"""A run's checkpoints: the last one and the one before it, each whole, none ever unpickled."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from cbs_lightning.console import print_line
from cbs_lightning.files import set_aside, write_atomically
from cbs_lightning.results.store import CHECKPOINT, PREVIOUS_CHECKPOINT

NEEDED = ("state_dict", "optimizer_states", "loops", "callbacks")


class Checkpoint(NamedTuple):
    path: Path
    origin: dict[str, Any]  # what its losses were made with


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes through memory to the disk, and keeps the checkpoint before."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        path = Path(path)
        previous = path.with_name(PREVIOUS_CHECKPOINT)
        write_atomically(path, buffer.getvalue(), previous=previous)


def latest_checkpoint(directory: Path, config_hash: str) -> Checkpoint | None:
    """The newest checkpoint of this configuration that can be read.

    Those that cannot, and those of another configuration, are named and set aside.
    """
    for path in _generations(directory):
        if not path.exists():
            continue
        content = path.read_bytes()
        try:
            origin = checked_origin(content)
            if origin["config_hash"] != config_hash:
                raise ValueError("of another configuration")
        except Exception as error:  # whatever a garbled file makes zipfile and torch raise
            aside = set_aside(path)
            print_line(f"{path}: damaged ({type(error).__name__}: {error}), kept as {aside.name}")
        else:
            return Checkpoint(path, origin)
    return None


def checked_origin(content: bytes) -> dict[str, Any]:
    """The origin of a checkpoint that is whole; raises whatever is wrong with it otherwise."""
    # torch.load takes wrong bits for right ones; the checksums of the archive tell.
    with ZipFile(BytesIO(content)) as archive:
        if (name := archive.testzip()) is not None:
            raise BadZipFile(name)
    values = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    if missing := [key for key in NEEDED if key not in values]:
        raise KeyError(*missing)
    origin: dict[str, Any] = values["callbacks"]["TimedCheckpoint"]["origin"]
    return origin


def remove_checkpoints(directory: Path) -> None:
    for path in _generations(directory):
        path.unlink(missing_ok=True)


def _generations(directory: Path) -> tuple[Path, ...]:
    """Newest first."""
    return directory / CHECKPOINT, directory / PREVIOUS_CHECKPOINT
