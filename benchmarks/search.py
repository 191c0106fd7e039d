"""The adaptive search beside other ways to find b*: the whole grid, a golden section, chance.

On curves whose K is known, drawn from several families, on published curves, and on the runs of a
study, replayed: their recorded losses tell what a run that is abandoned anywhere would have found.
No training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.search_problems import Problem, draw, published, replays
from cbs_lightning.search.search import Prediction, Proposal, Search, Trial

GRADIENTS = Target("gradients of the search / of the grid", 0.5, 1 / 3)
OCTAVE = Target("share within one octave of the grid's b*", 0.9, 0.95, at_least=True)
CLOSE = Target("share within 15 % of the grid's least SFO", 0.9, 0.95, at_least=True)
NO_DEARER = Target("mean gradients of the search / of the golden section", 1.0, 1.0)
NO_WORSE = Target("share within 15 %, search minus golden section", 0.0, 0.0, at_least=True)
CHEAPER = Target("mean gradients, b* predicted within a factor of 2 / not predicted", 1.0, 2 / 3)
AS_GOOD = Target("share within 15 %, b* predicted minus not", 0.0, 0.0, at_least=True)
COLUMNS = [
    "gradients / grid's",
    "mean",
    "90th percentile",
    "runs",
    "rounds",
    "within an octave",
    "within 15 %",
]
# Family, noise of log K, seeds, number of problems. The constants of the search were chosen on
# other draws of these families.
CELLS = [
    ("quadratics", 0.0, 1, 400),
    ("quadratics", 0.05, 1, 400),
    ("quadratics", 0.05, 3, 150),
    ("flat", 0.1, 1, 400),
    ("flat", 0.1, 3, 150),
    ("two minima", 0.05, 1, 400),
    ("plateau, dip, rise", 0.05, 1, 400),
    ("wide family", 0.03, 1, 400),
    ("wide family", 0.1, 1, 400),
    ("wide family", 0.25, 1, 400),
    ("nested", 0.1, 1, 400),
]
SEED = 61_300  # of the draws

Numbers = Mapping[str, dict[str, dict[str, float]]]  # by problem, method and column


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


def search(problem: Problem, workers: int = 1, predicted: Prediction | None = None) -> Found:
    policy = Search(problem.batch_sizes, problem.seeds, predicted=predicted)
    runs: dict[Proposal, Trial] = {}  # one that was abandoned may go on
    rounds = 0
    while proposals := policy.propose(runs.values(), workers):
        limit = policy.sfo_limit(runs.values())
        for each in proposals:
            bound = limit if policy.limit_applies(each.seed) else None
            runs[each] = problem.run(each.batch_size, each.seed, bound)
        rounds += 1
    return conclude(list(runs.values()), rounds)


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


def confirm(problem: Problem) -> Found:
    """What no search can undercut: b* is known, and only it and its neighbours are run."""
    sizes, policy = problem.batch_sizes, Search(problem.batch_sizes, problem.seeds)
    place = sizes.index(min(problem.exact, key=lambda b: (problem.exact[b], -b)))
    trials: list[Trial] = []
    for b in (sizes[place], *sizes[max(0, place - 1) : place], *sizes[place + 1 : place + 2]):
        trials.append(problem.run(b, problem.seeds[0], policy.sfo_limit(trials)))
    return conclude(trials)


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
    "golden section": golden_section,
    "b* known, only confirmed": confirm,
}
PREDICTED = {f"search, b* predicted within a factor of {factor}": factor for factor in (2, 4)}
RANDOM = "random, as many gradients"
DRAWS = 5  # of chance
FEW = 50  # with fewer problems each is predicted and drawn several times more


@dataclass(frozen=True)
class Score:
    """A method on one problem, beside the grid."""

    gradients: float  # of those of the grid
    runs: int
    rounds: int
    within_octave: bool
    within_15_percent: bool


def predict(problem: Problem, rng: np.random.Generator, factor: float) -> Prediction:
    """Off by a factor whose log is normal, with a standard deviation of log `factor`."""
    truth = min(problem.exact, key=lambda b: (problem.exact[b], -b))
    return Prediction(truth * math.exp(math.log(factor) * rng.standard_normal()), factor)


def score(found: Found, whole: Sequence[Trial], exact: Mapping[int, float] | None = None) -> Score:
    """Beside the grid's medians, or beside the exact K·b where that is known."""
    least = conclude(whole)
    assert least.batch_size is not None
    sfo = exact or {
        b: median(trial.sfo or math.inf for trial in same)
        for b, same in groupby(whole, lambda trial: trial.batch_size)
    }
    best = min(sfo, key=lambda b: (sfo[b], -b))
    b = found.batch_size
    return Score(
        gradients=found.gradients / least.gradients,
        runs=found.runs,
        rounds=found.rounds,
        within_octave=b is not None and abs(math.log2(b / best)) <= 1,
        within_15_percent=b is not None and sfo[b] <= 1.15 * sfo[best],
    )


def scores(problems: Sequence[Problem]) -> dict[str, list[Score]]:
    """By method."""
    found: dict[str, list[Score]] = {}
    rng = np.random.default_rng(0)
    repeated = 1 if len(problems) > FEW else 20
    for problem in problems:
        whole = grid(problem)
        answers = {"grid": [conclude(whole)]}
        answers |= {name: [method(problem)] for name, method in METHODS.items()}
        for name, factor in PREDICTED.items():
            predictions = [predict(problem, rng, factor) for _ in range(repeated)]
            answers[name] = [search(problem, predicted=predicted) for predicted in predictions]
        spent = answers["search"][0].gradients
        answers[RANDOM] = [random_search(problem, rng, spent) for _ in range(repeated * DRAWS)]
        for name, each in answers.items():
            found.setdefault(name, []).extend(
                score(answered, whole, problem.exact) for answered in each
            )
    return found


def run(report: Callable[[str], None], study: Path | None = None) -> Outcome:
    problems: dict[str, Sequence[Problem]] = {
        _label(family, noise, seeds): draw(family, SEED + number, count, noise, seeds)
        for number, (family, noise, seeds, count) in enumerate(CELLS)
    }
    problems["published curves"] = list(published().values())
    if study is not None:
        for variant, replay in replays(study).items():
            if replay.is_grid:
                problems[f"{study.name}: {variant}"] = [replay]
            else:
                report(f"search: {variant}: not all runs of a grid to their ends, or none reached")
    found = {}
    for name, same in problems.items():
        report(f"search: {name}")
        found[name] = scores(same)
    numbers = {
        name: {method: summary(same) for method, same in by_method.items()}
        for name, by_method in found.items()
    }
    findings = [*_against_the_grid(found), *_against_golden(numbers), *_by_prediction(numbers)]
    return Outcome(numbers, [_table(numbers)], findings)


def _table(numbers: Numbers) -> Table:
    """Mean gradients of the grid's, and success, of the methods that matter most."""
    methods = {"search": "search", "golden section": "golden section"}
    methods |= {name: f"predicted, factor {factor}" for name, factor in PREDICTED.items()}
    header = ["", f"grid: {COLUMNS[-1]}"]
    for told in methods.values():
        header += [f"{told}: gradients", COLUMNS[-1]]
    rows = []
    for name, by_method in numbers.items():
        row = [name, f"{by_method['grid'][COLUMNS[-1]]:.1%}"]
        for method in methods:
            row += [f"{by_method[method]['mean']:.2f}", f"{by_method[method][COLUMNS[-1]]:.1%}"]
        rows.append(row)
    return Table("Search: gradients in the mean, of the grid's", header, rows)


def _label(family: str, noise: float, seeds: int) -> str:
    label = f"{family}, {100 * noise:g} % noise" if noise else family
    return f"{label}, {seeds} seeds" if seeds > 1 else label


def _against_the_grid(found: Mapping[str, dict[str, list[Score]]]) -> list[Finding]:
    """On quadratics, where the search is promised to do well, and on a study's runs."""
    ours = {
        name: by_method["search"]
        for name, by_method in found.items()
        if name.startswith("quadratics") or ": " in name
    }
    gradients = {name: Spread.of(each.gradients for each in same) for name, same in ours.items()}
    octave = {n: Spread.of([fmean(s.within_octave for s in same)]) for n, same in ours.items()}
    close = {n: Spread.of([fmean(s.within_15_percent for s in same)]) for n, same in ours.items()}
    targets = ((GRADIENTS, gradients), (OCTAVE, octave), (CLOSE, close))
    return [Finding.of(target, spreads) for target, spreads in targets]


def _against_golden(numbers: Numbers) -> list[Finding]:
    return _beside(numbers, "search", "golden section", NO_DEARER, NO_WORSE)


def _by_prediction(numbers: Numbers) -> list[Finding]:
    return _beside(numbers, next(iter(PREDICTED)), "search", CHEAPER, AS_GOOD)


def _beside(
    numbers: Numbers, ours: str, other: str, cost: Target, success: Target
) -> list[Finding]:
    """The mean gradients of one method divided by another's, and the difference in success."""
    pairs = {name: (each[ours], each[other]) for name, each in numbers.items()}
    close = COLUMNS[-1]
    costs = {n: Spread.of([mine["mean"] / its["mean"]]) for n, (mine, its) in pairs.items()}
    better = {n: Spread.of([mine[close] - its[close]]) for n, (mine, its) in pairs.items()}
    return [Finding.of(cost, costs), Finding.of(success, better)]


def summary(same: Sequence[Score]) -> dict[str, float]:
    """Median, mean and 90th percentile of the gradients, means of the rest."""
    gradients = [each.gradients for each in same]
    values = (
        median(gradients),
        fmean(gradients),
        float(np.quantile(gradients, 0.9)),
        fmean(each.runs for each in same),
        fmean(each.rounds for each in same),
        fmean(each.within_octave for each in same),
        fmean(each.within_15_percent for each in same),
    )
    return dict(zip(COLUMNS, values, strict=True))
