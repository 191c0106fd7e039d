"""Saves a run now and then, so that it can go on where it was."""

import os
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.callbacks.signals import StopOnSignal


class TimedCheckpoint(L.Callback):
    """Saves to `path` every `every_seconds`, and when a signal came, between two chunks.

    Saves torch's random numbers too, for nets that draw some.
    """

    def __init__(
        self,
        recorder: TrajectoryRecorder,
        signals: StopOnSignal,
        path: Path,
        every_seconds: float,
    ) -> None:
        if every_seconds <= 0:
            raise ValueError(f"every_seconds must be positive, not {every_seconds}")
        self.recorder = recorder
        self.signals = signals
        self.path = path
        self.every_seconds = every_seconds
        self._saved = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        due = time.monotonic() - self._saved >= self.every_seconds
        if due or self.signals.received is not None:
            self._save(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])
        torch.cuda.set_rng_state_all(state_dict["cuda"])

    def _save(self, trainer: L.Trainer) -> None:
        self.recorder.pause()
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        trainer.save_checkpoint(scratch)
        scratch.replace(self.path)
        self._saved = time.monotonic()
        self.recorder.resume()
