"""A run's two latest checkpoints, each of them complete and read without unpickling."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from cbs_lightning.console import print_line
from cbs_lightning.errors import UserError
from cbs_lightning.files import set_aside, write_atomically
from cbs_lightning.results.store import CHECKPOINT, PREVIOUS_CHECKPOINT, DamagedError

SAFE = (
    torch.Tensor, torch.Size, torch.dtype, torch.device, str, bytes, bool, int, float, complex,
    type(None),
)  # fmt: skip


class Checkpoint(NamedTuple):
    path: Path
    origin: dict[str, Any]  # what its losses were made with
    steps: int


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints through memory to the disk, and keeps the previous one."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        path = Path(path)
        own = path.name == CHECKPOINT
        if own:
            require_safe(checkpoint)
        else:  # of a callback that a user added
            path.parent.mkdir(parents=True, exist_ok=True)
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        previous = path.with_name(PREVIOUS_CHECKPOINT) if own else None
        write_atomically(path, buffer.getvalue(), previous=previous)


def require_safe(checkpoint: dict[str, Any]) -> None:
    """Raise `UserError` for what could not be read without running code."""
    if (unsafe := next(_unsafe(checkpoint, ""), None)) is not None:
        raise UserError(
            f"a checkpoint cannot hold {unsafe}: it is read without running any code; leave it "
            "out, such as by save_hyperparameters(ignore=[...]), or make it plain values"
        )


def _unsafe(value: Any, where: str) -> Iterator[str]:
    """Where a value is that `torch.load` refuses under `weights_only`, and what it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _unsafe(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _unsafe(item, where)
    elif not isinstance(value, SAFE):
        yield f"{where}, a {type(value).__name__}"


def latest_checkpoint(directory: Path, check: Callable[[Any], None]) -> Checkpoint | None:
    """The newest checkpoint that can be read and that passes `check`.

    Any others are named and set aside.
    """
    for path in generations(directory):
        if not path.exists():
            continue
        content = path.read_bytes()
        try:
            values = read_checkpoint(content)
            check(values)
        except Exception as error:  # whatever a garbled file makes zipfile and torch raise
            aside = set_aside(path)
            reason = DamagedError(path, f"{type(error).__name__}: {error}").reason
            print_line(f"{path}: damaged ({reason}), kept as {aside.name}")
        else:
            origin = values["callbacks"]["TimedCheckpoint"]["origin"]
            return Checkpoint(path, origin, values["global_step"])
    return None


def read_checkpoint(content: bytes) -> Any:
    """The contents of a checkpoint; raises whatever is wrong with the file."""
    # torch.load takes wrong bits for right ones; the checksums of the archive tell.
    with ZipFile(BytesIO(content)) as archive:
        if any(member.compress_type != ZIP_STORED for member in archive.infolist()):
            raise BadZipFile("compressed")  # and may unpack to more than there is memory
        if (name := archive.testzip()) is not None:
            raise BadZipFile(name)
    return torch.load(BytesIO(content), map_location="cpu", weights_only=True)


def remove_checkpoints(directory: Path) -> None:
    for path in generations(directory):
        path.unlink(missing_ok=True)


def generations(directory: Path) -> tuple[Path, ...]:
    """The paths of the checkpoints, newest first."""
    return directory / CHECKPOINT, directory / PREVIOUS_CHECKPOINT
