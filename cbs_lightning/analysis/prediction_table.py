"""How good predictions are: b* from every estimator, beside b* measured by the whole curve."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.predictions import predictions_of
from cbs_lightning.analysis.study import Study
from cbs_lightning.noise.best_rate import best_rate
from cbs_lightning.noise.estimators import ESTIMATORS
from cbs_lightning.noise.record import Interval
from cbs_lightning.results.result import Result, answers

LEVEL = 0.9  # of the measured range
WITHIN = (2.0, 4.0)  # factors by which a prediction may be off
ROUNDING = 1.0001


@dataclass(frozen=True)
class Case:
    """One run with probes at one threshold, and what the runs of its curve measured."""

    variant: str
    optimizer: str
    lr: float | None
    threshold: float
    batch_size: int  # of the run with probes
    seed: int
    least: float  # the batch size run with the least K·b
    interval: tuple[float, float]  # of b*; an end of 0 or infinity is open
    predicted: dict[str, float | None]  # by estimator
    own_interval: Interval | None = None  # 90 %, of the prediction
    is_widened: bool = False  # the measured interval, to hold `least`
    overshoots: bool | None = None  # a step of the full gradient raises the loss; None: not known

    @property
    def is_open(self) -> bool:
        return self.interval[0] == 0 or math.isinf(self.interval[1])

    def factor(self, estimator: str) -> float | None:
        """By which the prediction lies outside of the measured range; 1 within it."""
        value = self.predicted[estimator]
        low, high = self.interval
        return None if value is None else max(1.0, low / value, value / high)


@dataclass(frozen=True)
class Score:
    """How far an estimator is off over many cases; factors are relative to the measured range."""

    estimator: str
    cases: int
    without: int  # cases in which it predicts nothing
    median: float
    worst: float
    within: tuple[float, ...]  # shares of all cases, by `WITHIN`
    median_to_least: float
    within_of_least: tuple[float, ...]  # the same shares, of factors to the least K·b
    bias: float  # the geometric mean of predicted over the least K·b's batch size
    rms: float  # root mean square of the logarithm of the same


def cases(
    study: Study, thresholds: Sequence[float], published: Iterable[Result] = ()
) -> list[Case]:
    """Every run with probes at every threshold where the curve's runs tell something of b*.

    `published` are answers of runs that were made elsewhere; those of the study's rule count.
    """
    return list(_cases(study, thresholds, published))


def _cases(
    study: Study, thresholds: Sequence[float], published: Iterable[Result]
) -> Iterator[Case]:
    rows = _rows(study, thresholds)
    here = {row.config_hash for row in rows}
    rows += [
        row
        for row in published
        if row.rule == study.request.rule
        and row.threshold in thresholds
        and row.config_hash not in here
    ]
    for curve in curves(rows):
        found = predictions_of(curve, study.noise_records)
        measured = _measured(curve) if found else None
        if measured is None:
            continue
        for each in found:
            record = study.noise_records[each.config_hash]
            yield Case(
                curve.variant, record.optimizer, record.lr, curve.threshold, each.batch_size,
                each.seed, *measured, predicted=each.estimators, own_interval=each.interval,
                is_widened=measured[1] != curve.comparison.interval(LEVEL),
                overshoots=each.overshoots,
            )  # fmt: skip


def _rows(study: Study, thresholds: Sequence[float]) -> list[Result]:
    rule, window = study.request.rule, study.request.window
    return [row for run in study.runs for row in answers(run, rule, window, thresholds)]


def _measured(curve: Curve) -> tuple[float, tuple[float, float]] | None:
    """The batch size with the smallest K·b, and the interval of b*; None if it is open at both
    ends."""
    least, interval = curve.comparison.measured, curve.comparison.interval(LEVEL)
    if least is None or not curve.is_fitted or interval == (0.0, math.inf):
        return None
    low, high = interval
    # The range holds what was measured to be best: the curves smooth it.
    return least.batch_size, (min(low, least.batch_size), max(high, least.batch_size))


def scores(found: Iterable[Case]) -> list[Score]:
    """A score for each estimator that predicts anything, the best first."""
    all_cases = list(found)
    scored = [_score(name, all_cases) for name in ESTIMATORS]
    return sorted((each for each in scored if each), key=lambda one: (-one.within[-1], one.median))


def _score(name: str, found: list[Case]) -> Score | None:
    factors = [factor for each in found if (factor := each.factor(name)) is not None]
    if not factors:
        return None
    offs = [math.log(value / each.least) for each in found if (value := each.predicted[name])]
    to_least = [math.exp(abs(off)) for off in offs]
    return Score(
        estimator=name,
        cases=len(found),
        without=len(found) - len(factors),
        median=median(factors),
        worst=max(factors),
        within=_shares_within(factors, len(found)),
        median_to_least=median(to_least),
        within_of_least=_shares_within(to_least, len(found)),
        bias=math.exp(sum(offs) / len(offs)),
        rms=math.sqrt(sum(off * off for off in offs) / len(offs)),
    )


def _shares_within(factors: Sequence[float], of: int) -> tuple[float, ...]:
    return tuple(sum(factor <= most * ROUNDING for factor in factors) / of for most in WITHIN)


@dataclass(frozen=True)
class RateCurve:
    """The best learning rate of an optimizer against the batch size."""

    optimizer: str
    threshold: float
    name: str  # of the run whose probes tell it, or that it was measured
    rates: dict[int, float | None]  # by batch size


def rate_curves(study: Study, thresholds: Sequence[float]) -> list[RateCurve]:
    """Of every optimizer with probes: the best of the rates run at each batch size, that of the
    run with the fewest steps to the threshold; then what the probes of each run say."""
    records, found = study.noise_records, []
    for threshold in thresholds:
        rows = _rows(study, [threshold])
        rows.sort(key=lambda row: (row.lr or 0.0, row.batch_size, row.seed))
        for name in sorted({each.optimizer for each in records.values()}):
            own = [row for row in rows if row.optimizer == name]
            sizes = sorted({row.batch_size for row in own})
            best = {
                size: _fastest([row for row in own if row.batch_size == size]) for size in sizes
            }
            found.append(RateCurve(name, threshold, "best of those run", best))
            for row in own:
                if (record := records.get(row.config_hash)) is not None:
                    run = f"by probes: lr {row.lr:g}, b = {row.batch_size}, seed {row.seed}"
                    told = {size: best_rate(record, size, threshold) for size in sizes}
                    found.append(RateCurve(name, threshold, run, told))
    return [each for each in found if any(each.rates.values())]


def _fastest(rows: Sequence[Result]) -> float | None:
    """None unless several rates were run, and one of them reached the threshold."""
    reached = [row for row in rows if row.steps is not None]
    if len({row.lr for row in rows}) < 2 or not reached:
        return None
    return min(reached, key=lambda row: row.steps or 0).lr
