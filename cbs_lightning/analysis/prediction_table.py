"""How good predictions are: b* from every estimator, beside b* measured by the whole curve."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.predictions import predictions_of
from cbs_lightning.analysis.study import Study
from cbs_lightning.noise.estimators import ESTIMATORS
from cbs_lightning.results.result import answers

LEVEL = 0.9  # of the measured range
WITHIN = (2.0, 4.0)  # factors by which a prediction may be off
ROUNDING = 1.0001


@dataclass(frozen=True)
class Case:
    """One run with probes at one threshold, and what the runs of its curve measured."""

    variant: str
    threshold: float
    batch_size: int  # of the run with probes
    seed: int
    least: float  # the batch size run with the least K·b
    interval: tuple[float, float]  # of b*; an end of 0 or infinity is open
    predicted: dict[str, float | None]  # by estimator

    def factor(self, estimator: str) -> float | None:
        """By which the prediction lies outside of the measured range; 1 within it."""
        value = self.predicted[estimator]
        low, high = self.interval
        return None if value is None else max(1.0, low / value, value / high)

    def factor_to_least(self, estimator: str) -> float | None:
        """By which it is off the batch size run with the least K·b, whichever way."""
        value = self.predicted[estimator]
        return None if value is None else max(self.least / value, value / self.least)


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
    bias: float  # the geometric mean of predicted over the least K·b's batch size


def cases(study: Study, thresholds: Sequence[float]) -> list[Case]:
    """Every run with probes, at every threshold where the curve's runs say something about b*."""
    return list(_cases(study, thresholds))


def _cases(study: Study, thresholds: Sequence[float]) -> Iterator[Case]:
    request = study.request
    rows = [
        row for run in study.runs for row in answers(run, request.rule, request.window, thresholds)
    ]
    for curve in curves(rows):
        found = predictions_of(curve, study.noise_records)
        measured = _measured(curve) if found else None
        if measured is None:
            continue
        for each in found:
            yield Case(
                curve.variant, curve.threshold, each.batch_size, each.seed, *measured,
                predicted=each.estimators,
            )  # fmt: skip


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
    to_least = [each.factor_to_least(name) or math.inf for each in found if each.predicted[name]]
    logs = [math.log(each.predicted[name] / each.least) for each in found if each.predicted[name]]  # type: ignore[operator]
    return Score(
        estimator=name,
        cases=len(found),
        without=len(found) - len(factors),
        median=median(factors),
        worst=max(factors),
        within=tuple(
            sum(factor <= most * ROUNDING for factor in factors) / len(found) for most in WITHIN
        ),
        median_to_least=median(to_least),
        bias=math.exp(sum(logs) / len(logs)),
    )
