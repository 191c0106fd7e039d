"""TensorBoard's event files, written by this thread: a disk that fails is known at once."""

import os
import socket
import time
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

PREFIX = "events.out.tfevents"


def event_path(directory: Path, suffix: str) -> Path:
    """A new name; TensorBoard reads a run's files in the order of their names."""
    return directory / f"{PREFIX}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}{suffix}"


def event_paths(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"{PREFIX}.*{suffix}"))


class EventWriter:
    """Writes a new event file's records to `file`."""

    def __init__(self, file: BinaryIO) -> None:
        self._records = RecordWriter(file)
        self._add(Event(file_version="brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.summary(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), step)

    def summary(self, summary: Summary, step: int = 0) -> None:
        self._add(Event(summary=summary, step=step))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
