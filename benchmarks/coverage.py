"""How often the answers of `compare` hold: sweeps drawn from curves whose b* is known.

Every sweep is another curve. Those of the wide family (`family_curve`) are what the intervals are
held to; the others have shapes that no formula in the package has, or are easier than they look.
Nothing in the package was chosen on these draws. Published curves, whose b* nobody knows, say how
often a batch size that was left out lies in the prediction band of the others.
"""

import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curves import CURVES, UNSEEN, Steps, least_cost, log_uniform, powers
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from cbs_lightning.console import count_of
from cbs_lightning.fit.comparison import CLAIM, compare
from cbs_lightning.training.resources.threads import cores

SEED, UNSEEN_SEED = 50_000, 190_419
SWEEPS, WITHOUT = 300, 40  # per cell of the wide family, with a minimum and without
OTHERS, FEW = 20, 10  # per cell of the other families, and of those never looked at before
FEW_CELLS = ((0.05, 1), (0.1, 3), (0.2, 1))  # noise and seeds
NOISES, SEEDS = (0.03, 0.1, 0.25), (1, 3)
WITHIN = 0.1
LEVEL = 0.9
BY_EPOCH = "family by the epoch"  # the wide family; K is rounded up to whole epochs
EPOCHS = (5.0, 40.0)  # in which the least K·b is reached there
COVERED = Target("share of 90 % intervals that hold b*", 0.85, 0.85, at_least=True)
NOT_TOO_WIDE = Target("the same: not too often", 0.97, 0.97)
OTHERS_COVERED = Target(
    "the same, noisy quadratics, nested, by the epoch", 0.85, 0.85, at_least=True
)
CLAIMED = Target("share of minima claimed", 0.8, 0.8, at_least=True)
FALSE = Target("share of false claims without one", 0.05, 0.05)
RANGE = Target("share of ranges called 90 % sure that hold", 0.85, 0.9, at_least=True)
PREDICTED = Target("share of left-out runs in the prediction band", 0.8, 0.9, at_least=True)
PUBLISHED = Path(__file__).parents[1] / "tests" / "published_curves.json"
COLUMNS = [
    "claimed",
    "interval covers b*",
    "octaves",
    "open",
    "range sure",
    "sure range holds",
    "band",
    "new run",
]


@dataclass(frozen=True)
class Sweep:
    """Runs drawn about a curve, and the truth."""

    sizes: list[float]
    steps: list[float]
    unreached: list[tuple[float, float]]
    curve: Steps
    critical: float | None  # b*; None where K·b has no minimum inside the batch sizes
    least: float  # K·b within the batch sizes
    rounded_to: list[float]  # K of each run that reached the threshold


def run_sweep(
    rng: np.random.Generator,
    curve: Steps,
    sizes: list[float],
    noise: float,
    seeds: int,
    by_epoch: bool,
) -> Sweep | None:
    """Half of the sweeps have a budget of 1.5 to 10 times the least K·b; the others end at the
    pole alone."""
    found = least_cost(curve, sizes)
    if found is None:
        return None
    critical, least = found
    limited = rng.random() < 0.5
    budget = least * (log_uniform(rng, 1.5, 10.0) if limited else 100.0)
    samples = least / log_uniform(rng, *EPOCHS) if by_epoch else 1.0  # of an epoch
    reached, steps, missed, rounded_to = [], [], [], []
    for b in sizes:
        multiple = math.ceil(samples / b)
        for scatter in np.exp(noise * rng.standard_normal(seeds)):
            exact = curve(b) * float(scatter)
            needed = _rounded(exact, multiple)
            if needed * b <= budget or (not limited and math.isfinite(needed)):
                reached.append(b)
                steps.append(needed)
                rounded_to.append(float(multiple))
            else:
                missed.append((b, budget / b))
    return Sweep(reached, steps, missed, curve, critical, least, rounded_to)


def _rounded(exact: float, multiple: int) -> float:
    """To the nearest step, or up to the end of the epoch."""
    if not math.isfinite(exact):
        return math.inf
    return float(max(1, round(exact)) if multiple == 1 else math.ceil(exact / multiple) * multiple)


def draw(name: str, noise: float, seeds: int, seed: int) -> Sweep:
    """A sweep whose curve falls with b, has a minimum of K·b inside its batch sizes or has none,
    and of which at least two batch sizes reached the threshold."""
    make, minimum = (CURVES | UNSEEN)["family" if name == BY_EPOCH else name]
    first = UNSEEN_SEED if name in UNSEEN else SEED
    rng = np.random.default_rng([first, seed, round(1000 * noise), seeds])
    while True:
        sizes = powers(rng)
        curve = make(rng, sizes)
        sweep = run_sweep(rng, curve, sizes, noise, seeds, name == BY_EPOCH)
        usable = sweep is not None and len(set(sweep.sizes)) > 1
        if sweep is not None and usable and (sweep.critical is not None) == minimum:
            return sweep


@dataclass(frozen=True)
class Reading:
    """What `compare` said of a sweep, held against the truth."""

    claimed: bool
    covered: bool
    octaves: float  # width of the interval; infinite where an end is open
    range_holds: bool | None  # None: it was not called sure
    in_band: float | None  # share of the batch sizes
    in_prediction: float | None


def read(sweep: Sweep, seed: int, noise: float) -> Reading:
    found = compare(sweep.sizes, sweep.steps, sweep.unreached, sweep.rounded_to)
    low, high = found.interval(LEVEL)
    span = found.range(WITHIN, LEVEL)
    sizes = found.data.complete
    holds, in_band, in_prediction = None, None, None
    if span is not None:
        costs = [sweep.curve(b) * b for b in sizes if b in span]
        if span.confidence >= LEVEL:
            holds = max(costs) <= (1 + WITHIN) * sweep.least * (1 + 1e-9)
        truth = np.array([sweep.curve(b) for b in sizes])
        again = truth * np.exp(noise * np.random.default_rng(seed).standard_normal(len(truth)))
        in_band = _share_within(truth, found.band(sizes, LEVEL))
        in_prediction = _share_within(again, found.prediction_band(sizes, LEVEL))
    return Reading(
        found.critical_batch is not None,
        sweep.critical is not None and low <= sweep.critical <= high,
        math.log2(high / low) if low > 0 else math.inf,
        holds,
        in_band,
        in_prediction,
    )


def _share_within(values: np.ndarray, band: tuple[np.ndarray, np.ndarray] | None) -> float | None:
    return None if band is None else float(((band[0] <= values) & (values <= band[1])).mean())


def one(case: tuple[str, float, int, int]) -> Reading:
    name, noise, seeds, seed = case
    return read(draw(name, noise, seeds, seed), seed, noise)


@dataclass(frozen=True)
class Cell:
    """Shares over the sweeps of one kind of curve, noise and number of seeds."""

    sweeps: int
    claimed: float
    covered: float  # of those claimed
    octaves: float  # median width of those claimed
    open_ended: float  # of those claimed
    range_sure: float
    range_holds: float  # of those called sure
    in_band: float
    in_prediction: float

    @classmethod
    def of(cls, readings: list[Reading]) -> "Cell":
        claimed = [one for one in readings if one.claimed]
        return cls(
            len(readings),
            len(claimed) / len(readings),
            _mean(one.covered for one in claimed),
            float(np.median([one.octaves for one in claimed])) if claimed else math.nan,
            _mean(math.isinf(one.octaves) for one in claimed),
            _mean(one.range_holds is not None for one in readings),
            _mean(one.range_holds for one in readings),
            _mean(one.in_band for one in readings),
            _mean(one.in_prediction for one in readings),
        )

    def row(self) -> list[str]:
        shares = (self.range_sure, self.range_holds, self.in_band, self.in_prediction)
        return [
            f"{self.claimed:.2f}",
            f"{self.covered:.2f}",
            f"{self.octaves:.1f}",
            f"{self.open_ended:.2f}",
            *(f"{share:.2f}" for share in shares),
        ]


def _mean(values: Iterable[float | bool | None]) -> float:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def measure(
    names: Iterable[str],
    noises_and_seeds: Iterable[tuple[float, int]],
    sweeps: int,
    report: Callable[[str], None],
) -> dict[str, Cell]:
    """A cell per curve, noise and number of seeds."""
    found = {}
    with ProcessPoolExecutor(cores()) as pool:
        for name, (noise, count) in product(names, noises_and_seeds):
            cases = [(name, noise, count, seed) for seed in range(sweeps)]
            label = f"{name}, {noise:.0%} noise, {count_of(count, 'seed')}"
            found[label] = Cell.of(list(pool.map(one, cases, chunksize=5)))
            report(f"{label}: {found[label].covered:.2f} of {found[label].claimed:.2f}")
    return found


@dataclass(frozen=True)
class LeftOut:
    """Batch sizes of a published curve, each predicted from the others."""

    name: str
    inside: int  # how many of those with a batch size on either side are in the band
    between: int  # how many there are
    ends_inside: int  # the same of the smallest and the largest
    factor: float  # median of the band's upper end over its lower one

    def row(self) -> list[str]:
        inside, ends = f"{self.inside} of {self.between}", f"{self.ends_inside} of 2"
        return [self.name, inside, ends, f"{self.factor:.2f}"]


def leave_out(series: dict[str, Any]) -> LeftOut:
    sizes, steps = np.array(series["batch_sizes"], float), np.array(series["steps"], float)
    inside, factors = [], []
    for place in range(len(sizes)):
        rest = np.arange(len(sizes)) != place
        band = compare(sizes[rest], steps[rest]).prediction_band(sizes[place], LEVEL)
        assert band is not None
        low, high = float(band[0][0]), float(band[1][0])
        inside.append(low <= float(steps[place]) <= high)
        factors.append(high / low)
    ends = int(inside[0]) + int(inside[-1])
    factor = float(np.median(factors))
    return LeftOut(series["name"], sum(inside) - ends, len(sizes) - 2, ends, factor)


def predict_published() -> list[LeftOut]:
    series = json.loads(PUBLISHED.read_text())["series"]
    with ProcessPoolExecutor(cores()) as pool:
        return list(pool.map(leave_out, series))


def _covered(cells: Iterable[Cell]) -> float:
    """Share of the intervals that hold b*; a single cell has too few of them to tell."""
    claims = [(round(cell.claimed * cell.sweeps), cell.covered) for cell in cells]
    return sum(count * share for count, share in claims if count) / sum(n for n, _ in claims)


def run(report: Callable[[str], None]) -> Outcome:
    every, pairs = list(product(NOISES, SEEDS)), list(product((0.05, 0.15), SEEDS))
    family = measure(["family"], every, SWEEPS, report)
    without = measure(["without a pole"], every, WITHOUT, report)
    with_one = [name for name in list(CURVES)[2:] if CURVES[name][1]]
    others = measure(with_one, pairs, OTHERS, report)
    others |= measure(["two plateaus, rise"], pairs, OTHERS // 2, report)
    others |= measure([BY_EPOCH], pairs, OTHERS, report)
    unseen = measure(UNSEEN, FEW_CELLS, FEW, report)
    cells = family | without | others | unseen
    rows = [[label, str(cell.sweeps), *cell.row()] for label, cell in cells.items()]
    known = {
        name: Spread.of([_covered(c for label, c in others.items() if label.startswith(name))])
        for name in ("noisy quadratic", "nested", BY_EPOCH)
    }

    def finding(target: Target, cells: dict[str, Cell], field: str) -> Finding:
        return Finding.of(
            target, {name: Spread.of([getattr(cell, field)]) for name, cell in cells.items()}
        )

    published = predict_published()
    held, all_of_them = sum(one.inside for one in published), sum(one.between for one in published)
    ends = sum(one.ends_inside for one in published)
    return Outcome(
        {label: vars(cell) for label, cell in cells.items()}
        | {one.name: asdict(one) for one in published},
        [
            Table(
                f"Answers that hold, claims from probability {CLAIM:g}",
                ["", "sweeps", *COLUMNS],
                rows,
            ),
            Table(
                "Published curves, each batch size predicted from the others",
                ["", "in the 90 % band", "smallest and largest", "upper over lower end"],
                [one.row() for one in published]
                + [["all", f"{held} of {all_of_them}", f"{ends} of {2 * len(published)}", ""]],
            ),
        ],
        [
            finding(COVERED, family, "covered"),
            finding(NOT_TOO_WIDE, family, "covered"),
            finding(CLAIMED, family, "claimed"),
            finding(RANGE, family, "range_holds"),
            finding(FALSE, without, "claimed"),
            Finding.of(OTHERS_COVERED, known),
            Finding.of(PREDICTED, {"published curves": Spread.of([held / all_of_them])}),
        ],
    )
