"""TensorBoard's event files, written by this thread: a disk that fails is known at once."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from cbs_lightning.storage import write_atomically

PREFIX = "events.out.tfevents"


def event_path(directory: Path, suffix: str) -> Path:
    """A new name; TensorBoard reads a run's files in the order of their names."""
    return directory / f"{PREFIX}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}{suffix}"


def event_paths(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"{PREFIX}.*{suffix}"))


def replace_events(directory: Path, suffix: str, content: bytes) -> None:
    """Write an event file in place of those of the same suffix."""
    older = event_paths(directory, suffix)
    write_atomically(event_path(directory, suffix), content)
    for path in older:
        path.unlink()


class EventWriter:
    """Writes a new event file's records to `file`.

    Some of TensorBoard's pages list runs in the order in which they `began`, by default now.
    """

    def __init__(self, file: BinaryIO, began: float | None = None) -> None:
        self._records = RecordWriter(file)
        self._add(Event(file_version="brain.Event:2"), began)

    def forget(self, descriptions: Mapping[str, str]) -> None:
        """Begin the scalars of these tags, in place of what files that are gone said of them.

        A TensorBoard that has read those still knows it. Its Python loader drops all of a run at
        its second start. Its fast loader drops what is not before the step of a new record, which
        here has a value of a kind that neither loader can show.
        """
        self._add(Event(session_log=SessionLog(status=SessionLog.START)))
        values = []
        for tag, description in descriptions.items():
            metadata = create_summary_metadata(display_name=tag, description=description)
            metadata.data_class = DATA_CLASS_SCALAR
            value = Summary.Value(tag=tag, metadata=metadata, obsolete_old_style_histogram=b"")
            values.append(value)
        self.summary(Summary(value=values))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        items = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self.summary(Summary(value=items), step)

    def summary(self, summary: Summary, step: int = 0) -> None:
        self._add(Event(summary=summary, step=step))

    def _add(self, event: Event, at: float | None = None) -> None:
        event.wall_time = time.time() if at is None else at
        self._records.write(event.SerializeToString())
