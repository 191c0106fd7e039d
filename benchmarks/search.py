"""The adaptive search beside other ways to find b*: the whole grid, a golden section, chance.

On random noisy quadratics, whose K is exact, and on the runs of a study, replayed: their recorded
losses tell what a run that is abandoned anywhere would have found. No training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Protocol

import numpy as np

from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from cbs_lightning.analysis.summary import usual_request
from cbs_lightning.results.result import Request, Run, Status, answer
from cbs_lightning.results.store import read_study
from cbs_lightning.search.search import Proposal, Search, Trial
from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic

BATCH_SIZES = tuple(2**power for power in range(2, 11))
INSTANCES = 200
ENDED = (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED)
ROOM = (2.0, 20.0)  # a run's budget in gradients, as a multiple of the least SFO
GRADIENTS = Target("gradients of the search / of the grid", 0.5, 1 / 3)
OCTAVE = Target("share within one octave of the grid's b*", 0.9, 0.95, at_least=True)
CLOSE = Target("share within 15 % of the grid's least SFO", 0.9, 0.95, at_least=True)
COLUMNS = [
    "gradients / grid's",
    "90th percentile",
    "runs",
    "rounds",
    "within an octave",
    "within 15 %",
]


class Problem(Protocol):
    @property
    def batch_sizes(self) -> tuple[int, ...]: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        """To the threshold, to the end of the budget, or to the first step beyond `sfo_limit`."""


@dataclass(frozen=True)
class Quadratic:
    """A noisy quadratic of which every run takes K times some noise."""

    model: NoisyQuadratic
    steps: dict[tuple[int, int], int | None]  # by batch size and seed
    budget: float  # gradients
    batch_sizes: tuple[int, ...] = BATCH_SIZES

    @classmethod
    def draw(cls, rng: np.random.Generator, noise: float, seeds: int) -> "Quadratic":
        """With b* anywhere among the batch sizes, on a logarithmic scale."""
        spectrum = np.arange(1.0, rng.integers(20, 1000)) ** -rng.uniform(0.5, 2.0)
        model = NoisyQuadratic(spectrum, 10 ** rng.uniform(-1.5, -0.3))
        threshold = model.loss(0, math.inf) * 10 ** rng.uniform(-2, -1)
        wanted = math.exp(rng.uniform(math.log(BATCH_SIZES[0]), math.log(BATCH_SIZES[-1])))
        louder = wanted / model.critical_batch(threshold)  # K depends on noise/b alone
        model = NoisyQuadratic(spectrum, model.lr, louder * spectrum)
        steps: dict[tuple[int, int], int | None] = {}
        for b in BATCH_SIZES:
            exact = model.whole_steps(b, threshold) if b > model.pole(threshold) else None
            for seed in range(seeds):
                scatter = math.exp(noise * rng.standard_normal())
                steps[b, seed] = max(1, round(exact * scatter)) if exact else None
        least = min(found * b for (b, _), found in steps.items() if found)
        low, high = map(math.log, ROOM)
        return cls(model, steps, least * math.exp(rng.uniform(low, high)))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.steps}))

    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        most_steps = max(1, math.floor(self.budget / batch_size))
        if sfo_limit is not None:
            most_steps = min(most_steps, math.floor(sfo_limit / batch_size) + 1)
        steps = self.steps[batch_size, seed]
        if steps is not None and steps <= most_steps:
            return Trial(batch_size, seed, steps, steps, None)
        loss = self.model.loss(most_steps, batch_size)
        return Trial(batch_size, seed, None, most_steps, loss)


@dataclass(frozen=True, eq=False)
class Replay:
    """The runs of one variant of a study."""

    runs: dict[tuple[int, int], Run]  # by effective batch size and seed
    request: Request

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({batch_size for batch_size, _ in self.runs}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.runs}))

    @property
    def is_grid(self) -> bool:
        """Whether every batch size was run to its end with every seed, and one reached."""
        ended = all(run.result.ended in ENDED for run in self.runs.values())
        full = len(self.runs) == len(self.batch_sizes) * len(self.seeds)
        return ended and full and conclude(grid(self)).batch_size is not None

    def run(self, batch_size: int, seed: int, sfo_limit: float | None) -> Trial:
        run = self.runs[batch_size, seed]
        looked_at = run.trajectory
        if sfo_limit is not None:
            looked_at = looked_at[: math.floor(sfo_limit / batch_size) + 1]
        found = answer(run.result, looked_at, self.request)
        return Trial(batch_size, seed, found.steps, found.steps or len(looked_at), found.loss)


@dataclass(frozen=True)
class Found:
    """What a method says, after how many runs, gradients and rounds of runs at the same time."""

    batch_size: int | None
    gradients: int
    runs: int
    rounds: int


def conclude(trials: Sequence[Trial], rounds: int | None = None) -> Found:
    """The least median SFO where all runs reached; of equal ones the largest batch size."""
    sfo: dict[int, list[float]] = {}
    for trial in trials:
        sfo.setdefault(trial.batch_size, []).append(trial.sfo or math.inf)
    complete = {b: median(found) for b, found in sfo.items() if math.inf not in found}
    best = min(complete, key=lambda b: (complete[b], -b), default=None)
    spent = sum(trial.spent for trial in trials)
    return Found(best, spent, len(trials), len(trials) if rounds is None else rounds)


def grid(problem: Problem) -> list[Trial]:
    return [problem.run(b, s, None) for b in problem.batch_sizes for s in problem.seeds]


def search(problem: Problem, workers: int = 1) -> Found:
    policy = Search(problem.batch_sizes, problem.seeds)
    trials: list[Trial] = []
    rounds = 0
    while proposals := policy.propose(trials, workers):
        limit = policy.sfo_limit(trials)
        trials += [
            problem.run(b, seed, limit if policy.limit_applies(seed) else None)
            for b, seed in ((each.batch_size, each.seed) for each in proposals)
        ]
        rounds += 1
    return conclude(trials, rounds)


def golden_section(problem: Problem) -> Found:
    """Over the places of the batch sizes, all seeds at each; where none reach, the loss decides."""
    trials: dict[int, list[Trial]] = {}

    def rank(place: int) -> tuple[float, float, int]:
        b = problem.batch_sizes[place]
        if b not in trials:
            trials[b] = [problem.run(b, seed, None) for seed in problem.seeds]
        sfo = [trial.sfo for trial in trials[b] if trial.sfo is not None]
        losses = [trial.loss or math.inf for trial in trials[b]]
        missed = len(trials[b]) - len(sfo)
        return missed, median(sfo) if sfo else fmean(losses), -b

    low, high = -1, len(problem.batch_sizes)  # both outside
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 2:
        left = max(low + 1, round(high - ratio * (high - low)))
        right = min(high - 1, max(left + 1, round(low + ratio * (high - low))))
        if rank(left) < rank(right):
            high = right
        else:
            low = left
    rank(low + 1)
    return conclude([trial for found in trials.values() for trial in found])


def random_search(problem: Problem, rng: np.random.Generator, gradients: int) -> Found:
    """Any batch sizes and seeds, for that many gradients."""
    untried = [Proposal(b, s) for b in problem.batch_sizes for s in problem.seeds]
    trials: list[Trial] = []
    while untried and (left := gradients - sum(trial.spent for trial in trials)) > 0:
        chosen = untried.pop(int(rng.integers(len(untried))))
        if left >= chosen.batch_size:
            trials.append(problem.run(chosen.batch_size, chosen.seed, left - chosen.batch_size))
    return conclude(trials)


METHODS = {
    "search": search,
    "search, 2 at a time": lambda problem: search(problem, workers=2),
    "search, 4 at a time": lambda problem: search(problem, workers=4),
    "golden section": golden_section,
}
RANDOM = "random, as many gradients"
DRAWS = 20  # of chance


@dataclass(frozen=True)
class Score:
    """A method on one problem, beside the grid."""

    gradients: float  # of those of the grid
    runs: int
    rounds: int
    within_octave: bool
    within_15_percent: bool


def score(found: Found, whole: Sequence[Trial]) -> Score:
    least = conclude(whole)
    assert least.batch_size is not None
    sfo = {
        b: median(trial.sfo or math.inf for trial in same)
        for b, same in groupby(whole, lambda trial: trial.batch_size)
    }
    b = found.batch_size
    return Score(
        gradients=found.gradients / least.gradients,
        runs=found.runs,
        rounds=found.rounds,
        within_octave=b is not None and abs(math.log2(b / least.batch_size)) <= 1,
        within_15_percent=b is not None and sfo[b] <= 1.15 * sfo[least.batch_size],
    )


def scores(problems: Sequence[Problem]) -> dict[str, list[Score]]:
    """By method."""
    found: dict[str, list[Score]] = {}
    rng = np.random.default_rng(0)
    for problem in problems:
        whole = grid(problem)
        answers = {"grid": [conclude(whole)]}
        answers |= {name: [method(problem)] for name, method in METHODS.items()}
        spent = answers["search"][0].gradients
        answers[RANDOM] = [random_search(problem, rng, spent) for _ in range(DRAWS)]
        for name, each in answers.items():
            found.setdefault(name, []).extend(score(answered, whole) for answered in each)
    return found


def quadratics(seed: int, count: int, noise: float, seeds: int = 1) -> list[Quadratic]:
    rng = np.random.default_rng(seed)
    return [Quadratic.draw(rng, noise, seeds) for _ in range(count)]


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


def run(tell: Callable[[str], None], study: Path | None = None) -> Outcome:
    problems: dict[str, Sequence[Problem]] = {
        "quadratics": quadratics(0, INSTANCES, 0.0),
        "quadratics, 5 % noise": quadratics(1, INSTANCES, 0.05),
        "quadratics, 5 % noise, 3 seeds": quadratics(2, INSTANCES, 0.05, seeds=3),
    }
    if study is not None:
        for variant, replay in replays(study).items():
            if replay.is_grid:
                problems[f"{study.name}: {variant}"] = [replay]
            else:
                tell(f"search: {variant}: not all runs of a grid to their ends, or none reached")
    found = {}
    for name, same in problems.items():
        tell(f"search: {name}")
        found[name] = scores(same)
    numbers = {
        name: {method: summary(same) for method, same in by_method.items()}
        for name, by_method in found.items()
    }
    rows = [
        [name, method, *(f"{value:.2f}" for value in row.values())]
        for name, by_method in numbers.items()
        for method, row in by_method.items()
    ]
    ours = {name: by_method["search"] for name, by_method in found.items()}
    gradients = {name: Spread.of(each.gradients for each in same) for name, same in ours.items()}
    octave = {name: Spread.of([numbers[name]["search"]["within an octave"]]) for name in ours}
    close = {name: Spread.of([numbers[name]["search"]["within 15 %"]]) for name in ours}
    findings = [
        Finding.of(target, spreads)
        for target, spreads in ((GRADIENTS, gradients), (OCTAVE, octave), (CLOSE, close))
    ]
    return Outcome(numbers, [Table("Search", ["", "", *COLUMNS], rows)], findings)


def summary(same: Sequence[Score]) -> dict[str, float]:
    """Medians of the gradients, means of the rest."""
    gradients = [each.gradients for each in same]
    values = (
        median(gradients),
        float(np.quantile(gradients, 0.9)),
        fmean(each.runs for each in same),
        fmean(each.rounds for each in same),
        fmean(each.within_octave for each in same),
        fmean(each.within_15_percent for each in same),
    )
    return dict(zip(COLUMNS, values, strict=True))
