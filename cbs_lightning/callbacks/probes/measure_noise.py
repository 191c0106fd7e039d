"""Probes a run as its loss falls, without changing it by a bit."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch

from cbs_lightning.callbacks.loaders import data_size
from cbs_lightning.callbacks.probes.branches import Branches, branch_sizes
from cbs_lightning.callbacks.probes.measurement import ProbeSettings, measure
from cbs_lightning.callbacks.probes.objective import Objective, samples_freely
from cbs_lightning.callbacks.probes.schedule import (
    latest_reading,
    levels,
    passed,
    reading_rule,
    steps_stood_for,
)
from cbs_lightning.callbacks.probes.state import unchanged
from cbs_lightning.callbacks.probes.theorem import MeasureTheorem
from cbs_lightning.callbacks.probes.write_events import write_events
from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import uncompiled
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.noise.branches import with_local_fit
from cbs_lightning.noise.record import Cost, NoiseRecord, Probe
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.results.result import Result
from cbs_lightning.results.trajectory import Rule

HALVINGS = 3  # of a slice, where memory is short, before a probe is left out


class MeasureNoise(L.Callback):
    """Measures |G|², tr Σ, noise scales, a and c whenever the loss passes one of its levels.

    The levels are evenly spaced in log loss between the first reading and the threshold; a reading
    is the mean over the latest samples. To stand after `stop` among the callbacks.

    Args:
        settings: how often and how much to measure.
        stop: which knows the losses and the threshold.
        rates: what a step's learning rate is multiplied by.
        directory: of the run, for TensorBoard.
        seed: of the run.
        compiled: the mode of the net's compilation.
        say: is given a line for the user.
        theorem: measures what Theorem 3.1 supposes, where that is asked for.
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
    ) -> None:
        self.settings = settings
        self.stop = stop
        self.rates = rates
        self.directory = directory
        self.seed = seed
        self.compiled = compiled
        self.say = say
        self.theorem = theorem
        self.probes: list[Probe] = []
        self.notes: list[str] = []
        self.cost = Cost()
        self.is_late = False  # the run began without probes
        self._rule: Rule | None = None
        self._levels: list[float] | None = None
        self._passed = 0
        self._looked = 0
        self._kept: deque[Any] = deque(maxlen=0)
        self._obstacle: str | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert self.stop.effective_batch_size is not None
        size = data_size(trainer.train_dataloader)
        self._rule = reading_rule(size, self.stop.rule)
        self._looked = trainer.global_step
        self.is_late = trainer.global_step > 0 and self._levels is None
        if self._levels is None:
            self._levels = []
        if self.theorem is not None:
            self.theorem.attach(module, trainer.optimizers[0])
        own_loop = isinstance(module, Classifier)
        if not (own_loop or module.automatic_optimization):
            self._obstacle = "under manual optimization a module takes its gradients itself"
            self._note(f"no probes: {self._obstacle}")
        if not samples_freely(trainer.train_dataloader):
            self._kept = deque(
                maxlen=max(3, self.settings.samples // self.stop.effective_batch_size)
            )
            self._note("gradients are of the batches that were trained last: the data is a stream")

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any = None,
        batch_idx: int = 0,
    ) -> None:
        recorder = self.stop.recorder
        if self._kept.maxlen:
            samples = recorder.samples_of(trainer, batch, batch_idx)
            if samples == self.stop.effective_batch_size:
                self._kept.append(batch)
        if trainer.strategy.root_device.type == "cpu" and recorder.is_between_steps:
            recorder.fetch()
        trajectory = recorder.trajectory
        steps, looked = len(trajectory), self._looked
        # On a GPU only where `stop` has looked: a resumed run is probed after the same steps.
        if steps != trainer.global_step or steps <= looked or self.stop.status is not None:
            return
        self._looked = steps
        assert self._rule is not None
        reading = latest_reading(trajectory, self._rule)
        if reading is None or self.is_late or self._obstacle is not None:
            return
        if not self._levels:
            self._levels = levels(reading.loss, self.stop.threshold, self.settings.probes)
        number = passed(reading.loss, self._levels)
        if number > self._passed:
            self._passed = number
            self._probe(trainer, module, steps, reading.samples, reading.loss)

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "threshold": self.stop.threshold,
            "levels": self._levels or [],
            "passed": self._passed,
            "probes": [asdict(each) for each in self.probes],
            "notes": self.notes,
            "cost": asdict(self.cost),
            "theorem": self.theorem.state_dict() if self.theorem is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Probes on the way to another threshold, or other ones, are not what is asked for."""
        same = state_dict["settings"] == asdict(self.settings)
        if not same or state_dict["threshold"] != self.stop.threshold:
            return
        self._levels, self._passed = list(state_dict["levels"]), state_dict["passed"]
        self.probes = [Probe(**each) for each in state_dict["probes"]]
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
            batch_size=result.batch_size,
            seed=result.seed,
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
            notes=[*self.notes, *self._missed()],
        )

    def _missed(self) -> list[str]:
        """In a short run the loss passes several levels between two looks."""
        missed = self._passed - len(self.probes)
        return [f"{missed} levels of loss were passed without a probe"] if missed > 0 else []

    def _probe(
        self, trainer: L.Trainer, module: L.LightningModule, step: int, samples: int, loss: float
    ) -> None:
        self.stop.recorder.pause()
        started = time.perf_counter()
        blank = Probe(step=step, samples=samples, loss=loss, steps=0)
        if self.theorem is not None:
            self.theorem.paused = True
        found = self._measured_in_memory(trainer, module, blank)
        if self.theorem is not None:
            self.theorem.paused = False
        seconds = time.perf_counter() - started
        self.cost = replace(self.cost, seconds=self.cost.seconds + seconds)
        if found is not None:
            self.probes.append(found)
            write_events(self.directory, self.probes)

    def _measured_in_memory(
        self, trainer: L.Trainer, module: L.LightningModule, blank: Probe
    ) -> Probe | None:
        """In smaller slices where memory is short; None where even those are too much."""
        assert self.stop.effective_batch_size is not None
        batches, size = self._batches()
        if batches < 2:
            self._note(f"no probe at step {blank.step}: the stream has had no two whole batches")
            return None
        slice_size = _slice_size(trainer, module)
        for _ in range(HALVINGS + 1):
            try:
                with unchanged(trainer, module), uncompiled(self.compiled):
                    return self._measured(trainer, module, blank, slice_size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if trainer.strategy.root_device.type == "cuda":
                    torch.cuda.empty_cache()
            slice_size = max(1, math.ceil(min(slice_size or size, size) / 2))
            self._note(f"memory was short in a probe: gradients in slices of {slice_size}")
        self._note(f"no probe at step {blank.step}: out of memory; the run goes on")
        return None

    def _measured(
        self, trainer: L.Trainer, module: L.LightningModule, blank: Probe, slice_size: int | None
    ) -> Probe:
        assert self.stop.effective_batch_size is not None
        batches, size = self._batches()
        objective = Objective(
            trainer, module, size, slice_size, self.seed, blank.step, tuple(self._kept)
        )
        factor = self.rates.factor(blank.samples, self.stop.effective_batch_size)
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
        self._add_cost(objective)
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

    def _add_cost(self, objective: Objective) -> None:
        cost = self.cost
        self.cost = replace(
            cost,
            gradients=cost.gradients + objective.gradients,
            forward_passes=cost.forward_passes + objective.forward_passes,
            hessian_products=cost.hessian_products + objective.hessian_products,
        )

    def _note(self, text: str) -> None:
        """Once a run."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"probes: {text}")


def _slice_size(trainer: L.Trainer, module: L.LightningModule) -> int | None:
    """Samples of the slices that the run itself works in; None: whole batches."""
    if isinstance(module, Classifier) and not module.automatic_optimization:
        return module.micro_batch_size
    return getattr(trainer.train_dataloader, "slice_size", None)
