"""`summary.csv`: what every run of a study says for every threshold and rule."""

import csv
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path

from cbs_lightning.files import write_atomically
from cbs_lightning.results.result import Request, Result, Run, answers
from cbs_lightning.results.trajectory import RuleName

SUMMARY = "summary.csv"
LEFT_OUT = ("versions", "configuration")
LADDER = (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def summary_rows(runs: list[Run]) -> list[Result]:
    """A row per run, threshold and rule: the runs' own thresholds, and the ladder down to the
    lowest rung that any run reached. No status: the run's losses end before an answer."""
    own = {run.result.threshold for run in runs}
    thresholds = sorted(own.union(LADDER), reverse=True)
    window = usual_request(runs).window  # one for all, so that runs can be compared
    rows = [
        row for run in runs for rule in RuleName for row in answers(run, rule, window, thresholds)
    ]
    reached = {row.threshold for row in rows if row.steps is not None}
    lowest = min(reached, default=max(LADDER))
    return [row for row in rows if row.threshold in own or row.threshold >= lowest]


def usual_request(runs: list[Run]) -> Request:
    """The threshold, rule and window that most runs of a study were asked for."""
    return most_asked(run.result for run in runs)


def most_asked(results: Iterable[Result]) -> Request:
    requests = Counter((result.threshold, result.rule, result.window) for result in results)
    return Request(*max(requests, key=lambda request: (requests[request], request)))


def write_summary(directory: Path, rows: list[Result]) -> Path:
    keys = [field.name for field in fields(Result) if field.name not in LEFT_OUT]
    text = StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        values = asdict(row)
        values["hyperparameters"] = json.dumps(values["hyperparameters"], sort_keys=True)
        writer.writerow(values)
    path = directory / SUMMARY
    write_atomically(path, text.getvalue().encode())
    return path
