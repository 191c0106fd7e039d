"""a, c and the noise of steps by the optimizer's own update, whatever it is.

The update is applied as it is, with the state that the optimizer has at that moment, and undone. So
nothing need be known of its form, and momentum has the average of the run's latest gradients:

- a step v that follows the mean gradient of a probe lowers the loss by L(θ) - L(θ+v);
- noise δ in the gradient of one step moves the weights in that step and, by momentum, in those that
  follow. r is how far in the end: half of what several steps differ by whose first gradient has δ
  added or subtracted. ½L(θ+v+r) + ½L(θ+v-r) - L(θ+v) is c/b, where δ is that of b samples, and
  -δ·r is η tr(PΣ)/b for a step ηPg.

Momentum's average has the noise of the run's own batches, which a does not have: c/b is added to
what the step gains, but for the share that the first step has of r, whose noise is that of the
probe's samples instead.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.curvature import Curvature, mean_and_error
from cbs_lightning.callbacks.probes.gradients import GradientSums
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.callbacks.probes.preconditioner import Metric
from cbs_lightning.callbacks.probes.state import undone
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.optim.learning_rate import rates_of, set_rates
from cbs_lightning.optim.lion import Lion

# Of β/(1 - β) steps each, after which noise has done 95 % of what it does; the rest, and what the
# longest walk leaves out, is made up for as if gradients were forgotten at an even rate.
MEMORIES = 3
LONGEST = 60  # steps, whatever the memory


def measure_own_steps(
    objective: Objective,
    optimizer: Optimizer,
    sums: GradientSums,
    batch_size: int,
    factor: float,
    trials: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """By the names of a `Probe`; nothing for an optimizer whose step takes the gradient itself, as
    that of sharpness-aware minimization does."""
    here = OwnSteps(objective, optimizer, sums, batch_size, factor)
    try:
        return here.measure(trials)
    except Exception as error:  # whatever a stranger's step has to say
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:120]
        note(f"{type(optimizer).__name__} makes no step with a given gradient ({reason}): its own "
             "steps are not measured")  # fmt: skip
        return {}
    finally:
        objective.move(None)


class OwnSteps(Curvature):
    """Trial steps of an optimizer at one moment of a run; to be used inside `unchanged`."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        sums: GradientSums,
        batch_size: int,
        factor: float = 1.0,
    ) -> None:
        itself = Metric(1.0, torch.ones_like(sums.mean[:1]))  # a part's step is its gradient
        super().__init__(objective, sums, itself, batch_size)
        self.optimizer = optimizer
        self.factor = factor
        self.decay = decay_of(optimizer)
        self.steps = steps_of_memory(self.decay)

    def measure(self, pairs: int) -> dict[str, Any]:
        """With `pairs` of noises, each with both signs and on another of the probe's groups."""
        beyond, excess, traces, shares, samples = [], [], [], [], []
        for number in range(max(pairs, 1)):
            part = self._part(number)
            first, _ = self._walk([part.step])
            here, stepped = self._loss_here(part.group), self._loss_at(part, first)
            beyond.append(stepped - here - float(self.means[part.group] @ first))
            at_once, in_the_end = self._response(part.step, part.noise)
            losses = [self._loss_at(part, first + sign * in_the_end) for sign in (1, -1)]
            excess.append((sum(losses) / 2 - stepped) * self.batch_size)
            traces.append(-float(part.noise @ in_the_end) * self.batch_size)
            shares.append(-float(part.noise @ at_once) * self.batch_size)
            samples.append(part.step_samples)
        c, c_se = mean_and_error(excess)
        more, more_se = mean_and_error(beyond)
        gain, gain_se = self._first_order()
        share = min(max(sum(shares) / sum(traces), 0.0), 1.0) ** 2 if sum(traces) else 1.0
        noise_in_step = (1 - share) / self.batch_size + share / (sum(samples) / len(samples))
        a_se = math.hypot(gain_se, more_se or 0.0, noise_in_step * (c_se or 0.0))
        return {
            "a_own": gain - more + noise_in_step * c, "a_own_se": a_se,
            "c_own": c, "c_own_se": c_se, "own_noise": sum(traces) / len(traces),
        }  # fmt: skip

    def _response(self, gradient: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How far noise in one step moves the weights, in that step and in the end."""
        follow = [gradient] * (self.steps - 1)
        up, down = (self._walk([gradient + sign * noise, *follow]) for sign in (1, -1))
        done = 1 - self.decay**self.steps  # of what an average of gradients moves
        return (up[0] - down[0]) / 2, (up[1] - down[1]) / 2 / done

    def _first_order(self) -> tuple[float, float]:
        """What a step gains, by gradients that it does not follow; and its standard error.

        A group's gradient m counts twice: in its own gain -m·v, and in the steps v that the other
        groups' are multiplied with. By how much it moves those is seen from the step without it.
        """
        groups, mean = self.sums.groups, self.sums.mean
        total, gains, along = torch.zeros_like(mean), [], []
        for number in range(groups):
            first, _ = self._walk([self._part(number).step])
            gains.append(-float(self.means[number] @ first))
            along.append(float(mean @ first))
            total += first
        step, middle = total / groups, sum(along) / groups
        influences = [
            groups * (with_it - middle) - float((own - mean) @ step)
            for own, with_it in zip(self.means, along, strict=True)
        ]
        variance = sum(each**2 for each in influences) / (groups * (groups - 1))
        return sum(gains) / groups, math.sqrt(variance)

    @torch.no_grad()
    def _walk(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The weights' displacement by the first of these steps, and by all of them."""
        self.objective.move(None)
        with undone(self.optimizer):
            set_rates(self.optimizer, rates_of(self.optimizer), self.factor)
            self._step(gradients[0])
            first = self.objective.displacement()
            for each in gradients[1:]:
                self._step(each)
            return first, self.objective.displacement()

    def _step(self, gradient: Tensor) -> None:
        split = self.objective.split(gradient)
        for parameter, part in zip(self.objective.parameters, split, strict=True):
            # Laid out as the weights are: fused steps go through both without looking.
            parameter.grad = torch.empty_like(parameter).copy_(part)
        self.objective.check_stop()
        self.objective.updates += 1
        self.optimizer.step()
        self.optimizer.zero_grad()


def decay_of(optimizer: Optimizer) -> float:
    """The slowest of the rates at which the optimizer's averages forget a gradient; 0: none."""
    return max(_beta(optimizer, group) for group in optimizer.param_groups)


def steps_of_memory(decay: float) -> int:
    """Over which the noise of one gradient moves the weights: one, unless there is momentum."""
    return min(LONGEST, 1 + round(MEMORIES * decay / (1 - decay)))


def _beta(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """Momentum's decay rate, by the names that torch and others have for it."""
    known = [group[name] for name in ("momentum", "betas", "beta1", "beta") if group.get(name)]
    found = known[0] if known else 0.0
    if isinstance(found, Sequence):
        found = found[isinstance(optimizer, Lion)]  # whose first is only a weight
    return float(found) if isinstance(found, int | float) and 0 <= found < 1 else 0.0
