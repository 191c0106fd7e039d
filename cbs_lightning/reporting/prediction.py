"""Shows how good predictions of b* from one run are, for the runs with probes. Never trains."""

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from cbs_lightning.analysis.prediction_table import WITHIN, Case, Score, cases, scores
from cbs_lightning.analysis.study import read
from cbs_lightning.console import count_of, print_lines, visible
from cbs_lightning.errors import output_errors
from cbs_lightning.files import inside, write_atomically
from cbs_lightning.noise.prediction import BEST
from cbs_lightning.results.store import studies

SHOWN = (BEST, "noise_level", "one_step_trial", "one_step_hvp", "sign_descent", "b_simple")
FILES = "prediction"


def write_predictions(directory: Path, thresholds: Sequence[float]) -> list[str]:
    """Write a study's table; return the lines to print, none for a study without probes."""
    study, lines = read(directory)
    if study is None or not study.noise_records:
        return []
    found = cases(study, thresholds or [study.request.threshold])
    table = [*markdown(found), "", *score_lines(scores(found))]
    tables = inside(study.directory, "tables")
    tables.mkdir(exist_ok=True)
    write_atomically(tables / f"{FILES}.md", ("\n".join(table) + "\n").encode())
    write_atomically(tables / f"{FILES}.csv", _csv(found).encode())
    title = f"{study.name}: {count_of(len(found), 'prediction')}"
    return [*lines, title, *table, f"  Written: {tables / FILES}.md, .csv"]


def markdown(found: Iterable[Case]) -> list[str]:
    """A table with a row per case: measured, predicted by each estimator, and the best one's
    factor."""
    head = ["variant", "loss", "run at b", "measured b*", "least K·b", *SHOWN, "factor"]
    lines = [_row(head), _row(["---"] * len(head))]
    for each in found:
        factor = each.factor(BEST)
        lines.append(
            _row(
                [
                    each.variant,
                    f"{each.threshold:g}",
                    str(each.batch_size),
                    _range(each.interval),
                    f"{each.least:g}",
                    *(_number(each.predicted[name]) for name in SHOWN),
                    f"{factor:.1f}" if factor is not None else "-",
                ]
            )
        )
    return lines


def score_lines(found: Iterable[Score]) -> list[str]:
    shares = [f"within {most:g}" for most in WITHIN]
    head = ["estimator", "cases", "none", "median", "worst", *shares, "median to least", "bias"]
    rows = [
        [
            each.estimator,
            str(each.cases),
            str(each.without),
            f"{each.median:.2f}",
            f"{each.worst:.1f}",
            *(f"{share:.0%}" for share in each.within),
            f"{each.median_to_least:.2f}",
            f"{each.bias:.2f}",
        ]
        for each in found
    ]
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(visible(cell).replace('|', '/') for cell in cells)} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _range(interval: tuple[float, float]) -> str:
    low, high = interval
    if low == 0:
        return f"up to {_number(high)}"
    return f"{_number(low)} and more" if math.isinf(high) else f"{_number(low)} to {_number(high)}"


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
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    parser.add_argument("--study", help="only this one")
    parser.add_argument("--loss", default="", help="thresholds, such as 0.5,0.2,0.05")
    given = parser.parse_args()
    try:
        thresholds = [float(each) for each in given.loss.split(",") if each.strip()]
    except ValueError:
        thresholds = [math.nan]
    if not all(0 < each < math.inf for each in thresholds):
        sys.exit(f"error: LOSS={visible(given.loss)}: must be numbers > 0, separated by commas")
    lines = []
    for directory in studies(given.output_dir):
        if given.study in (None, directory.name):
            with output_errors(given.output_dir):
                lines += write_predictions(directory, thresholds)
    print_lines(lines or [f"{given.output_dir}: no run with probes (noise.probes=10 makes some)"])


if __name__ == "__main__":
    main()
