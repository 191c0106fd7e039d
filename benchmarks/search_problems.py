"""What ways to find b* are compared on: curves whose K is known, and the runs of a study."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from benchmarks.curves import (
    Steps,
    dip_curve,
    family_curve,
    least_cost,
    log_uniform,
    nested_curve,
    powers,
)
from cbs_lightning.analysis.summary import usual_request
from cbs_lightning.results.result import Request, Run, Status, answer
from cbs_lightning.results.store import read_study
from cbs_lightning.search.trials import Trial
from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic

BATCH_SIZES = tuple(2**power for power in range(2, 11))
ROOM = (2.0, 20.0)  # a run's budget in gradients, as a multiple of the least SFO
PUBLISHED = Path(__file__).parents[1] / "tests" / "published_curves.json"
CIFAR10_ADAM = {  # K of the paper's study, as measured by this project
    64: 33_626, 128: 17_204, 256: 7_448, 512: 3_136, 1024: 1_421, 2048: 700, 4096: 416, 8192: 364
}  # fmt: skip
ENDED = (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED)

Cell = tuple[int, int]  # batch size, seed


class Problem(Protocol):
    @property
    def batch_sizes(self) -> tuple[int, ...]: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def exact(self) -> dict[int, float]:
        """K·b of every batch size without noise; infinite where the threshold is not reached."""

    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        """To the threshold, to the end of the budget, or to the first step beyond `sfo_limit`."""


@dataclass(frozen=True, eq=False)
class Known:
    """A curve: every run takes its K times some noise."""

    exact: dict[int, float]
    steps: dict[Cell, int | None]
    budget: float  # gradients
    loss: Callable[[int, int], float]  # after so many steps with a batch size

    @classmethod
    def of(
        cls,
        curve: Steps,
        sizes: Sequence[int],
        rng: np.random.Generator,
        noise: float,
        seeds: int,
        loss: Callable[[int, int], float] | None = None,
    ) -> "Known":
        """With a budget of 2 to 20 times the least K·b."""
        needed = {b: curve(b) for b in sizes}
        steps: dict[Cell, int | None] = {}
        for b in sizes:
            for seed in range(seeds):
                scatter = math.exp(noise * rng.standard_normal())
                found = needed[b]
                steps[b, seed] = max(1, round(found * scatter)) if math.isfinite(found) else None
        least = min(found * b for (b, _), found in steps.items() if found)
        exact = {b: needed[b] * b for b in sizes}
        budget = least * log_uniform(rng, *ROOM)
        return cls(exact, steps, budget, loss or partial(_usual_loss, needed))

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(self.exact)

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.steps}))

    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        most_steps, abandoned = max(1, math.floor(self.budget / batch_size)), False
        if (
            sfo_limit is not None
            and (beyond := math.floor(sfo_limit / batch_size) + 1) < most_steps
        ):
            most_steps, abandoned = beyond, True
        steps = self.steps[batch_size, seed]
        if steps is not None and steps <= most_steps:
            return Trial(batch_size, seed, steps, steps, None)
        loss = self.loss(most_steps, batch_size)
        return Trial(batch_size, seed, None, most_steps, loss, abandoned)


def _usual_loss(needed: dict[int, float], steps: int, batch_size: int) -> float:
    """Of a curve that is no model of training: 1 at the threshold; the further from it the higher,
    and where it is never reached the higher the smaller the batch."""
    if math.isfinite(needed[batch_size]):
        return float((needed[batch_size] / steps) ** 0.3)
    return 10.0 + 1 / batch_size


def quadratic(
    rng: np.random.Generator, noise: float, seeds: int, sizes: Sequence[int] = BATCH_SIZES
) -> Known:
    """A noisy quadratic with b* anywhere among the batch sizes, on a logarithmic scale."""
    spectrum = np.arange(1.0, rng.integers(20, 1000)) ** -rng.uniform(0.5, 2.0)
    model = NoisyQuadratic(spectrum, 10 ** rng.uniform(-1.5, -0.3))
    threshold = model.loss(0, math.inf) * 10 ** rng.uniform(-2, -1)
    wanted = log_uniform(rng, sizes[0], sizes[-1])
    louder = wanted / model.critical_batch(threshold)  # K depends on noise/b alone
    model = NoisyQuadratic(spectrum, model.lr, louder * spectrum)

    def steps(b: float) -> float:
        found = model.whole_steps(b, threshold) if b > model.pole(threshold) else None
        return found or math.inf

    return Known.of(steps, sizes, rng, noise, seeds, model.loss)


def flat_curve(rng: np.random.Generator, sizes: Sequence[float]) -> Steps:
    """K·b is a parabola in log b, 10 to 60 % above its least four octaves away from it."""
    middle = math.log2(log_uniform(rng, sizes[0], sizes[-1]))
    bend = math.log(1 + rng.uniform(0.1, 0.6)) / 16
    return lambda b: 1e5 / b * math.exp(bend * (math.log2(b) - middle) ** 2)


def two_dips_curve(rng: np.random.Generator, sizes: Sequence[float]) -> Steps:
    """K·b has two minima, at least three octaves apart, each 20 to 60 % deep."""
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])
    low = rng.uniform(first, last - 3)
    places = np.array([low, rng.uniform(low + 3, last)])
    depths, widths = rng.uniform(0.2, 0.9, 2), rng.uniform(0.6, 1.2, 2)

    def steps(b: float) -> float:
        dips = depths * np.exp(-0.5 * ((math.log2(b) - places) / widths) ** 2)
        return float(1e5 / b * math.exp(-dips.sum()))

    return steps


def drawn(
    make: Callable[[np.random.Generator, list[float]], Steps],
    rng: np.random.Generator,
    noise: float,
    seeds: int,
    fixed: bool = True,
) -> Known:
    """A curve of `make`'s; with batch sizes of its own where they are not fixed. K falls with b,
    and K·b has its minimum inside them, as far as coverage's families are concerned."""
    while True:
        sizes = [float(b) for b in BATCH_SIZES] if fixed else powers(rng)
        curve = make(rng, sizes)
        if not fixed:
            found = least_cost(curve, sizes)
            if found is None or found[0] is None:
                continue
        return Known.of(curve, [int(b) for b in sizes], rng, noise, seeds)


FAMILIES: dict[str, Callable[[np.random.Generator, float, int], Known]] = {
    "quadratics": quadratic,
    "flat": partial(drawn, flat_curve),
    "two minima": partial(drawn, two_dips_curve),
    "wide family": partial(drawn, partial(family_curve, pole=True), fixed=False),
    "plateau, dip, rise": partial(drawn, dip_curve, fixed=False),
    "nested": partial(drawn, nested_curve, fixed=False),
}


def draw(family: str, seed: int, count: int, noise: float, seeds: int = 1) -> list[Known]:
    rng = np.random.default_rng(seed)
    return [FAMILIES[family](rng, noise, seeds) for _ in range(count)]


def quadratics(seed: int, count: int, noise: float, seeds: int = 1) -> list[Known]:
    return draw("quadratics", seed, count, noise, seeds)


def published() -> dict[str, Known]:
    """Curves of steps to a target that others published, and the paper's study with Adam."""
    series = {
        each["name"]: dict(zip(each["batch_sizes"], each["steps"], strict=True))
        for each in json.loads(PUBLISHED.read_text())["series"]
    }
    series["ResNet-20 on CIFAR-10, Adam"] = CIFAR10_ADAM
    return {
        name: Known.of(steps.__getitem__, list(steps), np.random.default_rng(0), 0.0, 1)
        for name, steps in series.items()
    }


@dataclass(frozen=True, eq=False)
class Replay:
    """The runs of one variant of a study."""

    runs: dict[Cell, Run]  # by effective batch size and seed
    request: Request

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({batch_size for batch_size, _ in self.runs}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.runs}))

    @cached_property
    def exact(self) -> dict[int, float]:
        """Medians over the seeds, the nearest to it that is known."""
        return {
            b: median(self.run(b, seed, None).sfo or math.inf for seed in self.seeds)
            for b in self.batch_sizes
        }

    @property
    def is_grid(self) -> bool:
        """Whether every batch size was run to its end with every seed, and one reached."""
        ended = all(run.result.ended in ENDED for run in self.runs.values())
        full = len(self.runs) == len(self.batch_sizes) * len(self.seeds)
        return ended and full and math.isfinite(min(self.exact.values()))

    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        run = self.runs[batch_size, seed]
        looked_at = run.trajectory
        if sfo_limit is not None:
            ahead = answer(run.result, looked_at, self.request).steps_ahead
            looked_at = looked_at[: math.floor(sfo_limit / batch_size) + 1 + ahead]
        found = answer(run.result, looked_at, self.request)
        steps_run = found.steps or max(len(looked_at) - found.steps_ahead, 0)
        abandoned = found.steps is None and len(looked_at) < len(run.trajectory)
        return Trial(batch_size, seed, found.steps, steps_run, found.loss, abandoned)


def replays(study: Path) -> dict[str, Replay]:
    """By variant."""
    runs, _ = read_study(study)
    request = usual_request(runs)
    return {
        variant: Replay(
            {(run.result.effective_batch_size, run.result.seed): run for run in same}, request
        )
        for variant, same in groupby(runs, lambda run: run.result.variant)
    }
