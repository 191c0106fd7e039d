"""The paper's tables, time and accuracy per batch size, as CSV, Markdown and LaTeX."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.files import write_atomically
from cbs_lightning.reporting.escaping import csv_cell, latex, markdown
from cbs_lightning.reporting.paper.cells import YOURS, PaperCell, paper_cells
from cbs_lightning.results.result import Result

NAME = "time_and_accuracy"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """One batch size of one variant: medians over seeds, and the paper's cell if it has one."""

    variant: str
    batch_size: int
    status: str
    steps: float | None = None
    sfo: float | None = None
    accuracy: float | None = None  # a fraction, of the training data
    seconds: float | None = None
    seeds: int = 0
    paper: PaperCell | None = None


def table_rows(study: str, curves: list[Curve]) -> list[Row]:
    """The rows of the curves, and for a study of the paper also its cells that were not measured.

    A user's own runs beside published ones have the paper's cells beside them, too.
    """
    paper = paper_cells(study)
    measured = {curve.variant: curve for curve in curves}
    rows = []
    for variant in dict.fromkeys([*paper, *measured]):
        cells = {cell.batch_size: cell for cell in paper.get(variant.removesuffix(YOURS), [])}
        curve = measured.get(variant)
        points = {point.batch_size: point for point in curve.points} if curve else {}
        if variant.endswith(YOURS):
            cells = {size: cell for size, cell in cells.items() if size in points}
        for batch_size in sorted(cells.keys() | points.keys()):
            cell = cells.get(batch_size)
            point = points.get(batch_size)
            if point is None:
                rows.append(Row(variant, batch_size, NOT_MEASURED, paper=cell))
            else:
                rows.append(_measured_row(variant, point, cell))
    return rows


def _measured_row(variant: str, point: BatchSizePoint, cell: PaperCell | None) -> Row:
    shown = point.reached or point.runs
    statuses = sorted({str(run.status) for run in point.runs})
    return Row(
        variant,
        point.batch_size,
        " / ".join(statuses),
        point.steps,
        point.sfo,
        _median(shown, lambda run: run.accuracy),
        _median(shown, lambda run: run.seconds),
        len(point.runs),
        cell,
    )


def _median(runs: tuple[Result, ...], value: Callable[[Result], float | None]) -> float | None:
    return (
        median(values) if (values := [v for run in runs if (v := value(run)) is not None]) else None
    )


def write_tables(directory: Path, study: str, curves: list[Curve], name: str = NAME) -> list[Path]:
    """Write the tables to a directory that `inside` returned, which is created if necessary."""
    rows = table_rows(study, curves)
    directory.mkdir(parents=True, exist_ok=True)
    forms = {"csv": csv_table(rows), "md": markdown_tables(rows), "tex": latex_tables(rows)}
    paths = []
    for suffix, text in forms.items():
        paths.append(directory / f"{name}.{suffix}")
        write_atomically(paths[-1], text.encode())
    return paths


def csv_table(rows: list[Row]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["variant", "batch_size", "status", "steps", "sfo", "accuracy", "seconds", "seeds"]
    writer.writerow([*header, "paper_reached", "paper_accuracy", "paper_seconds"])
    for row in rows:
        cell = row.paper
        writer.writerow(
            [
                *(csv_cell(getattr(row, name)) for name in header),
                *((int(cell.reached), cell.accuracy, cell.seconds) if cell else ("", "", "")),
            ]
        )
    return text.getvalue()


def markdown_tables(rows: list[Row]) -> str:
    parts = []
    for variant, header, cells in _tables_of_text(rows):
        lines = [f"### {markdown(variant)}", "", _line(header), _line(["---:"] * len(header))]
        parts.append("\n".join(lines + [_line(cell) for cell in cells]) + "\n")
    return "\n".join(parts)


def latex_tables(rows: list[Row]) -> str:
    parts = []
    for variant, header, cells in _tables_of_text(rows):
        lines = [
            rf"\begin{{table}}\caption{{{latex(variant)}}}\centering",
            rf"\begin{{tabular}}{{{'r' * len(header)}}}",
            r"\hline",
            " & ".join(map(_latex_header, header)) + r" \\",
            r"\hline",
            *(" & ".join(map(latex, cell)) + r" \\" for cell in cells),
            r"\hline",
            r"\end{tabular}\end{table}",
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _tables_of_text(rows: list[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Per variant: its name, the header and the cells, as text."""
    tables = []
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        header = ["b", "status", "steps K", "SFO K·b", "accuracy %", "time s"]
        if any(row.paper for row in own):
            header += ["paper: accuracy %", "paper: time s"]
        cells = [_cells(row)[: len(header)] for row in own]
        tables.append((variant, header, cells))
    return tables


def _cells(row: Row) -> list[str]:
    cell = row.paper or PaperCell(row.batch_size, reached=True, seconds=None, accuracy=None)
    return [
        str(row.batch_size),
        row.status,
        _number(row.steps, ",.0f"),
        _number(row.sfo, ",.0f"),
        _number(row.accuracy, ".2f", 100),
        _number(row.seconds, ",.1f"),
        _number(cell.accuracy, ".2f", 100) if cell.reached else "not reached",
        _number(cell.seconds, ",.1f"),
    ]


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "-" if value is None else format(value * scale, form)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_header(text: str) -> str:
    return re.sub("K(·b)?", lambda found: "$Kb$" if found[1] else "$K$", latex(text))
