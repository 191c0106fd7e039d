"""One probe: what is measured at the weights of one moment, and how much of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.clipping import share_left
from cbs_lightning.callbacks.probes.curvature import FEWEST_GROUPS, measure_curvature
from cbs_lightning.callbacks.probes.gradients import GradientSums
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.callbacks.probes.own_steps import measure_own_steps
from cbs_lightning.callbacks.probes.preconditioner import metric_of
from cbs_lightning.noise.record import CLIPPED

# What is measured besides gradients, and the settings that matter only then.
SWITCHES = {
    "curvature": ("trials", "products"),
    "branches": ("branch_steps", "branch_factors", "branch_repeats"),
    "theorem": (),
}
FEWEST_BATCHES = 4  # that the samples of a probe make where nothing else is asked for
SMALLEST_BATCH = 2  # samples: BatchNorm needs more than one


@dataclass(frozen=True)
class ProbeSettings:
    """How often and how much to measure; the defaults are those of conf/config.yaml."""

    probes: int
    samples: int = 2048  # of a probe, over which gradients are taken
    batch_size: int | None = None  # of each of its batches; None: the run's, at most a quarter
    curvature: bool = True  # a and c as well
    trials: int = 4  # pairs of trial steps
    products: int = 3  # Hessian-vector products
    branches: bool = False  # of the run, at several batch sizes
    branch_steps: int = 40
    branch_factors: Sequence[float] = (0.5, 1, 2, 4)  # times the run's batch size
    branch_repeats: int = 2
    theorem: bool = False

    def are_met_by(self, made: Mapping[str, Any]) -> bool:
        """Whether probes with the settings `made` have measured all that these ask for."""
        asked = asdict(self)
        for switch, own in SWITCHES.items():
            if not asked[switch]:
                for name in (switch, *own):
                    del asked[name]
        return all(made.get(name) == _plain(value) for name, value in asked.items())

    @property
    def has_own_steps(self) -> bool:
        return self.curvature and self.trials > 0

    def batches_of(self, run_batch_size: int) -> tuple[int, int]:
        """How many batches, and the samples of each, in a run with this batch size."""
        most = max(SMALLEST_BATCH, self.samples // FEWEST_BATCHES)
        size = self.batch_size or min(run_batch_size, most)
        return max(2, self.samples // size), size


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def measure(
    objective: Objective,
    optimizer: Optimizer,
    batches: int,
    settings: ProbeSettings,
    run_batch_size: int,
    rate_factor: float,
    note: Callable[[str], None],
    look: Callable[[GradientSums], None] | None = None,
) -> dict[str, Any]:
    """The quantities of a `Probe`, from gradients of so many of the objective's batches.

    Args:
        objective: what is differentiated, at the weights that it has.
        optimizer: whose metric is taken, as its state is.
        batches: that gradients are taken of.
        settings: what else to measure.
        run_batch_size: samples per step of the run: the noise that trial steps have.
        rate_factor: what the next step's learning rate is multiplied by.
        note: is told what was left out, and why.
        look: is shown the gradients, for what else there is to measure.
    """
    metric = metric_of(optimizer, objective.parameters, rate_factor)
    if metric is None:
        note(_without_metric(optimizer, settings))
    sums = GradientSums(batches, objective.batch_size, metric.scale if metric else None)
    for number in range(sums.batches):
        sums.add(*objective.gradient(number))
    if look is not None:
        look(sums)
    found = dict(sums.statistics)
    lr = optimizer.param_groups[0].get("lr")
    found["lr"] = float(lr) * rate_factor if lr is not None else None
    found["clipping"] = left = share_left(objective, optimizer, sums, run_batch_size)
    if left is not None and left < CLIPPED:
        note("gradients are clipped: what steps gain, and their noise, is not measured there")
        return found
    if left is not None and left < 1:
        note(f"gradients are clipped by up to {1 - CLIPPED:.0%}, which is not counted")
    if metric is not None:
        found["eta"] = metric.eta
    if not settings.curvature:
        return found
    if sums.groups < FEWEST_GROUPS:
        note(f"a and c are not measured: they need gradients of {FEWEST_GROUPS} batches")
        return found
    if metric is not None:
        found |= measure_curvature(
            objective, sums, metric, run_batch_size, settings.trials, settings.products, note
        )
    if settings.has_own_steps:
        found |= measure_own_steps(
            objective, optimizer, sums, run_batch_size, rate_factor, settings.trials // 2, note
        )
    return found


def _without_metric(optimizer: Optimizer, settings: ProbeSettings) -> str:
    """A line for the user."""
    name = type(optimizer).__name__
    if settings.has_own_steps:
        return f"{name} has no metric: its noise is measured by its own steps, applied and undone"
    return (
        f"{name} has no metric: b* is predicted by its own steps alone, which need "
        "noise.curvature=true and noise.trials above 0"
    )
