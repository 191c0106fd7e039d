"""Stops a run at the loss threshold, or when continuing makes no sense."""

import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import lightning as L

from cbs_lightning.callbacks.loaders import batch_size_on, check_epoch, data_size, rule_on
from cbs_lightning.callbacks.optimizer_settings import require_steps
from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.callbacks.run_files import RunFiles
from cbs_lightning.callbacks.samples import CountSamples
from cbs_lightning.data.loader import steps_per_chunk
from cbs_lightning.results.result import Status
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.results.trajectory import (
    Reading,
    Rule,
    RuleName,
    Trajectory,
    first_crossing,
    last_reading,
)

LOOK_EVERY_UNLOGGED = 100  # steps, in a Trainer that logs nothing
LOOK_EVERY_ON_STREAM = 100  # steps, of a GPU on data without epochs


class StopAtThreshold(L.Callback):
    """Stops training when the loss reaches a threshold, and counts the steps that took.

    Works in any Trainer with one device, with automatic or manual optimization (one optimizer step
    per call of `training_step`) and with gradient accumulation. The losses are checked at the end
    of each epoch and every `log_every_n_steps`, so training may go on for a few steps after the
    threshold was reached; the count is exact. A loss that is infinite or NaN also ends training.
    With several of these callbacks, training goes on until each has its answer.

    Afterwards `status` says why training ended. `steps` (K), `sfo` (K times the effective batch
    size) and `samples` are None unless the threshold was reached; if it was, they are also logged.
    A run that the Trainer's own limits or another callback ended is `exhausted`.

    Args:
        loss: the threshold.
        rule: `epoch`: the mean loss of an epoch; `window`: the mean over the latest `window`
            samples, at every step; `middle`: the same mean, dated at the middle of those samples.
        window: samples in that mean, for `window` and `middle`; None: the size of the data set.
        directory: a run directory to write, for `make figures`; None: nothing is written.
        monitor: a logged metric to use as the loss; None: what `training_step` returns.
        count_samples: a function that returns the number of samples in a batch; None: the module's
            method of that name, or else the length of its first tensor.
        variant: name of the run's curve in a figure; None: the optimizer's name.
        batch_size: samples per step; None: the loader's batch size times the accumulation. Every
            step must have as many; only the last one of an epoch may have fewer.
        seed: seed to record; None: that of `seed_everything`, if it was called.
        recorder: for this project's own runs: the recorder that they have already.
        sfo_limit: for searches: the SFO above which the run is abandoned.
        look_every: for this project's own runs: steps between two checks on a GPU; None: once per
            epoch.

    Example:
        >>> from cbs_lightning import StopAtThreshold
        >>> stop = StopAtThreshold(loss=0.1, rule="window", window=50_000)
        >>> # Trainer(callbacks=[stop]).fit(module, data)
        >>> stop.status, stop.steps, stop.sfo, stop.samples
        (None, None, None, None)
    """

    def __init__(
        self,
        loss: float,
        rule: str = "epoch",
        window: int | None = None,
        directory: str | Path | None = None,
        *,
        monitor: str | None = None,
        count_samples: CountSamples | None = None,
        variant: str | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        recorder: TrajectoryRecorder | None = None,
        sfo_limit: SfoLimit | None = None,
        look_every: int | None = None,
    ) -> None:
        _check_number("loss", loss)
        if rule not in list(RuleName):
            raise ValueError(f"rule must be one of {', '.join(RuleName)}, not {rule!r}")
        for name, value, least in (("window", window, 1), ("batch_size", batch_size, 1),
                                   ("seed", seed, 0)):  # fmt: skip
            _check_whole(name, value, least)
        if window is not None and rule == RuleName.EPOCH:
            raise ValueError(f"window={window} is for rule='window' and rule='middle', not 'epoch'")
        if monitor is not None and not isinstance(monitor, str):
            raise ValueError(f"monitor must be a metric's name, not {monitor!r}")
        if count_samples is not None and not callable(count_samples):
            raise ValueError(f"count_samples must be a function, not {count_samples!r}")
        if directory is not None and not isinstance(directory, str | os.PathLike):
            raise ValueError(f"directory must be a path, not {directory!r}")
        if variant is not None and (directory is None or not isinstance(variant, str)):
            raise ValueError(f"variant={variant!r} must be a name, and needs directory=")
        self.threshold = float(loss)
        self.rule = Rule(RuleName(rule), steps_per_epoch=0, window=window or 0)  # until it starts
        self.batch_size = batch_size  # as asked for
        self.effective_batch_size = batch_size  # at most the samples of an epoch
        self.sfo_limit = sfo_limit
        self.recorder = recorder or TrajectoryRecorder(monitor, count_samples)
        self.status: Status | None = None
        self.latest: Reading | None = None
        self.crossing: Reading | None = None
        self._records = recorder is None
        self._files = RunFiles(Path(directory), variant, seed) if directory is not None else None
        self._asked = self.rule, batch_size
        self._steps_read = 0
        self._steps_seen = 0
        self._steps_logged = 0
        self._look_every = look_every

    @property
    def steps(self) -> int | None:
        """K, the number of steps until the threshold was reached; None if it was not."""
        return self.crossing.steps if self.crossing is not None else None

    @property
    def sfo(self) -> int | None:
        """K times the batch size; None if the threshold was not reached."""
        return self._sfo(self.crossing.steps) if self.crossing is not None else None

    @property
    def samples(self) -> int | None:
        """Samples used until then; None if the threshold was not reached."""
        return self.crossing.samples if self.crossing is not None else None

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._files is not None:
            self._files.note_schedulers(trainer)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        rule, batch_size = self._asked
        self.rule, self.batch_size = rule_on(trainer, rule), batch_size_on(trainer, batch_size)
        most = data_size(trainer.train_dataloader) or self.batch_size
        self.effective_batch_size = self.recorder.batch_size = min(self.batch_size, most)
        if self._records:
            require_steps(trainer, module)
            self.recorder.on_train_start(trainer, module)
            # An earlier training with this callback may have ended otherwise.
            self.status = self.latest = self.crossing = None
            self._steps_read = 0
        if self._files is not None:
            self._files.begin(trainer, module, self)
        self._steps_seen = self._steps_logged = trainer.global_step
        self._is_stream = math.isinf(trainer.num_training_batches)
        if trainer.strategy.root_device.type == "cpu":  # where looking is cheap
            self._look_every = steps_per_chunk(self.effective_batch_size)
        elif self._look_every is None:
            self._look_every = (
                LOOK_EVERY_ON_STREAM if self._is_stream else self.rule.steps_per_epoch
            )
        if len(self.recorder.trajectory):
            self._look(trainer, module, self.recorder.trajectory)

    def on_train_epoch_start(self, *_: Any) -> None:
        if self._records:
            self.recorder.on_train_epoch_start()

    def on_train_batch_start(self, *_: Any) -> None:
        if self._records:
            self.recorder.on_train_batch_start()

    def on_before_backward(self, trainer: L.Trainer, module: L.LightningModule, loss: Any) -> None:
        self.recorder.on_before_backward(trainer, module, loss)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any = None,
        batch_idx: int = 0,
    ) -> None:
        if self._records:
            self.recorder.on_train_batch_end(trainer, module, outputs, batch, batch_idx)
            self._look_now_and_then(trainer, module)
            return
        before, self._steps_seen = self._steps_seen, trainer.global_step
        if before != self._steps_seen and self._is_due(before, self._steps_seen, trainer.max_steps):
            self.recorder.pause()
            self._look(trainer, module, self.recorder.trajectory)

    def on_validation_start(self, *_: Any) -> None:
        if self._records:
            self.recorder.on_validation_start()

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.rule.name is RuleName.EPOCH:
            check_epoch(trainer, self.rule.steps_per_epoch)
        if self._records:
            self.recorder.on_train_epoch_end()
            self._look(trainer, module, self.recorder.trajectory)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self._records:
            return
        self.recorder.pause()
        self.status = self.status or Status.EXHAUSTED
        if self._files is not None:
            self._files.finish(self)

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, error: Any) -> None:
        if self._records and self.rule.steps_per_epoch:
            self.recorder.pause()
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            if self.status is not Status.REACHED:
                self.status = Status.INTERRUPTED if interrupted else Status.FAILED
            if self._files is not None:
                self._files.finish(self)

    # Not state_dict, of which Lightning allows one for each kind of callback.

    def on_save_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._records:
            states = checkpoint["callbacks"].setdefault(self.state_key, {})
            state = self.recorder.state_dict()
            states.setdefault("recorder", state)
            states[self._recorder_key] = state

    def on_load_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states = checkpoint["callbacks"].get(self.state_key)
        if self._records and states is not None:
            state = states.get(self._recorder_key, states["recorder"])
            self.recorder.load_state_dict(state)

    @property
    def _recorder_key(self) -> str:
        """Where several metrics are recorded, each has a state of its own."""
        monitor = self.recorder.monitor
        return "recorder" if monitor is None else f"recorder of {monitor}"

    def _is_due(self, before: int, steps: int, max_steps: int) -> bool:
        """Whether to look after these steps; a run that is resumed looks after the same ones."""
        assert self._look_every is not None
        end_of_epoch = not self._is_stream and steps % self.rule.steps_per_epoch == 0
        if end_of_epoch or steps >= max_steps or self._is_given_up(steps):
            return True
        return steps // self._look_every > before // self._look_every

    def _look_now_and_then(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        every = _log_every(trainer) or LOOK_EVERY_UNLOGGED
        if trainer.global_step % every == 0 and trainer.global_step > self._steps_read:
            self.recorder.fetch()
            self._look(trainer, module, self.recorder.trajectory)

    def _look(self, trainer: L.Trainer, module: L.LightningModule, trajectory: Trajectory) -> None:
        self._log_losses(trainer, trajectory)
        if self.crossing is not None:
            return
        since, self._steps_read = self._steps_read, len(trajectory)
        crossing = first_crossing(trajectory, self.rule, self.threshold, since)
        self.latest = crossing or last_reading(trajectory, self.rule)
        if crossing is not None:
            self.status, self.crossing = Status.REACHED, crossing
            self._log(trainer, module, crossing)
        elif self.recorder.has_diverged:
            self.status = Status.DIVERGED
        elif len(trajectory) < trainer.max_steps and self._is_given_up(len(trajectory)):
            self.status = Status.ABANDONED
        if self.status is not None:
            callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            stops = (each for each in callbacks if isinstance(each, StopAtThreshold))
            if all(each.status is not None for each in stops):
                trainer.should_stop = True

    def _is_given_up(self, steps: int) -> bool:
        if self.sfo_limit is None:
            return False
        assert self.effective_batch_size is not None
        ahead = self.rule.steps_ahead(self.effective_batch_size)
        return self.sfo_limit.is_exceeded(self._sfo(steps - ahead))

    def _sfo(self, steps: int) -> int:
        assert self.effective_batch_size is not None
        return steps * self.effective_batch_size

    def _log(self, trainer: L.Trainer, module: L.LightningModule, crossing: Reading) -> None:
        share = crossing.steps / max(1, len(self.recorder.trajectory))
        found = {
            "steps": float(crossing.steps),
            "sfo": float(self._sfo(crossing.steps)),
            "samples": float(crossing.samples),
            "loss": crossing.loss,
            "seconds": self.recorder.seconds * share,
        }
        if crossing.accuracy is not None:
            found["accuracy"] = crossing.accuracy
        module.log_dict(found, logger=False)
        for logger in trainer.loggers:
            logger.log_metrics(found, step=trainer.global_step)

    def _log_losses(self, trainer: L.Trainer, trajectory: Trajectory) -> None:
        """Those of every `log_every_n_steps`-th step since the last time."""
        since, self._steps_logged = self._steps_logged, len(trajectory)
        every = _log_every(trainer)
        if not every or not trainer.loggers:
            return
        for step in range(since - since % every + every, len(trajectory) + 1, every):
            for logger in trainer.loggers:
                logger.log_metrics({"loss": float(trajectory.loss[step - 1])}, step=step)


def _check_number(name: str, value: Any) -> None:
    valid = isinstance(value, Real) and not isinstance(value, bool)
    if not valid or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, not {value!r}")


def _check_whole(name: str, value: Any, least: int) -> None:
    valid = isinstance(value, Integral) and not isinstance(value, bool)
    if value is not None and not (valid and value >= least):
        raise ValueError(f"{name} must be a whole number >= {least}, not {value!r}")


def _log_every(trainer: L.Trainer) -> int:
    return int(getattr(trainer, "log_every_n_steps", 0))
