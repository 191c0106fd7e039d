"""How far b* predicted from one run is from the exact one, on noisy quadratics."""

import statistics
from collections.abc import Callable

from benchmarks.noisy_runs import problems, quadratic_record
from benchmarks.outcome import Outcome, Table
from cbs_lightning.noise.course import Course
from cbs_lightning.noise.estimators import ESTIMATORS

TIMES = (1, 4, 1000)  # b*: the batch sizes of the runs with probes
NAMES = ("noise_level", "one_step_trial", "integral_trial")
WITHIN = 2.0


def run(tell: Callable[[str], None]) -> Outcome:
    tell("exact b* of noisy quadratics")
    rows, numbers = [], []
    for times in TIMES:
        cells = []
        for name in NAMES:
            factors = _factors(name, times)
            near = sum(factor <= WITHIN for factor in factors) / len(factors)
            cells.append(f"{statistics.median(factors):.2f}, {max(factors):.2f}, {near:.0%}")
            numbers.append({"estimator": name, "times": times, "factors": factors})
        rows.append([f"{times} b*", *cells])
    title = f"{len(problems())} noisy quadratics: predicted / exact b*: median, worst, within 2"
    return Outcome(numbers, [Table(title, ["run at", *NAMES], rows)], [])


def _factors(name: str, times: int) -> list[float]:
    found = []
    for _, problem, threshold in problems():
        exact = problem.critical_batch(threshold)
        record = quadratic_record(problem, times * exact, threshold)
        value = ESTIMATORS[name](Course.of(record))
        found.append(max(value / exact, exact / value))
    return found
