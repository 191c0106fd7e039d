"""Records every step's loss and the time spent training."""

import time
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from cbs_lightning.models.classifier import Steps
from cbs_lightning.results.trajectory import Trajectory


class TrajectoryRecorder(L.Callback):
    """Holds the run's trajectory and `seconds`, training alone.

    Within an epoch the values stay on the training device; at its end and when a checkpoint is
    taken they are fetched at once: only then does training wait for a GPU.
    A trajectory ends with the first loss that is not finite.
    """

    def __init__(self) -> None:
        self.trajectory = Trajectory.empty()
        self.seconds = 0.0
        self._steps_timed = 0  # also those after a loss that is not finite
        self._pending: list[Steps] = []
        self._started: float | None = None

    @property
    def seconds_per_step(self) -> float | None:
        return self.seconds / self._steps_timed if self._steps_timed else None

    def fetch(self) -> None:
        """Bring the trajectory and the time up to date."""
        if self._pending:
            latest = Trajectory(
                _host([steps["loss"] for steps in self._pending], np.float32),
                _host([steps["correct"] for steps in self._pending], np.int32),
                np.array([size for steps in self._pending for size in steps["size"]], np.int32),
            )
            self._pending.clear()
            self._steps_timed += len(latest)
            if self.trajectory.first_non_finite() is None:
                self.trajectory += latest[: latest.first_non_finite()]
        if self._started is not None:
            now = time.perf_counter()
            self.seconds += now - self._started
            self._started = now

    def pause(self) -> None:
        """What follows is not training."""
        self.fetch()
        self._started = None

    def resume(self) -> None:
        self._started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """The latest ones were not training."""
        if self._started is not None:
            self._started += seconds

    def on_train_epoch_start(self, *_: Any) -> None:
        self.resume()

    def on_train_batch_start(self, *_: Any) -> None:
        if self._started is None:  # a resumed run begins inside an epoch
            self.resume()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        self._pending.append(outputs)

    def on_train_epoch_end(self, *_: Any) -> None:
        self.pause()

    def state_dict(self) -> dict[str, Any]:
        self.fetch()
        arrays = {name: torch.from_numpy(array) for name, array in vars(self.trajectory).items()}
        return {"seconds": self.seconds, "steps_timed": self._steps_timed, **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.seconds = state.pop("seconds")
        self._steps_timed = state.pop("steps_timed")
        self.trajectory = Trajectory(**{name: tensor.numpy() for name, tensor in state.items()})


def _host(tensors: list[Tensor], dtype: type[Any]) -> Any:
    return torch.cat(tensors).cpu().numpy().astype(dtype)
