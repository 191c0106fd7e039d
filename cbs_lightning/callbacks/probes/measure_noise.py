"""Probes a run as its loss falls, without changing it by a bit."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor

from cbs_lightning.callbacks.loaders import data_size
from cbs_lightning.callbacks.log_noise import write_events
from cbs_lightning.callbacks.probes.attempt import Deferred
from cbs_lightning.callbacks.probes.make_probe import ProbeMaker
from cbs_lightning.callbacks.probes.objective import StopRequested, never
from cbs_lightning.callbacks.probes.schedule import Descent, reading_rule, steps_stood_for
from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.models import Classifier
from cbs_lightning.noise.record import NoiseRecord, Probe
from cbs_lightning.results.result import Result, Status
from cbs_lightning.results.trajectory import Rule


class MeasureNoise(L.Callback):
    """Measures |G|², tr Σ, noise scales, a and c whenever the loss passes one of its levels.

    The levels are evenly spaced in log loss between the first reading and the threshold; a reading
    is the mean over the latest samples. As long as probes are left to make, it looks at the loss of
    every step, for which a GPU has to wait. To stand after `stop` among the callbacks.

    Args:
        maker: makes the probes.
        stop: which knows the losses and the threshold.
        directory: of the run, for TensorBoard.
        stops: whether the run is told to stop. A probe is then put off until it resumes.
    """

    def __init__(
        self,
        maker: ProbeMaker,
        stop: StopAtThreshold,
        directory: Path,
        stops: Callable[[], bool] = never,
    ) -> None:
        self.maker = maker
        self.settings = maker.settings
        self.stop = stop
        self.directory = directory
        self.stops = stops
        self.probes: list[Probe] = []
        self.is_late = False  # the run began without probes
        self._descent: Descent | None = None
        self._rule: Rule | None = None
        self._loaded: dict[str, Any] | None = None
        self._deferred: list[Deferred] = []
        self._obstacle: str | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert self.stop.effective_batch_size is not None
        self._rule = reading_rule(data_size(trainer.train_dataloader), self.stop.rule)
        self._descent = Descent(self.stop.threshold, self._rule.window, self.settings.probes)
        self._descent.resume(self.stop.recorder.trajectory)
        if self._loaded is not None:
            self._descent.load_state_dict(self._loaded)
        self.is_late = trainer.global_step > 0 and self._loaded is None
        self.maker.start(trainer, module, self.stop.effective_batch_size)
        if not (isinstance(module, Classifier) or module.automatic_optimization):
            self._obstacle = "under manual optimization a module takes its gradients itself"
            self.maker.note(f"no probes: {self._obstacle}")
        if isinstance(module, Classifier) and self._is_watching:
            module.step_listener = partial(self._after_step, trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if isinstance(module, Classifier):
            module.step_listener = None

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        """Make the probes that were put off."""
        while self._deferred and not self.stops():
            deferred = self._deferred[0]
            if not self._make(trainer, module, deferred.blank, deferred):
                return
            self._deferred.pop(0)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any = None,
        batch_idx: int = 0,
    ) -> None:
        """Look at the steps that were not seen one by one."""
        recorder = self.stop.recorder
        if self.maker.is_of_stream:
            samples = recorder.samples_of(trainer, batch, batch_idx)
            if samples == self.stop.effective_batch_size:
                self.maker.latest.append(batch)
        if not (self._is_watching and recorder.is_between_steps):
            return
        recorder.fetch()
        assert self._descent is not None
        latest = recorder.trajectory[self._descent.steps :]
        for loss, size in zip(latest.loss.tolist(), latest.size.tolist(), strict=True):
            self._descent.add(loss, size)
        # A stream that is resumed has no batches yet.
        has_batches = (
            not self.maker.is_of_stream or len(self.maker.latest) > 1 or self._loaded is None
        )
        if len(latest) and has_batches and self._descent.is_due():
            self._probe(trainer, module)

    def _after_step(
        self, trainer: L.Trainer, module: L.LightningModule, loss: Tensor, size: int
    ) -> None:
        """In the middle of a chunk."""
        if not self._is_watching:
            return
        assert self._descent is not None
        self._descent.add(float(np.float32(loss.item())), size)
        if self._descent.is_due():
            self._probe(trainer, module)

    @property
    def _is_watching(self) -> bool:
        descent = self._descent
        may = descent is not None and not descent.is_over
        return may and not self.is_late and self._obstacle is None

    @property
    def has_deferred(self) -> bool:
        """Whether probes were put off that are not made yet."""
        return bool(self._deferred)

    @property
    def seconds(self) -> float:
        """That probes have taken."""
        return self.maker.cost.seconds

    @property
    def seconds_left(self) -> float:
        """For those that are left, by the mean so far."""
        left = self._descent.left if self._descent is not None and self._is_watching else 0
        return self.maker.cost.seconds * left / max(self.settings.probes - left, 1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "threshold": self.stop.threshold,
            "descent": self._descent.state_dict() if self._descent is not None else None,
            "probes": [asdict(each) for each in self.probes],
            "deferred": [each.state_dict() for each in self._deferred],
            **self.maker.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Probes on the way to another threshold, or other ones, are not what is asked for."""
        met = self.settings.are_met_by(state_dict["settings"])
        if not met or state_dict["threshold"] != self.stop.threshold:
            return
        self._loaded = state_dict.get("descent")  # None in a checkpoint of an earlier version
        if self._loaded is None:
            return
        self.probes = [Probe(**each) for each in state_dict["probes"]]
        deferred = state_dict.get("deferred", [])  # none in a checkpoint of an earlier version
        self._deferred = [Deferred.from_state_dict(each) for each in deferred]
        self.maker.load_state_dict(state_dict)

    def record(self, result: Result) -> NoiseRecord:
        """What was measured in a run with this result."""
        trajectory = self.stop.recorder.trajectory
        probed = [(each.step, each.loss) for each in self.probes]
        rule = self._rule
        if rule is None:  # the run had no step left to train
            ended_by = Rule(result.rule, result.steps_per_epoch, result.window)
            rule = reading_rule(result.data_size, ended_by)
        steps = steps_stood_for(trajectory, rule, probed)
        seconds = self.stop.recorder.seconds
        return NoiseRecord(
            config_hash=result.config_hash,
            variant=result.variant,
            optimizer=result.optimizer,
            lr=result.lr,
            batch_size=result.effective_batch_size,
            seed=self.maker.seed,
            threshold=result.threshold,
            rule=result.rule.value,
            probes=[
                replace(each, steps=stands_for)
                for each, stands_for in zip(self.probes, steps, strict=True)
            ],
            cost=replace(
                self.maker.cost,
                share_of_run=self.maker.cost.seconds / seconds if seconds > 0 else None,
            ),
            settings=asdict(self.settings),
            notes=self.maker.notes,
            shortfall=self._shortfall(result),
            steps_run=len(trajectory),
            micro_batch_size=self.maker.own_slice,
        )

    def _shortfall(self, result: Result) -> str | None:
        made, descent = len(self.probes), self._descent
        if made >= self.settings.probes or self._obstacle is not None or descent is None:
            return None
        return descent.shortfall(made, reached=result.status is Status.REACHED)

    def _probe(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        descent = self._descent
        assert descent is not None and descent.reading is not None
        blank = Probe(step=descent.steps, samples=descent.samples, loss=descent.reading, steps=0)
        if not self.stops() and self._make(trainer, module, blank):
            return
        if self.maker.is_of_stream:  # a checkpoint has no batches: at the same loss, by later ones
            descent.left, descent.level = descent.left + 1, descent.reading
        else:
            self._deferred.append(Deferred.of(blank, module, trainer.optimizers[0]))

    def _make(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        blank: Probe,
        deferred: Deferred | None = None,
    ) -> bool:
        """Make a probe or leave it out; False where the run is told to stop meanwhile."""
        with self.stop.recorder.paused():
            try:
                found = self.maker.make(trainer, module, blank, deferred)
            except StopRequested:
                return False
        if found is not None:
            self.probes.append(found)
            write_events(self.directory, self.probes)
        return True
