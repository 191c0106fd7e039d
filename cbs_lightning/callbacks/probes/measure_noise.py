"""Probes a run as its loss falls, without changing it by a bit."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from cbs_lightning.callbacks.loaders import data_size
from cbs_lightning.callbacks.probes.attempt import (
    Deferred,
    attempt,
    own_slice_size,
    release_memory,
    smaller_slices,
)
from cbs_lightning.callbacks.probes.branches import Branches, branch_sizes
from cbs_lightning.callbacks.probes.measurement import ProbeSettings, measure
from cbs_lightning.callbacks.probes.objective import (
    Objective,
    StopRequested,
    never,
    samples_freely,
)
from cbs_lightning.callbacks.probes.preconditioner import metric_of
from cbs_lightning.callbacks.probes.schedule import Descent, reading_rule, steps_stood_for
from cbs_lightning.callbacks.probes.state import cannot_restore
from cbs_lightning.callbacks.probes.theorem import MeasureTheorem
from cbs_lightning.callbacks.probes.write_events import write_events
from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.models import Classifier
from cbs_lightning.noise.branches import with_local_fit
from cbs_lightning.noise.record import Cost, NoiseRecord, Probe
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.results.result import Result, Status
from cbs_lightning.results.trajectory import Rule


class MeasureNoise(L.Callback):
    """Measures |G|², tr Σ, noise scales, a and c whenever the loss passes one of its levels.

    The levels are evenly spaced in log loss between the first reading and the threshold; a reading
    is the mean over the latest samples. As long as probes are left to make, it looks at the loss of
    every step, for which a GPU has to wait. To stand after `stop` among the callbacks.

    Args:
        settings: how often and how much to measure.
        stop: which knows the losses and the threshold.
        rates: what a step's learning rate is multiplied by.
        directory: of the run, for TensorBoard.
        seed: of the run.
        compiled: the mode of the net's compilation.
        say: is given a line for the user.
        theorem: measures what Theorem 3.1 supposes, where that is asked for.
        stops: whether the run is told to stop. A probe is then put off until it resumes.
    """

    def __init__(
        self,
        settings: ProbeSettings,
        stop: StopAtThreshold,
        rates: RateSchedule,
        directory: Path,
        seed: int,
        compiled: str | None = None,
        say: Callable[[str], None] = print,
        theorem: MeasureTheorem | None = None,
        stops: Callable[[], bool] = never,
    ) -> None:
        self.settings = settings
        self.stop = stop
        self.rates = rates
        self.directory = directory
        self.seed = seed
        self.compiled = compiled
        self.say = say
        self.theorem = theorem
        self.stops = stops
        self.probes: list[Probe] = []
        self.notes: list[str] = []
        self.cost = Cost()
        self.is_late = False  # the run began without probes
        self._descent: Descent | None = None
        self._rule: Rule | None = None
        self._loaded: dict[str, Any] | None = None
        self._deferred: list[Deferred] = []
        self._kept: deque[Any] = deque(maxlen=0)
        self._obstacle: str | None = None
        self._own_slice: int | None = None  # samples, in which the run itself works

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert self.stop.effective_batch_size is not None
        self._rule = reading_rule(data_size(trainer.train_dataloader), self.stop.rule)
        self._descent = Descent(self.stop.threshold, self._rule.window, self.settings.probes)
        self._descent.resume(self.stop.recorder.trajectory)
        if self._loaded is not None:
            self._descent.load_state_dict(self._loaded)
        self.is_late = trainer.global_step > 0 and self._loaded is None
        self._own_slice = own_slice_size(trainer, module)
        if self.theorem is not None:
            self.theorem.attach(module, trainer.optimizers[0])
        if not (isinstance(module, Classifier) or module.automatic_optimization):
            self._obstacle = "under manual optimization a module takes its gradients itself"
            self._note(f"no probes: {self._obstacle}")
        if not samples_freely(trainer.train_dataloader):
            self._kept = deque(
                maxlen=max(3, self.settings.samples // self.stop.effective_batch_size)
            )
            self._note("gradients are of the batches that were trained last: the data is a stream")
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
        if self._kept.maxlen:
            samples = recorder.samples_of(trainer, batch, batch_idx)
            if samples == self.stop.effective_batch_size:
                self._kept.append(batch)
        if not (self._is_watching and recorder.is_between_steps):
            return
        recorder.fetch()
        assert self._descent is not None
        latest = recorder.trajectory[self._descent.steps :]
        for loss, size in zip(latest.loss.tolist(), latest.size.tolist(), strict=True):
            self._descent.add(loss, size)
        # A stream that is resumed has no batches yet.
        has_batches = not self._kept.maxlen or len(self._kept) > 1 or self._loaded is None
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
        return self.cost.seconds

    @property
    def seconds_left(self) -> float:
        """For those that are left, by the mean so far."""
        left = self._descent.left if self._descent is not None and self._is_watching else 0
        return self.cost.seconds * left / max(self.settings.probes - left, 1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "threshold": self.stop.threshold,
            "descent": self._descent.state_dict() if self._descent is not None else None,
            "probes": [asdict(each) for each in self.probes],
            "deferred": [each.state_dict() for each in self._deferred],
            "notes": self.notes,
            "cost": asdict(self.cost),
            "theorem": self.theorem.state_dict() if self.theorem is not None else None,
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
        self.notes, self.cost = list(state_dict["notes"]), Cost(**state_dict["cost"])
        if self.theorem is not None:
            self.theorem.load_state_dict(state_dict["theorem"])

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
            seed=self.seed,
            threshold=result.threshold,
            rule=result.rule.value,
            probes=[
                replace(each, steps=stands_for)
                for each, stands_for in zip(self.probes, steps, strict=True)
            ],
            cost=replace(
                self.cost, share_of_run=self.cost.seconds / seconds if seconds > 0 else None
            ),
            settings=asdict(self.settings),
            notes=self.notes,
            shortfall=self._shortfall(result),
            steps_run=len(trajectory),
            micro_batch_size=self._own_slice,
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
        if self._kept.maxlen:  # no checkpoint has its batches: at the same loss, by later ones
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
        before = self.cost, list(self.notes)
        with self.stop.recorder.paused():
            started = time.perf_counter()
            if self.theorem is not None:
                self.theorem.paused = True
            try:
                found = self._measured_in_memory(trainer, module, blank, deferred)
            except StopRequested:
                self.cost, self.notes = before
                return False
            finally:
                if self.theorem is not None:
                    self.theorem.paused = False
            seconds = time.perf_counter() - started
        self.cost = replace(self.cost, seconds=self.cost.seconds + seconds)
        if found is not None:
            self.probes.append(found)
            write_events(self.directory, self.probes)
        return True

    def _measured_in_memory(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        blank: Probe,
        deferred: Deferred | None,
    ) -> Probe | None:
        """In smaller slices where memory is short; None where even those are too much."""
        assert self.stop.effective_batch_size is not None
        batches, size = self._batches()
        if batches < 2:
            self._note(f"no probe at step {blank.step}: the stream has had no two whole batches")
            return None
        own = self._own_slice
        why = "out of memory"
        for slice_size in (own, *smaller_slices(own, size)):
            if slice_size != own:
                self._note(f"memory was short in a probe: gradients in slices of {slice_size}")
            measured = partial(self._measured, trainer, module, blank, slice_size, deferred)
            found = attempt(
                trainer, module, self.compiled, measured, optimizers=deferred is not None
            )
            if isinstance(found, Probe):
                return found
            if not found.of_memory:
                why = found.reason
                break
            release_memory(trainer)
        self._note(f"no probe at step {blank.step}: {why}; the run goes on")
        return None

    def _measured(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        blank: Probe,
        slice_size: int | None,
        deferred: Deferred | None,
        lost: set[str],
    ) -> Probe:
        assert self.stop.effective_batch_size is not None
        if deferred is not None:
            deferred.put(module, trainer.optimizers[0])
        if lost:
            self._note(cannot_restore(lost))
        batches, size = self._batches()
        objective = Objective(
            trainer, module, size, slice_size, self.seed, blank.step, tuple(self._kept), self.stops
        )
        factor = self.rates.factor(blank.samples, self.stop.effective_batch_size)
        try:
            found = measure(
                objective,
                trainer.optimizers[0],
                batches,
                self.settings,
                self.stop.effective_batch_size,
                factor,
                self._note,
                partial(self.theorem.at_probe, blank.step) if self.theorem is not None else None,
            )
            if self.settings.branches:
                found["branches"] = self._branches(trainer, objective, slice_size, factor)
        finally:
            self._add_cost(objective, trainer.optimizers[0])
        return with_local_fit(replace(blank, **found))

    def _branches(
        self, trainer: L.Trainer, held: Objective, slice_size: int | None, factor: float
    ) -> list[dict[str, Any]]:
        if held.kept:
            self._note("no branches: the data is a stream, of which no batches can be drawn")
            return []
        assert self.stop.effective_batch_size is not None
        settings, most = self.settings, data_size(trainer.train_dataloader)
        sizes = branch_sizes(self.stop.effective_batch_size, settings.branch_factors, most)
        branches = Branches(held, slice_size, factor)
        found = branches.make(sizes, settings.branch_steps, settings.branch_repeats)
        return [each.to_dict() for each in found]

    def _batches(self) -> tuple[int, int]:
        """How many batches a probe takes gradients of now, and the samples of each."""
        assert self.stop.effective_batch_size is not None
        if self._kept.maxlen:
            return len(self._kept), self.stop.effective_batch_size
        return self.settings.batches_of(self.stop.effective_batch_size)

    def _add_cost(self, objective: Objective, optimizer: Optimizer) -> None:
        cost, of_update = self.cost, self.cost.gradients_of_update
        if objective.updates and metric_of(optimizer, objective.parameters) is None:
            of_update = self.stop.effective_batch_size
        self.cost = replace(
            cost,
            updates=cost.updates + objective.updates,
            gradients_of_update=of_update,
            gradients=cost.gradients + objective.gradients,
            forward_passes=cost.forward_passes + objective.forward_passes,
            hessian_products=cost.hessian_products + objective.hessian_products,
        )

    def _note(self, text: str) -> None:
        """Once a run."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"probes: {text}")
