"""Makes a probe of a run that goes on as if it had not been made, in the memory there is."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import lightning as L
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
from cbs_lightning.callbacks.probes.state import cannot_restore
from cbs_lightning.callbacks.probes.theorem import MeasureTheorem
from cbs_lightning.noise.branches import with_local_fit
from cbs_lightning.noise.record import Cost, Probe
from cbs_lightning.optim.learning_rate import RateSchedule


class ProbeMaker:
    """Makes one probe at a time, and keeps account of what they cost.

    Args:
        settings: how much to measure.
        rates: what a step's learning rate is multiplied by.
        seed: of the run.
        compiled: the mode of the net's compilation.
        say: is given a line for the user.
        theorem: measures what Theorem 3.1 supposes, where that is asked for.
        stops: whether the run is told to stop.
    """

    def __init__(
        self,
        settings: ProbeSettings,
        rates: RateSchedule,
        seed: int,
        compiled: str | None = None,
        say: Callable[[str], None] = print,
        theorem: MeasureTheorem | None = None,
        stops: Callable[[], bool] = never,
    ) -> None:
        self.settings = settings
        self.rates = rates
        self.seed = seed
        self.compiled = compiled
        self.say = say
        self.theorem = theorem
        self.stops = stops
        self.batch_size = 0  # of the run; known once it starts
        self.own_slice: int | None = None  # samples, in which the run itself works
        self.latest: deque[Any] = deque(maxlen=0)  # whole batches of a stream
        self.notes: list[str] = []
        self.cost = Cost()

    def start(self, trainer: L.Trainer, module: L.LightningModule, batch_size: int) -> None:
        self.batch_size = batch_size
        self.own_slice = own_slice_size(trainer, module)
        if self.theorem is not None:
            self.theorem.attach(module, trainer.optimizers[0])
        if not samples_freely(trainer.train_dataloader):
            self.latest = deque(maxlen=max(3, self.settings.samples // batch_size))
            self.note("gradients are of the batches that were trained last: the data is a stream")

    @property
    def is_of_stream(self) -> bool:
        """Whether no batches can be drawn, so that only the latest can be used."""
        return bool(self.latest.maxlen)

    def note(self, text: str) -> None:
        """Once a run."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"probes: {text}")

    def state_dict(self) -> dict[str, Any]:
        theorem = self.theorem.state_dict() if self.theorem is not None else None
        return {"notes": self.notes, "cost": asdict(self.cost), "theorem": theorem}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.notes, self.cost = list(state_dict["notes"]), Cost(**state_dict["cost"])
        if self.theorem is not None:
            self.theorem.load_state_dict(state_dict["theorem"])

    def make(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        blank: Probe,
        deferred: Deferred | None = None,
    ) -> Probe | None:
        """The probe, or None where it cannot be made.

        Raises `StopRequested`, with nothing accounted, where the run is told to stop meanwhile.
        """
        before = self.cost, list(self.notes)
        started = time.perf_counter()
        if self.theorem is not None:
            self.theorem.paused = True
        try:
            found = self._measured_in_memory(trainer, module, blank, deferred)
        except StopRequested:
            self.cost, self.notes = before
            raise
        finally:
            if self.theorem is not None:
                self.theorem.paused = False
        seconds = time.perf_counter() - started
        self.cost = replace(self.cost, seconds=self.cost.seconds + seconds)
        return found

    def _measured_in_memory(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        blank: Probe,
        deferred: Deferred | None,
    ) -> Probe | None:
        """In smaller slices where memory is short; None where even those are too much."""
        batches, size = self._batches()
        if batches < 2:
            self.note(f"no probe at step {blank.step}: the stream has had no two whole batches")
            return None
        own = self.own_slice
        why = "out of memory"
        for slice_size in (own, *smaller_slices(own, size)):
            if slice_size != own:
                self.note(f"memory was short in a probe: gradients in slices of {slice_size}")
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
        self.note(f"no probe at step {blank.step}: {why}; the run goes on")
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
        if deferred is not None:
            deferred.put(module, trainer.optimizers[0])
        if lost:
            self.note(cannot_restore(lost))
        batches, size = self._batches()
        objective = Objective(
            trainer, module, size, slice_size, self.seed, blank.step, tuple(self.latest), self.stops
        )
        factor = self.rates.factor(blank.samples, self.batch_size)
        try:
            found = measure(
                objective,
                trainer.optimizers[0],
                batches,
                self.settings,
                self.batch_size,
                factor,
                self.note,
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
            self.note("no branches: the data is a stream, of which no batches can be drawn")
            return []
        settings, most = self.settings, data_size(trainer.train_dataloader)
        sizes = branch_sizes(self.batch_size, settings.branch_factors, most)
        branches = Branches(held, slice_size, factor)
        found = branches.make(sizes, settings.branch_steps, settings.branch_repeats)
        return [each.to_dict() for each in found]

    def _batches(self) -> tuple[int, int]:
        """How many batches a probe takes gradients of now, and the samples of each."""
        if self.is_of_stream:
            return len(self.latest), self.batch_size
        return self.settings.batches_of(self.batch_size)

    def _add_cost(self, objective: Objective, optimizer: Optimizer) -> None:
        cost, of_update = self.cost, self.cost.gradients_of_update
        if objective.updates and metric_of(optimizer, objective.parameters) is None:
            of_update = self.batch_size
        self.cost = replace(
            cost,
            updates=cost.updates + objective.updates,
            gradients_of_update=of_update,
            gradients=cost.gradients + objective.gradients,
            forward_passes=cost.forward_passes + objective.forward_passes,
            hessian_products=cost.hessian_products + objective.hessian_products,
        )
