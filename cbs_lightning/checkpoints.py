"""A run's checkpoints: the last one and the one before it, each whole, none ever unpickled."""

from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from cbs_lightning.results import CHECKPOINT, PREVIOUS_CHECKPOINT
from cbs_lightning.storage import set_aside, write_atomically


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


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that can be read; those that cannot are named and set aside."""
    for path in _generations(directory):
        if not path.exists():
            continue
        content = path.read_bytes()
        try:
            check_whole(content)
        except Exception as error:  # whatever a garbled file makes zipfile and torch raise
            aside = set_aside(path)
            print(f"{path}: damaged ({type(error).__name__}), kept as {aside.name}", flush=True)
        else:
            return path
    return None


def check_whole(content: bytes) -> None:
    # torch.load takes wrong bits for right ones; the checksums of the archive tell.
    with ZipFile(BytesIO(content)) as archive:
        if (name := archive.testzip()) is not None:
            raise BadZipFile(name)
    torch.load(BytesIO(content), map_location="cpu", weights_only=True)


def remove_checkpoints(directory: Path) -> None:
    for path in _generations(directory):
        path.unlink(missing_ok=True)


def _generations(directory: Path) -> tuple[Path, ...]:
    """Newest first."""
    return directory / CHECKPOINT, directory / PREVIOUS_CHECKPOINT
