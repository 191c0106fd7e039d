"""Stops a run at the loss threshold, or where going on makes no sense."""

import time
from typing import Any

import lightning as L

from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.results.result import Status
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.results.trajectory import Reading, Rule, Trajectory, first_crossing, last_reading

SECONDS_BETWEEN_LOOKS = 10


class StopAtThreshold(L.Callback):
    """Ends training once the recorded losses meet the threshold by the rule, or are not finite, or
    once a search's run has cost more than its `sfo_limit` without meeting it.

    Looks after the last step of every epoch: a crossing may be noticed late, but is counted where
    it was. On a CPU, where nothing has to be waited for, it looks every few seconds whether the
    losses are finite, too. A run that goes on from a checkpoint looks at its whole epochs first, so
    that it ends where it would have ended. A run is given up after a whole chunk, of which it is
    known then that the threshold was not met.
    `status` stays None while nothing of that happened. Logs `steps`, `sfo`, `samples`, `loss`,
    `accuracy` and `seconds` to the trainer's metrics when the threshold is reached.
    """

    def __init__(
        self,
        recorder: TrajectoryRecorder,
        threshold: float,
        rule: Rule,
        effective_batch_size: int,
        sfo_limit: SfoLimit | None = None,
    ) -> None:
        if threshold <= 0:
            raise ValueError(f"threshold must be positive, not {threshold}")
        self.recorder = recorder
        self.threshold = threshold
        self.rule = rule
        self.effective_batch_size = effective_batch_size
        self.sfo_limit = sfo_limit
        self.status: Status | None = None
        self.latest: Reading | None = None
        self._steps_read = 0
        self._looked = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        steps = len(self.recorder.trajectory)
        diverged = self.recorder.trajectory.first_non_finite() is not None
        every = diverged or self._is_given_up(steps)
        whole = steps if every else steps - steps % self.rule.steps_per_epoch
        if whole:
            self._look(trainer, module, self.recorder.trajectory[:whole])

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        end_of_epoch = trainer.global_step % self.rule.steps_per_epoch == 0
        last = trainer.global_step >= trainer.max_steps
        if end_of_epoch or last or self._is_given_up(trainer.global_step):
            self.recorder.pause()
            self._look(trainer, module, self.recorder.trajectory)
        elif outputs["loss"].is_cpu and time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
            self.recorder.fetch()
            if self.recorder.trajectory.first_non_finite() is not None:
                self._look(trainer, module, self.recorder.trajectory)
            self._looked = time.monotonic()

    def _look(self, trainer: L.Trainer, module: L.LightningModule, trajectory: Trajectory) -> None:
        crossing = first_crossing(trajectory, self.rule, self.threshold, since=self._steps_read)
        self._steps_read = len(trajectory)
        self.latest = crossing or last_reading(trajectory, self.rule)
        if crossing is not None:
            self.status = Status.REACHED
            self._log(module, crossing)
        elif trajectory.first_non_finite() is not None:
            self.status = Status.DIVERGED
        elif len(trajectory) < trainer.max_steps and self._is_given_up(len(trajectory)):
            self.status = Status.ABANDONED
        if self.status is not None:
            trainer.should_stop = True

    def _is_given_up(self, steps: int) -> bool:
        sfo = steps * self.effective_batch_size
        return self.sfo_limit is not None and self.sfo_limit.is_exceeded(sfo)

    def _log(self, module: L.LightningModule, crossing: Reading) -> None:
        share = crossing.steps / max(1, len(self.recorder.trajectory))
        module.log_dict(
            {
                "steps": float(crossing.steps),
                "sfo": float(crossing.steps * self.effective_batch_size),
                "samples": float(crossing.samples),
                "loss": crossing.loss,
                "accuracy": crossing.accuracy,
                "seconds": self.recorder.seconds * share,
            },
            logger=False,
        )
