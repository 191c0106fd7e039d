"""What a step costs with each optimizer; with a study, its answers and the least seconds of each.

ResNet-20 on digits, one thread. A net computes the gradients of a batch, and every optimizer makes
a step with them on weights of its own: all within one step of the net, so that a machine that
others use slows them all alike. Not part of `make bench` unless it is asked for: PARTS=optimizers.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from benchmarks.alternatives import Problem
from benchmarks.outcome import Outcome, Spread, Table
from benchmarks.switches import set_up_as_runs_do
from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.study import Study, read
from cbs_lightning.config.composition import CONF_DIR, DEFAULT_OPTIMIZER, compose
from cbs_lightning.config.identity import OWN
from cbs_lightning.data import Digits
from cbs_lightning.errors import ConfigError
from cbs_lightning.optim.groups import make_optimizer
from cbs_lightning.optim.packages import require_package
from cbs_lightning.reporting.variants_table import answer_table
from cbs_lightning.training.build import optimizer_factory

REFERENCE = "adam"
BATCH_SIZES = tuple(2**power for power in range(2, 11))
SHOWN = (4, 16, 64, 256, 1024)
STEPS_PER_BLOCK = 10  # as many as SOAP makes with one eigenbasis
BLOCKS = 5
WARM_UP = 3  # steps that do not count; SOAP's first one sets up its bases


def installed() -> list[str]:
    """The optimizers whose packages are there."""
    found = []
    for path in sorted((CONF_DIR / "optimizer").glob("*.yaml")):
        if path.stem in (DEFAULT_OPTIMIZER, OWN):
            continue
        try:
            require_package(compose([f"optimizer={path.stem}"]).optimizer, path.stem)
        except ConfigError:
            continue
        found.append(path.stem)
    return found


class Updates:
    """An optimizer with weights of its own, and gradients from elsewhere."""

    def __init__(self, name: str, net: nn.Module) -> None:
        settings = compose([f"optimizer={name}"]).optimizer
        self._weights = list(net.parameters())
        factory = optimizer_factory(settings)
        self.optimizer: Optimizer = make_optimizer(factory, net)

    def seconds(self, gradients: Iterable[Tensor | None]) -> float:
        """Processor time of one step: the machine may be shared."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        started = time.process_time()
        self.optimizer.step()
        return time.process_time() - started


@dataclass(frozen=True)
class Times:
    """Seconds per step with one batch size, an entry for each block of steps."""

    gradients: list[float]
    updates: dict[str, list[float]]  # by optimizer

    def per_step(self, optimizer: str) -> Spread:
        blocks = zip(self.gradients, self.updates[optimizer], strict=True)
        return Spread.of(gradient + update for gradient, update in blocks)

    def ratio(self, optimizer: str) -> Spread:
        """Of a step's time to that of the reference in the same block."""
        blocks = zip(self.gradients, self.updates[optimizer], self.updates[REFERENCE], strict=True)
        return Spread.of((gradient + own) / (gradient + other) for gradient, own, other in blocks)


def measure(batch_size: int, optimizers: list[str], blocks: int = BLOCKS) -> Times:
    problem = Problem(Digits.load(Path()).train, "resnet20", batch_size, REFERENCE)
    net, *others = (
        problem.net().to(memory_format=torch.channels_last) for _ in range(len(optimizers) + 1)
    )
    own = {name: Updates(name, other) for name, other in zip(optimizers, others, strict=True)}
    images = problem.floats()[:batch_size].contiguous(memory_format=torch.channels_last)
    labels = problem.images.labels[:batch_size]

    def step() -> tuple[float, dict[str, float]]:
        started = time.process_time()
        net.zero_grad()
        cross_entropy(net(images), labels).backward()
        seconds = time.process_time() - started
        gradients = [weight.grad for weight in net.parameters()]
        return seconds, {name: updates.seconds(gradients) for name, updates in own.items()}

    for _ in range(WARM_UP):
        step()
    found = Times([], {name: [] for name in optimizers})
    for _ in range(blocks):
        steps = [step() for _ in range(STEPS_PER_BLOCK)]
        found.gradients.append(sum(gradient for gradient, _ in steps) / STEPS_PER_BLOCK)
        for name, times in found.updates.items():
            times.append(sum(updates[name] for _, updates in steps) / STEPS_PER_BLOCK)
    return found


@dataclass(frozen=True)
class Least:
    """The batch size at which a curve takes the least time, by K times the time of a step."""

    batch_size: int
    seconds: float
    fewest: float  # over the seeds, at that batch size
    most: float

    def relative(self, other: "Least") -> str:
        own = f"{self.seconds / other.seconds:.2f}"
        if self.fewest == self.most:
            return own
        return f"{own} ({self.fewest / other.seconds:.2f} to {self.most / other.seconds:.2f})"


def least_seconds(curve: Curve, times: dict[int, Times]) -> Least | None:
    """None where no batch size that was timed reached the threshold with all its seeds."""
    found = []
    for point in curve.points:
        if not point.all_reached or point.batch_size not in times:
            continue
        per_step = times[point.batch_size].per_step(curve.optimizer).median
        steps = [run.steps or math.inf for run in point.reached]
        seconds = [per_step * each for each in (median(steps), min(steps), max(steps))]
        found.append(Least(point.batch_size, *seconds))
    return min(found, key=lambda least: least.seconds, default=None)


def run(report: Callable[[str], None], study: Path | None = None) -> Outcome:
    set_up_as_runs_do()
    optimizers = installed()
    times = {}
    for batch_size in BATCH_SIZES:
        report(f"optimizers, b={batch_size}")
        times[batch_size] = measure(batch_size, optimizers)
    numbers: dict[str, Any] = {
        "seconds_per_step": {
            size: {name: asdict(own.per_step(name)) for name in optimizers}
            for size, own in times.items()
        },
        "ratios": {
            size: {name: asdict(own.ratio(name)) for name in optimizers}
            for size, own in times.items()
        },
    }
    tables = [_step_table(optimizers, times)]
    if study is not None:
        found, _ = read(study)
        least = _least_seconds(found.curves, times) if found else {}
        numbers["least_seconds"] = {name: asdict(own) for name, own in least.items()}
        tables += [_answers(found, least)] if found else []
    return Outcome(numbers, tables)


def _step_table(optimizers: list[str], times: dict[int, Times]) -> Table:
    milliseconds = [f"{1000 * times[b].per_step(REFERENCE).median:.3g} ms" for b in SHOWN]
    rows = [[name, *(str(times[b].ratio(name)) for b in SHOWN)] for name in optimizers]
    title = f"Time per step over that of {REFERENCE}: ResNet-20, digits, 1 thread"
    return Table(
        title, ["", *(f"b={b}" for b in SHOWN)], [[f"{REFERENCE} itself", *milliseconds], *rows]
    )


def _least_seconds(curves: list[Curve], times: dict[int, Times]) -> dict[str, Least]:
    """By variant, of the optimizers that were timed."""
    timed = times[BATCH_SIZES[0]].updates
    found = {c.variant: least_seconds(c, times) for c in curves if c.optimizer in timed}
    return {variant: least for variant, least in found.items() if least is not None}


def _answers(study: Study, found: dict[str, Least]) -> Table:
    """The study's own table of answers, with the least seconds."""
    columns, rows = answer_table(study)
    own = [c.variant for c in study.curves if c.optimizer == REFERENCE and c.variant in found]
    others = own or found  # what stands for 1
    reference = min((found[name] for name in others), key=lambda least: least.seconds, default=None)
    for variant, row in rows.items():
        least = found.get(variant)
        known = least is not None and reference is not None
        row += [least.relative(reference), str(least.batch_size)] if known else ["-", "-"]
    seconds = f"least seconds / {REFERENCE if own else 'the least'}"
    title = f"{study.name}: seconds are K times the processor time of a step"
    return Table(title, [*columns, seconds, "at b"], list(rows.values()))
