"""What every run of a study answers to every threshold and rule: the rows of `summary.csv`."""

from collections import Counter
from collections.abc import Iterable

from cbs_lightning.results.result import Request, Result, Run, answers
from cbs_lightning.results.trajectory import RuleName

LADDER = (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def summary_rows(runs: list[Run], request: Request | None = None) -> list[Result]:
    """A row per run, threshold and rule: the runs' own thresholds and the request's, and the ladder
    down to the lowest rung that any run reached. No status: the run's losses end before an answer.

    All are read with the window of the request, so that runs can be compared.
    """
    asked = request or usual_request(runs)
    own = {asked.threshold, *(run.result.threshold for run in runs)}
    thresholds = sorted(own.union(LADDER), reverse=True)
    rows = [
        row
        for run in runs
        for rule in RuleName
        for row in answers(run, rule, asked.window, thresholds)
    ]
    reached = {row.threshold for row in rows if row.steps is not None}
    lowest = min(reached, default=max(LADDER))
    return [row for row in rows if row.threshold in own or row.threshold >= lowest]


def usual_request(runs: list[Run]) -> Request:
    """The threshold, rule and window that most runs of a study were asked for."""
    return most_common_request(run.result for run in runs)


def most_common_request(results: Iterable[Result]) -> Request:
    requests = Counter((result.threshold, result.rule, result.window) for result in results)
    return Request(*max(requests, key=lambda request: (requests[request], request)))
