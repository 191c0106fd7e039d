"""Writes a run's loss, accuracy and learning rate for TensorBoard, by step and by SFO."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from numpy.typing import NDArray

from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.files import open_new
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.results.events import EventWriter, event_path, event_paths
from cbs_lightning.results.trajectory import UNKNOWN

SUFFIX = ".curves"
QUANTITIES = {
    "loss": "Cross-entropy on training data as seen during training, the mean over a point's steps",
    "accuracy": "Share of training data classified correctly, as seen during training",
    "learning_rate": "The optimizer's, the mean over a point's steps",
}
ABSCISSAS = {
    "by_step": "x axis: parameter updates.",
    "by_sfo": "x axis, which TensorBoard labels step: gradient evaluations, steps times b.",
}
DESCRIPTIONS = {
    f"{quantity}/{abscissa}": f"{what}. {across}"
    for quantity, what in QUANTITIES.items()
    for abscissa, across in ABSCISSAS.items()
}


class LogCurves(L.Callback):
    """Writes curves of at most `points` points, each the mean over its steps, as they are recorded.

    The first point is the first step alone. At first there is one point per step; when they no
    longer fit, one for every second step, then for every fourth, and so on. At each such change,
    and when a run resumes or starts again, the curves are rewritten from the first step.
    """

    def __init__(
        self,
        directory: Path,
        recorder: TrajectoryRecorder,
        points: int,
        effective_batch_size: int,
        rate_schedule: RateSchedule | None = None,
    ) -> None:
        if points < 2:
            raise ValueError(f"points must be at least 2, not {points}")
        self.directory = directory
        self.recorder = recorder
        self.points = points
        self.effective_batch_size = effective_batch_size
        self.rate_schedule = rate_schedule or RateSchedule()
        self._rates: list[tuple[int, float]] = []  # from which step on, counted from 0
        self._steps = 0

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._steps = trainer.global_step
        self._note_rate(trainer)
        self._begin(steps_per_point=1)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._note_rate(trainer)
        self._log()

    def on_train_end(self, *_: Any) -> None:
        self._log(last=True)
        self._file.close()

    def on_exception(self, *_: Any) -> None:
        if hasattr(self, "_file"):
            with suppress(OSError):  # a disk that fails has been told of already
                self._file.close()

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self._rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rates = [(int(step), float(rate)) for step, rate in state_dict["rates"]]

    def _note_rate(self, trainer: L.Trainer) -> None:
        """Record the learning rate of the steps since the last call."""
        group = trainer.optimizers[0].param_groups[0]
        if "lr" not in group:
            return
        rate = float(group["lr"])
        if not self._rates:
            self._rates.append((0, rate))
        elif rate != self._rates[-1][1]:
            self._rates.append((self._steps, rate))
        self._steps = trainer.global_step

    def _begin(self, steps_per_point: int) -> None:
        older = event_paths(self.directory, SUFFIX)
        self._file = open_new(event_path(self.directory, SUFFIX))
        self._events = EventWriter(self._file, descriptions=DESCRIPTIONS)
        self._events.restart()
        for path in older:
            path.unlink()
        self._steps_per_point = steps_per_point
        self._steps_logged = 0

    def _log(self, *, last: bool = False) -> None:
        """Write the complete points, and at the end also an incomplete one."""
        steps = len(self.recorder.trajectory)
        if steps > self._steps_per_point * (self.points - 1):
            self._file.close()
            self._begin(2 ** math.ceil(math.log2(steps / (self.points - 1))))
        while self._next_end <= steps or (last and self._steps_logged < steps):
            end = min(self._next_end, steps)
            self._log_point(self._steps_logged, end)
            self._steps_logged = end
        self._file.flush()

    @property
    def _next_end(self) -> int:
        whole = self._steps_logged // self._steps_per_point + 1
        return whole * self._steps_per_point if self._steps_logged else 1

    def _log_point(self, start: int, end: int) -> None:
        span = self.recorder.trajectory[start:end]
        values = {"loss": float(np.average(span.loss, weights=span.size))}
        if (span.correct != UNKNOWN).all():
            values["accuracy"] = float(span.correct.sum() / span.size.sum())
        if self._rates:
            values["learning_rate"] = self._mean_rate(start, end)
        for abscissa, step in (("by_step", end), ("by_sfo", end * self.effective_batch_size)):
            tagged = {f"{quantity}/{abscissa}": value for quantity, value in values.items()}
            self._events.scalars(tagged, step)

    def _mean_rate(self, start: int, end: int) -> float:
        since, rates = zip(*self._rates, strict=True)
        current = np.searchsorted(since, np.arange(start, end), side="right") - 1
        return float((np.take(rates, current) * self._factors(start, end)).mean())

    def _factors(self, start: int, end: int) -> NDArray[np.float64]:
        """The schedule's factors for these steps: the optimizer holds the rate without them."""
        if self.rate_schedule.is_constant:
            return np.ones(end - start)
        size = self.recorder.trajectory.size
        seen = int(size[:start].sum(dtype=np.int64))
        return self.rate_schedule.factors(size[start:end].tolist(), seen)
