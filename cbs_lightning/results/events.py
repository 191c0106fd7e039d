"""TensorBoard's event files, written by this thread: a disk that fails is known at once."""

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
    """A new name; TensorBoard reads a run's files in the order of their names."""
    return directory / f"{PREFIX}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}{suffix}"


def event_paths(directory: Path, suffix: str) -> list[Path]:
    """The event files of a suffix, which are this project's; never a directory or a link."""
    found = sorted(directory.glob(f"{PREFIX}.*{suffix}"))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def replace_events(directory: Path, suffix: str, content: bytes) -> None:
    """Write an event file in place of those of the same suffix."""
    older = event_paths(directory, suffix)
    write_atomically(event_path(directory, suffix), content)
    for path in older:
        path.unlink()


class EventWriter:
    """Writes a new event file's records to `file`.

    Some of TensorBoard's pages list runs in the order in which they `began`, by default now. What
    `descriptions` say of tags is shown beside their curves.
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
        """What follows stands in place of all that files that are gone said of the run.

        A TensorBoard that has read those still knows it. Its Python loader drops it here, if it
        met a restart before. Its fast loader drops, of a tag, what is not before the step of a
        new record: the first one must not come after those that were.
        """
        self._add(Event(session_log=SessionLog(status=SessionLog.START)))

    def forget(self, tags: Iterable[str]) -> None:
        """Restart where the first record of these tags may come after those that were."""
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
        """With the first record of a tag, which is the one that TensorBoard looks at."""
        if tag not in self._descriptions:
            return None
        metadata = create_summary_metadata(tag, self._descriptions.pop(tag))
        metadata.data_class = DATA_CLASS_SCALAR
        return metadata

    def _add(self, event: Event, at: float | None = None) -> None:
        event.wall_time = time.time() if at is None else at
        self._records.write(event.SerializeToString())
