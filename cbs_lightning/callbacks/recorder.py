"""Records every step's loss and the time spent training."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from cbs_lightning.callbacks.samples import (
    CountSamples,
    check_step,
    count_on,
    loaded_samples,
    samples_of,
)
from cbs_lightning.models.chunks import Steps, is_chunk
from cbs_lightning.results.trajectory import UNKNOWN, Trajectory

SCHEDULER = Path("/proc/thread-self/schedstat")  # of Linux: nanoseconds on a core, and waiting


class TrajectoryRecorder(L.Callback):
    """Records the loss of every optimizer step (`trajectory`) and the training time (`seconds`).

    Works in a Trainer with one device, with automatic optimization, accumulating or not, or with
    manual optimization that makes one optimizer step per call of `training_step`. The loss of a
    step is the sample-weighted mean over its micro-batches. Values stay on the training
    device until the end of an epoch, a checkpoint, or a call of `fetch`; only then does training
    wait for a GPU. A trajectory ends with the first loss that is infinite or NaN.

    Args:
        monitor: a logged metric to use as the loss; None: what `training_step` returns.
        count_samples: a function that returns the number of samples in a batch; None: the module's
            or the DataModule's method of that name, or else the length of its first tensor.

    Example:
        >>> from cbs_lightning import TrajectoryRecorder
        >>> recorder = TrajectoryRecorder()
        >>> # Trainer(callbacks=[recorder]).fit(module, data)
        >>> len(recorder.trajectory)
        0
    """

    def __init__(
        self, monitor: str | None = None, count_samples: CountSamples | None = None
    ) -> None:
        self.monitor = monitor
        self.count_samples = count_samples
        self.batch_size: int | None = None  # that a step must have; None: whatever it has
        self.seconds = 0.0
        self._recorded = _Growing()
        self._steps_timed = 0  # also those after a loss that is not finite
        self._pending: list[Steps] = []
        self._count = count_samples
        self._micro_batches: list[tuple[Tensor, Tensor | None, int]] = []
        self._steps_seen = 0
        self._times_logged = 0  # the monitored metric, in this epoch
        self._started: float | None = None
        self._waited = 0.0  # seconds of them without a core; nan: not known
        self._waited_before = 0.0

    @property
    def trajectory(self) -> Trajectory:
        return self._recorded.trajectory

    @property
    def has_diverged(self) -> bool:
        """Whether the trajectory ends with a loss that is not finite."""
        return self._recorded.ended

    @property
    def is_between_steps(self) -> bool:
        """Whether all micro-batches so far belong to a step that was made."""
        return not self._micro_batches

    @property
    def latest_loss(self) -> float | None:
        """Of the latest steps, the mean of a chunk's; None where a GPU would have to wait."""
        if self._pending:
            losses = self._pending[-1]["loss"]
            return float(losses.mean()) if losses.device.type == "cpu" else None
        return float(self.trajectory.loss[-1]) if len(self.trajectory) else None

    @property
    def first_loss(self) -> float | None:
        if len(self.trajectory):
            return float(self.trajectory.loss[0])
        losses = self._pending[0]["loss"] if self._pending else None
        return float(losses[0]) if losses is not None and losses.device.type == "cpu" else None

    @property
    def seconds_per_step(self) -> float | None:
        return self.seconds / self._steps_timed if self._steps_timed else None

    @property
    def waited(self) -> float | None:
        """The share of `seconds` in which it waited for a core, since others had it."""
        known = self.seconds > 0 and math.isfinite(self._waited)
        return min(self._waited / self.seconds, 1.0) if known else None

    def fetch(self) -> None:
        """Bring the trajectory and the time up to date."""
        if self._pending:
            latest = Trajectory(
                _host([steps["loss"] for steps in self._pending], np.float32),
                _host([steps["correct"] for steps in self._pending], np.int32),
                np.array([size for steps in self._pending for size in steps["size"]], np.int32),
            )
            self._pending.clear()
            _check_correct(latest)
            self._steps_timed += len(latest)
            if not self._recorded.ended:
                self._recorded.append(latest[: latest.first_non_finite()])
        if self._started is not None:
            now = time.perf_counter()
            waited = _seconds_without_core()
            self.seconds += now - self._started
            self._waited += waited - self._waited_before
            self._started, self._waited_before = now, waited

    def pause(self) -> None:
        """What follows is not training."""
        self.fetch()
        self._started = None

    def resume(self) -> None:
        self._started = time.perf_counter()
        self._waited_before = _seconds_without_core()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training; afterwards it goes on, if it did before."""
        trains = self._started is not None
        self.pause()
        yield
        if trains:
            self.resume()

    def leave_out(self, seconds: float) -> None:
        """The latest ones were not training."""
        if self._started is not None:
            self._started += seconds

    def samples_of(self, trainer: L.Trainer, batch: Any, batch_idx: int) -> int:
        return samples_of(batch, self._count, loaded_samples(trainer, batch_idx))

    def on_train_start(
        self, trainer: L.Trainer, module: L.LightningModule | None = None, *_: Any
    ) -> None:
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"this Trainer has {trainer.world_size} devices; steps are counted on one, where "
                "the whole batch is seen: set devices=1"
            )
        self._steps_seen = trainer.global_step
        self._count = self.count_samples or count_on(trainer, module)
        self._micro_batches.clear()  # of a step that an interrupted training did not make
        if len(self.trajectory) != trainer.global_step and not self._recorded.ended:
            raise MisconfigurationException(
                f"training resumes after step {trainer.global_step}, but the losses of "
                f"{len(self.trajectory)} steps were recorded: make a new callback for every "
                "training, or resume from a checkpoint that this one was part of"
            )

    def on_train_epoch_start(self, *_: Any) -> None:
        self._times_logged = 0
        self.resume()

    def on_train_batch_start(self, *_: Any) -> None:
        if self._started is None:  # a resumed run begins inside an epoch; or there was validation
            self.resume()

    def on_before_backward(self, trainer: L.Trainer, module: L.LightningModule, loss: Any) -> None:
        _check_scalar(loss)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any = None,
        batch_idx: int = 0,
    ) -> None:
        if is_chunk(outputs):
            self._pending.append(outputs)
            return
        self._micro_batches.append(self._micro_batch(trainer, module, outputs, batch, batch_idx))
        steps, self._steps_seen = trainer.global_step - self._steps_seen, trainer.global_step
        if steps > 1 or (steps == 0 and not module.automatic_optimization):
            raise MisconfigurationException(
                f"training_step made {steps} optimizer steps; under manual optimization every call "
                "must make one, by an optimizer of self.optimizers()"
            )
        if steps == 1:
            step = _joined(self._micro_batches)
            self._micro_batches.clear()
            if self.batch_size is not None:
                check_step(trainer, step["size"][0], self.batch_size, batch_idx)
            self._pending.append(step)

    def on_validation_start(self, *_: Any) -> None:
        self.pause()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.pause()

    def state_dict(self) -> dict[str, Any]:
        self.fetch()
        arrays = {
            name: torch.from_numpy(array.copy()) for name, array in vars(self.trajectory).items()
        }
        times = {"seconds": self.seconds, "waited": self._waited}
        return {**times, "steps_timed": self._steps_timed, **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.seconds = state.pop("seconds")
        self._waited = state.pop("waited", math.nan)  # older ones do not know
        self._steps_timed = state.pop("steps_timed")
        self._recorded = _Growing()
        self._recorded.append(Trajectory(**{key: value.numpy() for key, value in state.items()}))

    def _micro_batch(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> tuple[Tensor, Tensor | None, int]:
        """Loss, number correct and number of samples, of one call of `training_step`."""
        loss = self._loss(trainer, outputs, batch_idx)
        accumulated = trainer.accumulate_grad_batches
        if accumulated > 1 and self.monitor is None and module.automatic_optimization:
            loss = loss * accumulated  # by which Lightning has divided it
        correct = _correct(outputs, loss.device)
        return loss, correct, self.samples_of(trainer, batch, batch_idx)

    def _loss(self, trainer: L.Trainer, outputs: Any, batch_idx: int) -> Tensor:
        if self.monitor is not None:
            found = trainer.callback_metrics.get(self.monitor) if self._is_logged(trainer) else None
            missing = f"monitor={self.monitor!r}: no such metric was logged with on_step=True"
        else:
            found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            missing = "training_step returned no loss"
        if found is None:
            place = (
                f"batch {batch_idx} of epoch {trainer.current_epoch}, step {trainer.global_step}"
            )
            raise MisconfigurationException(f"{missing}: {place}; every batch needs one")
        loss = found.detach() if isinstance(found, Tensor) else torch.as_tensor(found)
        _check_scalar(loss)
        return loss

    def _is_logged(self, trainer: L.Trainer) -> bool:
        """Whether the metric is of this batch; Lightning keeps the latest value."""
        results: Any = trainer._results or {}
        before = self._times_logged
        self._times_logged = sum(
            each.update_count for each in results.values() if each.meta.name == self.monitor
        )
        return self._times_logged not in (0, before)


class _Growing:
    """A trajectory that grows often; its arrays have spare room."""

    def __init__(self) -> None:
        self._room = Trajectory.empty()
        self._length = 0
        self.ended = False  # with a loss that is not finite

    @property
    def trajectory(self) -> Trajectory:
        return self._room[: self._length]

    def append(self, latest: Trajectory) -> None:
        needed = self._length + len(latest)
        if needed > len(self._room):
            room = np.zeros(max(needed, 2 * len(self._room)), np.int32)
            more = Trajectory(room.astype(np.float32), room, room.copy())
            self._copy(self.trajectory, more, 0)
            self._room = more
        self._copy(latest, self._room, self._length)
        self._length = needed
        self.ended |= latest.first_non_finite() is not None

    @staticmethod
    def _copy(values: Trajectory, target: Trajectory, start: int) -> None:
        for name, array in vars(values).items():
            getattr(target, name)[start : start + len(array)] = array


def _seconds_without_core() -> float:
    """Seconds so far in which this thread could have run but had no core; nan if not known."""
    try:
        return int(SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return math.nan


def _joined(micro_batches: list[tuple[Tensor, Tensor | None, int]]) -> Steps:
    """The step that these micro-batches make together."""
    if len(micro_batches) == 1:
        loss, correct, total = micro_batches[0]
    else:
        losses, corrects, sizes = zip(*micro_batches, strict=True)
        total = sum(sizes)
        loss = torch.stack(
            [each.reshape(()) * (size / total) for each, size in zip(losses, sizes, strict=True)]
        ).sum()
        correct = None if any(each is None for each in corrects) else torch.stack(corrects).sum()
    if correct is None:
        correct = _unknown(loss.device)
    return {"loss": loss.reshape(1), "correct": correct.reshape(1), "size": [total]}


@cache
def _unknown(device: torch.device) -> Tensor:
    return torch.tensor(UNKNOWN, device=device)


def _check_scalar(loss: Tensor) -> None:
    if loss.numel() != 1 or loss.is_complex():
        what = "is complex" if loss.is_complex() else f"has shape {tuple(loss.shape)}"
        raise MisconfigurationException(f"the loss {what}; it must be one real number")


def _correct(outputs: Any, device: torch.device) -> Tensor | None:
    """How many samples the module says that it classified right."""
    given = outputs.get("correct") if isinstance(outputs, Mapping) else None
    if given is None:
        return None
    correct = torch.as_tensor(given, device=device)
    if correct.numel() != 1 or correct.is_floating_point() or correct.is_complex():
        raise MisconfigurationException(
            "correct must be one whole number, that of the samples classified right, such as "
            f"(logits.argmax(1) == labels).sum(), not {correct.dtype} of shape "
            f"{tuple(correct.shape)}"
        )
    return correct


def _check_correct(steps: Trajectory) -> None:
    wrong = np.flatnonzero((steps.correct < UNKNOWN) | (steps.correct > steps.size))
    if len(wrong):
        correct, size = steps.correct[wrong[0]], steps.size[wrong[0]]
        raise MisconfigurationException(f"correct is {correct} in a step of {size} samples")


def _host(tensors: list[Tensor], dtype: type[Any]) -> Any:
    values = torch.cat(tensors).cpu()
    values = values.float() if values.is_floating_point() else values  # numpy has no bfloat16
    return values.numpy().astype(dtype)
