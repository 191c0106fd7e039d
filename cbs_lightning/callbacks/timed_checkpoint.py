"""Saves a run from time to time, so that it can resume."""

import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning as L
import numpy as np
import torch

from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.callbacks.stop_on_signal import StopOnSignal
from cbs_lightning.console import print_line
from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.data.repeatable import CountingLoader
from cbs_lightning.results.checkpoints import require_safe
from cbs_lightning.results.result import Status

MAY_DIFFER = "the last bits of the losses may differ from those of an uninterrupted run"


class TimedCheckpoint(L.Callback):
    """Saves to `path` every `every_seconds`, and when a signal came, between two chunks.

    With `save_last` also the state that the run ends in, or that before the chunk in which its
    budget ends, so that a stricter request can go on from there; that of a run that a search gives
    up in any case. Saves torch's random numbers too,
    for nets that draw some, and the `origin` of the losses: a run that goes on from another one
    says so.
    """

    def __init__(
        self,
        stop: StopAtThreshold,
        signals: StopOnSignal,
        path: Path,
        every_seconds: float,
        save_last: bool,
    ) -> None:
        if every_seconds <= 0:
            raise ValueError(f"every_seconds must be positive, not {every_seconds}")
        self.stop = stop
        self.signals = signals
        self.path = path
        self.origin: dict[str, Any] = {}
        self.later_origin: Callable[[], Mapping[str, str]] = dict  # what only training shows
        self.every_seconds = every_seconds
        self.save_last = save_last
        self._saved = time.monotonic()
        self._is_checked = False
        self._device = torch.device("cpu")

    def setup(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        self._device = trainer.strategy.root_device

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Before the first step, name what a checkpoint could not hold."""
        if self._is_checked:
            return
        self._is_checked = True
        try:
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        except Exception:  # of hooks that save what there is only after a step
            return
        require_safe(checkpoint)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, InMemoryLoader)
        steps_of_epoch = trainer.global_step % loader.steps_per_epoch
        if steps_of_epoch % loader.batches_per_chunk:
            return  # the budget ended inside a chunk, whose rest a resumed run would never see
        due = time.monotonic() - self._saved >= self.every_seconds
        asked = self.signals.received is not None
        next_chunk = min(loader.steps_per_epoch - steps_of_epoch, loader.batches_per_chunk)
        last = self.stop.status is not None or trainer.max_steps - trainer.global_step < next_chunk
        abandoned = self.stop.status is Status.ABANDONED
        if due or asked or abandoned or (self.save_last and last):
            self._save(trainer)

    def state_dict(self) -> dict[str, Any]:
        on_gpu = self._device.type == "cuda"
        return {
            "cpu": torch.get_rng_state(),
            "cuda": [torch.cuda.get_rng_state(self._device)] if on_gpu else [],
            "origin": {**self.origin, **self.later_origin()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])
        if self._device.type == "cuda" and state_dict["cuda"]:
            # Older checkpoints have those of all GPUs; their runs were on the first.
            torch.cuda.set_rng_state(state_dict["cuda"][0], self._device)
        own = {name: value for name, value in self.origin.items() if name != "machine"}
        for name, value in own.items():
            if (before := state_dict["origin"].get(name, value)) != value:
                print_line(f"warning: {name} was {before}, is {value} now: {MAY_DIFFER}")

    def _save(self, trainer: L.Trainer) -> None:
        self.stop.recorder.pause()
        if self.stop.recorder.trajectory.first_non_finite() is None:  # else there is no going on
            trainer.save_checkpoint(self.path)
        self._saved = time.monotonic()
        self.stop.recorder.resume()


class StepwiseCheckpoint(TimedCheckpoint):
    """As `TimedCheckpoint`, between two steps of Lightning's own loop.

    Saves when all hooks of a batch, schedulers and validation have run; at the last batch of an
    epoch, before the next epoch or at the end of training. Where a scheduler follows a metric, only
    then: no checkpoint holds the sums of which the means of an epoch are made. Saves numpy's and
    Python's random numbers too, and the latest metrics.
    """

    _is_due = False
    _metrics: Mapping[str, torch.Tensor] = MappingProxyType({})  # of the run that is resumed

    @property
    def state_key(self) -> str:
        return "TimedCheckpoint"

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Lightning calls no hook of a callback when it is done with a batch."""
        loop = trainer.fit_loop.epoch_loop
        advance, advance_end = loop.advance, loop.on_advance_end

        def as_ever(data_fetcher: Any) -> None:
            # Else Lightning leaves out schedulers that follow a metric in an epoch that is resumed,
            # and draws random numbers where it has validated.
            trainer.fit_loop._restarting = loop._restarting = False
            advance(data_fetcher)

        def and_save(data_fetcher: Any) -> None:
            # Else Lightning would validate because training stops, and a resumed run would not.
            stops, trainer.should_stop = trainer.should_stop, False
            advance_end(data_fetcher)
            if self._is_due and not loop._num_ready_batches_reached() and self._is_exact(trainer):
                self._save(trainer)
            trainer.should_stop |= stops

        loop.advance, loop.on_advance_end = as_ever, and_save  # type: ignore[method-assign]

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.callback_metrics.update(self._metrics)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if not self.stop.recorder.is_between_steps:
            return
        late = time.monotonic() - self._saved >= self.every_seconds
        last = self.stop.status is not None or trainer.global_step >= trainer.max_steps
        asked = self.signals.received is not None
        abandoned = self.stop.status is Status.ABANDONED
        self._is_due |= late or asked or abandoned or (self.save_last and last)

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        loader = trainer.train_dataloader
        if isinstance(loader, CountingLoader | InMemoryLoader) and loader.position:
            loader.epoch, loader.position = loader.epoch + 1, 0  # a hook skipped the rest
        if self._is_due:
            self._save(trainer)

    def on_train_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self._is_due and trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            self._save(trainer)
            self.stop.recorder.pause()

    def on_save_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let it look as if it was saved where Lightning can resume: in a hook of a batch, or
        between epochs, where its count of batches is that of the new one."""
        loop = checkpoint["loops"]["fit_loop"]
        progress = loop["epoch_loop.batch_progress"]
        total, current = progress["total"], progress["current"]
        whole = dict.fromkeys(total, total["ready"])  # also where a hook skipped the rest
        if trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            current |= dict.fromkeys(current, 0)
            total |= whole
            progress["is_last_batch"] = False
        elif current["completed"] == current["processed"]:
            current["completed"] -= 1
            total |= whole | {"completed": total["ready"] - 1}
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        checkpoint["callbacks"][self.state_key]["metrics"] = dict(trainer.callback_metrics)

    def state_dict(self) -> dict[str, Any]:
        state: Any = np.random.get_state()
        name, keys, *rest = state
        numpy = [name, torch.from_numpy(keys.astype(np.int64)), *rest]
        return super().state_dict() | {"numpy": numpy, "python": random.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        name, keys, *rest = state_dict["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        version, state, gauss = state_dict["python"]
        random.setstate((version, tuple(state), gauss))
        self._metrics = state_dict.get("metrics", {})  # older ones have none

    def _save(self, trainer: L.Trainer) -> None:
        super()._save(trainer)
        self._is_due = False

    def _is_exact(self, trainer: L.Trainer) -> bool:
        """Whether a run can resume inside an epoch; streams have no others."""
        follows = any(each.reduce_on_plateau for each in trainer.lr_scheduler_configs)
        return not follows or math.isinf(trainer.num_training_batches)
