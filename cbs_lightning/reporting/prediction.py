"""Shows how good predictions of b* from one run are, for the runs with probes. Never trains."""

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from cbs_lightning.analysis.prediction_table import Case, cases, rate_curves, scores
from cbs_lightning.analysis.study import Study, read
from cbs_lightning.commands import option
from cbs_lightning.console import count_of, print_lines, visible
from cbs_lightning.errors import output_errors
from cbs_lightning.files import inside, write_atomically
from cbs_lightning.reporting.command import check_output_dir, check_study, directory
from cbs_lightning.reporting.prediction_tables import (
    branch_table,
    case_table,
    learning_rate_table,
    ranges_lines,
    rate_table,
    score_table,
    theorem_table,
)
from cbs_lightning.reporting.published import published_files, read_results
from cbs_lightning.results.result import Result
from cbs_lightning.results.store import studies

FILES = "prediction"
EMPTY = 2  # lines of a table without rows


def write_predictions(
    directory: Path, thresholds: Sequence[float], published: Path | None = None
) -> list[str]:
    """Write a study's tables; return the lines that tell them, none for a study without probes.

    In the folder `published` are runs of the same study that were made elsewhere.
    """
    study, lines = read(directory)
    if study is None or not study.noise_records:
        return []
    asked = thresholds or [study.request.threshold]
    elsewhere = _published(published, study.name)
    found = cases(study, asked, elsewhere)
    tables = inside(study.directory, "tables")
    tables.mkdir(exist_ok=True)
    text = _text(study, found, asked)
    write_atomically(tables / f"{FILES}.md", ("\n".join(text) + "\n").encode())
    write_atomically(tables / f"{FILES}.csv", _csv(found).encode())
    title = f"{study.name}: {count_of(len(found), 'prediction')}"
    return [*lines, title, "", *text, f"  Written: {tables / FILES}.md, .csv"]


def _published(folder: Path | None, study: str) -> list[Result]:
    if folder is None:
        return []
    path, _ = published_files(folder, study)
    return read_results(path) if path.exists() else []


def _text(study: Study, found: Sequence[Case], thresholds: Sequence[float]) -> list[str]:
    """All tables that have rows, each below its title."""
    below, above = ([one for one in found if one.overshoots is is_so] for is_so in (False, True))
    runs = study.noise_records.values()
    closed = [one for one in found if not one.is_open]
    parts = {
        "b* predicted and measured": case_table(found),
        "How good each estimator is": score_table(scores(found)),
        "Where the measured range has two ends": score_table(scores(closed)),
        "Where a step of the full gradient lowers the loss": score_table(scores(below)),
        "Where it raises the loss": score_table(scores(above)),
        "b* against the learning rate": learning_rate_table(found),
        "Best learning rate of a single step": rate_table(rate_curves(study, thresholds)),
        "Branches: the local critical batch size": branch_table(runs),
        "Theorem 3.1 with measured constants": theorem_table(runs),
    }
    lines: list[str] = []
    for title, table in parts.items():
        if len(table) > EMPTY:
            lines += [f"## {title}", "", *table, ""]
    return [*ranges_lines(found), "", *lines] if found else lines


def _csv(found: Iterable[Case]) -> str:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = ["variant", "threshold", "batch_size", "seed", "least", "low", "high"]
    for number, each in enumerate(found):
        if not number:
            rows.writerow([*names, *each.predicted])
        known = (each.variant, each.threshold, each.batch_size, each.seed, each.least)
        rows.writerow([*known, *each.interval, *each.predicted.values()])
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=directory, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    parser.add_argument("--loss", default="", help="thresholds, such as 0.5,0.2,0.05")
    parser.add_argument("--published", type=Path, help="a folder with CSV files of studies")
    given = parser.parse_args()
    try:
        thresholds = [float(each) for each in given.loss.split(",")] if given.loss else []
    except ValueError:
        thresholds = [math.nan]
    if not all(0 < each < math.inf for each in thresholds):
        sys.exit(f"error: LOSS={visible(given.loss)}: must be numbers > 0, separated by commas")
    check_output_dir(given.output_dir)
    if given.published is not None and not list(given.published.glob("*.csv")):
        typed = option("published", str(given.published))
        sys.exit(visible(f"error: {typed}: no folder with CSV files of studies"))
    check_study(given.study, given.output_dir)
    lines = []
    for path in studies(given.output_dir):
        if given.study in (None, path.name):
            with output_errors(given.output_dir):
                lines += write_predictions(path, thresholds, given.published)
    print_lines(lines or [f"{given.output_dir}: no run with probes (noise.probes=10 makes some)"])


if __name__ == "__main__":
    main()
