"""What the probes of a run predict of its critical batch size."""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from cbs_lightning.console import count_of
from cbs_lightning.noise.course import Course, NoPredictionError
from cbs_lightning.noise.estimators import ESTIMATORS, OF_GRADIENTS, Estimator, b_simple
from cbs_lightning.noise.record import Estimate, NoiseRecord

BEST = "capped_noise_level"  # of `ESTIMATORS`, by the table of docs/prediction.md
# Root mean square of log(predicted / best batch size run) in the 36 cases of that page that are not
# those of digits on which the estimator was chosen (0.8 there).
MODEL_ERROR = 1.2
DRAWS = 200  # of errors of measurement
Z = 1.645  # of a 90 % interval


def at_threshold(record: NoiseRecord, threshold: float) -> NoiseRecord:
    """The record as the answer to a threshold that is not below its own."""
    answered = record.threshold == threshold or not record.probes
    return record if answered else with_prediction(record, threshold)


def with_prediction(record: NoiseRecord, threshold: float | None = None) -> NoiseRecord:
    """The record with b* by every estimator, at the run's own threshold unless one is given.

    `critical_batch` is the best estimator's; its interval covers errors of measurement and those
    that its model was found to have.
    """
    found = predict(record, threshold)
    best, simple = found[BEST], found[b_simple.__name__]
    return replace(
        record,
        critical_batch=best.critical_batch,
        interval=best.interval,
        reason=best.reason,
        estimator=BEST,
        b_simple=simple.critical_batch,
        b_simple_interval=simple.interval,
        estimators=found,
    )


def predict(record: NoiseRecord, threshold: float | None = None) -> dict[str, Estimate]:
    """b* by every estimator; at another threshold than the run's where its probes go so far.

    Without a value there is a reason.
    """
    try:
        whole = _Run(Course.of(record, threshold))
    except NoPredictionError as error:
        return {name: Estimate(None, reason=str(error)) for name in ESTIMATORS}
    try:
        of_steps: _Run | NoPredictionError = _Run(whole.course.unclipped())
    except NoPredictionError as error:
        of_steps = error
    return {
        name: _estimate(whole if name in OF_GRADIENTS else of_steps, name) for name in ESTIMATORS
    }


class _Run:
    """A course, and the same with other errors of measurement."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @cached_property
    def drawn(self) -> list[Course]:
        return list(self.course.redrawn(DRAWS, np.random.default_rng(0)))


def _estimate(run: _Run | NoPredictionError, name: str) -> Estimate:
    """The interval of `BEST` is of b*; those of the others are of what they measure."""
    try:
        if isinstance(run, NoPredictionError):
            raise run
        value = ESTIMATORS[name](run.course)
    except NoPredictionError as error:
        return Estimate(None, reason=str(error))
    spread = _spread(run, ESTIMATORS[name])
    if name == BEST:
        spread = math.hypot(spread, MODEL_ERROR)
    if not spread:  # nothing that it needs has a known error
        return Estimate(value)
    factor = math.exp(min(Z * spread, 700.0))
    return Estimate(value, (value / factor, value * factor))


def _spread(run: _Run, estimator: Estimator) -> float:
    """Standard deviation of the logarithm, by errors of measurement."""
    logs = []
    for drawn in run.drawn:
        try:
            logs.append(math.log(estimator(drawn)))
        except NoPredictionError:
            continue
    if len(logs) < DRAWS / 2:  # what is measured is as large as its error
        return math.inf
    low, high = np.quantile(logs, [0.16, 0.84])
    return float(high - low) / 2


def prediction_line(record: NoiseRecord) -> str:
    """For the end of a run."""
    if record.critical_batch is None:
        found = f"no prediction of b*: {record.reason}"
    else:
        interval = ""
        if record.interval is not None:
            low, high = record.interval
            interval = f" (90 % interval {low:.3g} to {high:.3g})"
        found = f"predicted b* = {record.critical_batch:.3g}{interval} at this learning rate"
    if record.b_simple is None:
        return found
    return f"{found}; B_simple = {record.b_simple:.3g}"


def cost_line(record: NoiseRecord) -> str:
    """For the end of a run with probes: what they took, and what BatchNorm saw in them."""
    cost, made = record.cost, len(record.probes)
    gradients = cost.in_gradients
    of_run = sum(each.steps for each in record.probes) * record.batch_size
    share = f" ({100 * gradients / of_run:.0f} % of the run's own {of_run:,.0f})" if of_run else ""
    took = f"as long as {gradients:,} gradients{share}"
    if cost.gradients_of_update is not None:  # a guess, whatever the optimizer is
        updates = cost.updates * cost.gradients_of_update
        each = count_of(cost.gradients_of_update, "gradient")
        took = (
            f"{gradients - updates:,} gradients and {count_of(cost.updates, 'update')} of the "
            f"optimizer: with {each} for an update, {gradients:,}{share}"
        )
    line = f"{count_of(made, 'probe')} took {took}: {cost.seconds:.3g} s"
    if (size := record.probes[0].batch_size) is not None:
        line += f", in batches of {size}"
        seen, in_run = (
            min(each, record.micro_batch_size or each) for each in (size, record.batch_size)
        )
        if seen < in_run:
            line += f"; BatchNorm saw {seen} samples at a time, in the run {in_run}"
    return line
