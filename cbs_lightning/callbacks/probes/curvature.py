"""a and c of one step: what the full gradient lowers the loss by, and what noise takes of it.

A step θ - ηPg with a batch of b samples lowers the loss by a - c/b in the mean, with
a = ηGᵀPG - ½η²GᵀPHPG and c = ½η² tr(PHPΣ). The first term is known from pairs of gradients. What is
beyond it is measured in two ways, each on one group of a probe's batches, with a step v = ηPg that
follows the mean gradient g of the other groups:

- by trial steps: L(θ-v) - L(θ) + vᵀ∇L(θ). Noise is added and subtracted, so that its first order
  cancels: ½L(θ-v+δ) + ½L(θ-v-δ) - L(θ-v) is c/b, where δ is the noise of a step with b samples;
- by products with the Hessian: ½vᵀHv and ½δᵀHδ.

The gradient that v follows has noise itself, as that of a batch of N samples: a has its c/N added.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from cbs_lightning.callbacks.probes.gradients import GradientSums
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.callbacks.probes.preconditioner import Metric
from cbs_lightning.models.out_of_memory import is_out_of_memory

FEWEST_GROUPS = 3  # one to measure the loss on, two for a step and its noise
PRODUCT_SAMPLES = 96  # that the Hessian is of: a product costs five gradients or more


def measure_curvature(
    objective: Objective,
    sums: GradientSums,
    metric: Metric,
    batch_size: int,
    trials: int,
    products: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """a and c by the names of a `Probe`; `batch_size` is that of the noise in trial steps."""
    here = Curvature(objective, sums, metric, batch_size)
    found: dict[str, Any] = {}
    if trials:
        found |= here.by_trial_steps(trials)
    if products > 1:
        try:
            found |= here.by_hessian_products(products)
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:120]
            note(f"a and c by trial steps alone: torch has no second derivatives here ({reason})")
    return found


class Part(NamedTuple):
    """One group to measure the loss on, and a step by the others."""

    group: int
    step: Tensor  # v
    noise: Tensor  # δ, by one of them
    step_samples: int  # N, of the gradient that v follows


class Curvature:
    """Of the loss along the full step and along the noise of steps, at one moment of a run."""

    def __init__(
        self, objective: Objective, sums: GradientSums, metric: Metric, batch_size: int
    ) -> None:
        self.objective = objective
        self.sums = sums
        self.metric = metric
        self.batch_size = batch_size
        self.means = sums.group_means()

    def by_trial_steps(self, pairs: int) -> dict[str, float | None]:
        """Every pair on another group, so that they scatter as repeated probes do."""
        beyond, excess, samples = [], [], []
        for number in range(pairs):
            part = self._part(number)
            here, stepped = self._loss_here(part.group), self._loss_at(part, -part.step)
            beyond.append(stepped - here + float(self.means[part.group] @ part.step))
            up, down = (self._loss_at(part, sign * part.noise - part.step) for sign in (1, -1))
            excess.append((up + down) / 2 - stepped)
            samples.append(part.step_samples)
        self.objective.move(None)
        return self._named("trial", beyond, excess, sum(samples) / len(samples))

    def by_hessian_products(self, products: int) -> dict[str, float | None]:
        """One along the step, on a part of one group; the others along noise, each on another."""
        part = self._part(0)
        along, *across = self._products(part, [part.step, part.noise])
        for number in range(1, products - 1):
            part = self._part(number)
            across += self._products(part, [part.noise])
        return self._named("hvp", [along], across, self._part(0).step_samples)

    def _products(self, part: Part, vectors: list[Tensor]) -> list[float]:
        """½vᵀHv of each."""
        totals = [0.0] * len(vectors)
        batches = self.sums.members[part.group][: max(1, PRODUCT_SAMPLES // self.sums.batch_size)]
        for number in batches:
            found = self.objective.curvatures(number, vectors, PRODUCT_SAMPLES)
            for index, each in enumerate(found):
                totals[index] += each / len(batches) / 2
        return totals

    def _part(self, number: int) -> Part:
        """Another group for every number; noise of one that follows it."""
        sums, groups = self.sums, self.sums.groups
        group = number % groups
        noisy = (group + 1 + number // groups % (groups - 1)) % groups
        own, samples = sums.samples_of(group), sums.batches * sums.batch_size
        others = samples - own
        mean = (sums.mean * samples - self.means[group] * own) / others
        step = self.metric.eta * self.metric.scale
        # Noise about a mean of which it is part is too small; and it is to be that of b samples.
        variance = 1 / sums.samples_of(noisy) - 1 / others
        size = math.sqrt(1 / self.batch_size / variance)
        return Part(group, step * mean, size * step * (self.means[noisy] - mean), others)

    def _loss_here(self, group: int) -> float:
        losses = [self.sums.losses[each] for each in self.sums.members[group]]
        return sum(losses) / len(losses)

    def _loss_at(self, part: Part, displacement: Tensor) -> float:
        self.objective.move(displacement)
        losses = [self.objective.loss(number) for number in self.sums.members[part.group]]
        return sum(losses) / len(losses)

    def _named(
        self, way: str, beyond: list[float], excess: list[float], step_samples: float
    ) -> dict[str, float | None]:
        """`beyond` the first order, what a step adds to the loss; `excess` of it by noise."""
        scales = self.sums.statistics
        first, first_se = (scales[f"metric_gradient_norm2{end}"] for end in ("", "_se"))
        c, c_se = (_scaled(each, self.batch_size) for each in mean_and_error(excess))
        more, more_se = mean_and_error(beyond)
        assert c is not None and more is not None
        a = self.metric.eta * first - more + c / step_samples
        errors = (_scaled(first_se, self.metric.eta), more_se, _scaled(c_se, 1 / step_samples))
        a_se = math.hypot(*(each for each in errors if each is not None)) if first_se else None
        return {f"a_{way}": a, f"a_{way}_se": a_se, f"c_{way}": c, f"c_{way}_se": c_se}


def _scaled(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None else None


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    spread = sum((each - mean) ** 2 for each in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))
