"""TensorBoard's event files, written by this thread, so that a failing disk is noticed at once."""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from cbs_lightning.files import write_atomically

PREFIX = "events.out.tfevents"
NOTHING = TensorProto(
    dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)])
)


def event_path(directory: Path, suffix: str) -> Path:
    """A new file name; TensorBoard reads a run's files in the order of their names."""
    return directory / f"{PREFIX}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}{suffix}"


def event_paths(directory: Path, suffix: str) -> list[Path]:
    """This project's event files with this suffix; never a directory or a link."""
    found = sorted(directory.glob(f"{PREFIX}.*{suffix}"))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def replace_events(directory: Path, suffix: str, content: bytes) -> None:
    """Write an event file that replaces those with the same suffix."""
    older = event_paths(directory, suffix)
    write_atomically(event_path(directory, suffix), content)
    for path in older:
        path.unlink()


class EventWriter:
    """Writes the records of a new event file to `file`.

    Some of TensorBoard's pages list runs in the order in which they `began`, by default now. The
    `descriptions` of tags are shown beside their curves.
    """

    def __init__(
        self,
        file: BinaryIO,
        began: float | None = None,
        descriptions: Mapping[str, str] | None = None,
    ) -> None:
        self._records = RecordWriter(file)
        self._descriptions = dict(descriptions or {})
        self._add(Event(file_version="brain.Event:2"), began)

    def restart(self) -> None:
        """Mark that what follows replaces everything that earlier, deleted files said about the
        run.

        A TensorBoard that has read those files still knows their contents. Its Python loader drops
        them here, if it met a restart before. Its fast loader drops, for each tag, what is not
        before the step of a new record: the first record must not come after the earlier ones.
        """
        self._add(Event(session_log=SessionLog(status=SessionLog.START)))

    def forget(self, tags: Iterable[str]) -> None:
        """Restart if the first record of these tags may come after the earlier ones."""
        values = [
            Summary.Value(tag=tag, metadata=self._metadata(tag), tensor=NOTHING) for tag in tags
        ]
        self.summary(Summary(value=values))
        for _ in range(2):  # the Python loader must not show what the fast one cannot
            self.restart()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        items = [
            Summary.Value(tag=tag, metadata=self._metadata(tag), simple_value=value)
            for tag, value in values.items()
        ]
        self.summary(Summary(value=items), step)

    def summary(self, summary: Summary, step: int = 0) -> None:
        self._add(Event(summary=summary, step=step))

    def _metadata(self, tag: str) -> SummaryMetadata | None:
        """The metadata of a tag, for its first record, which is the one TensorBoard looks at."""
        if tag not in self._descriptions:
            return None
        metadata = create_summary_metadata(tag, self._descriptions.pop(tag))
        metadata.data_class = DATA_CLASS_SCALAR
        return metadata

    def _add(self, event: Event, at: float | None = None) -> None:
        event.wall_time = time.time() if at is None else at
        self._records.write(event.SerializeToString())
