"""`summary.csv`: the answer of every run of a study to every threshold and rule."""

import csv
import json
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path

from cbs_lightning.files import write_atomically
from cbs_lightning.reporting.escaping import csv_cell
from cbs_lightning.results.result import Result

SUMMARY = "summary.csv"
LEFT_OUT = ("versions", "configuration", "trajectory_digest")


def write_summary(directory: Path, rows: list[Result]) -> Path:
    """Write the rows; text is as `csv_cell` has it, `hyperparameters` are JSON."""
    keys = [field.name for field in fields(Result) if field.name not in LEFT_OUT]
    text = StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        values = asdict(row)
        settings = json.dumps(values["hyperparameters"], sort_keys=True)
        values["hyperparameters"] = settings.replace("\x7f", r"\u007f")  # all that is not printable
        writer.writerow({key: csv_cell(value) for key, value in values.items()})
    path = directory / SUMMARY
    write_atomically(path, text.getvalue().encode())
    return path
