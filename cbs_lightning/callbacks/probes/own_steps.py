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
from cbs_lightning.optim.learning_rate import rates_of, set_rates

MEMORIES = 3  # of β/(1 - β) steps each, after which noise has done what it does: 95 % of it
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
    """By the names of a `Probe`; nothing for an optimizer whose step takes the gradient itself."""
    here = OwnSteps(objective, optimizer, sums, batch_size, factor)
    try:
        return here.measure(trials)
    except TypeError as error:
        if "closure" not in str(error):
            raise
        name = type(optimizer).__name__
        note(f"a and c are not measured for {name}, whose step needs a closure")
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
        self.steps = steps_of_memory(optimizer)

    def measure(self, pairs: int) -> dict[str, Any]:
        """With `pairs` of noises, each with both signs, on one of the probe's groups."""
        part = self._part(0)
        first, _ = self._walk([part.step])
        here, stepped = self._loss_here(part.group), self._loss_at(part, first)
        beyond = stepped - here - float(self.means[part.group] @ first)
        excess, traces, shares = [], [], []
        for noise in part.noise[: max(pairs, 1)]:
            at_once, in_the_end = self._response(part.step, noise)
            losses = [self._loss_at(part, first + sign * in_the_end) for sign in (1, -1)]
            excess.append(sum(losses) / 2 - stepped)
            traces.append(-float(noise @ in_the_end) * self.batch_size)
            shares.append(-float(noise @ at_once) * self.batch_size)
        c, c_se = mean_and_error([each * self.batch_size for each in excess])
        gain, gain_se = self._first_order()
        share = min(max(sum(shares) / sum(traces), 0.0), 1.0) ** 2 if sum(traces) else 1.0
        noise_in_step = c * ((1 - share) / self.batch_size + share / self.step_samples)
        return {
            "a_own": gain - beyond + noise_in_step, "a_own_se": gain_se,
            "c_own": c, "c_own_se": c_se, "own_noise": sum(traces) / len(traces),
        }  # fmt: skip

    def _response(self, gradient: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How far noise in one step moves the weights, in that step and in the end."""
        follow = [gradient] * (self.steps - 1)
        up, down = (self._walk([gradient + sign * noise, *follow]) for sign in (1, -1))
        return (up[0] - down[0]) / 2, (up[1] - down[1]) / 2

    def _first_order(self) -> tuple[float, float | None]:
        """What a step gains, by gradients that it does not follow."""
        gains = []
        for number in range(self.sums.groups):
            part = self._part(number)
            first, _ = self._walk([part.step])
            gains.append(-float(self.means[part.group] @ first))
        return mean_and_error(gains)

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
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps_of_memory(optimizer: Optimizer) -> int:
    """Over which the noise of one gradient moves the weights: one, unless there is momentum."""
    betas = [_beta(group) for group in optimizer.param_groups]
    return min(LONGEST, 1 + max(round(MEMORIES * each / (1 - each)) for each in betas))


def _beta(group: dict[str, Any]) -> float:
    """Momentum's decay rate, by the names that torch and others have for it."""
    known = [group[name] for name in ("momentum", "betas", "beta1", "beta") if group.get(name)]
    found = known[0] if known else 0.0
    value = found[0] if isinstance(found, Sequence) else found
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.0
