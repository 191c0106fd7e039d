"""Tables and sentences of the page about the paper's studies, in Markdown."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.reporting.escaping import markdown
from cbs_lightning.reporting.paper.cells import YOURS, PaperCell
from cbs_lightning.reporting.paper.study import PublishedStudy

NAMES = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam"}
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
NOT_YET = "not measured yet"


def name_of(variant: str) -> str:
    base = variant.removesuffix(YOURS)
    return NAMES.get(base, base) + variant[len(base) :]


def power(size: float) -> str:
    """A batch size as the paper writes it."""
    exponent = math.log2(size)
    whole = str(round(exponent)).translate(SUPERSCRIPTS)
    return f"2{whole}" if exponent.is_integer() else f"{size:,g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A table whose first `left` columns are aligned left, the others right."""
    marks = ["---" if place < left else "---:" for place in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, marks, *rows)]


def number(value: float | None, form: str = ",.0f", scale: float = 1) -> str:
    return "" if value is None else format(value * scale, form)


def curves_by_variant(study: PublishedStudy) -> dict[str, Curve]:
    return {curve.variant: curve for curve in study.curves}


def measured_cells(study: PublishedStudy) -> dict[str, dict[int, BatchSizePoint]]:
    """The measured cells of the paper's tables, by optimizer and batch size."""
    curves = curves_by_variant(study)
    return {
        optimizer: {
            point.batch_size: point
            for point in (curves[optimizer].points if optimizer in curves else ())
            if (point.reached or point.missed)
            and point.batch_size in {cell.batch_size for cell in cells}
        }
        for optimizer, cells in study.paper.cells.items()
    }


def progress(study: PublishedStudy) -> list[str]:
    """How many of the paper's cells are measured, and which are not."""
    found = measured_cells(study)
    cells = study.paper.cells
    total, done = sum(map(len, cells.values())), sum(map(len, found.values()))
    verb = "is" if done == 1 else "are"
    lines = [f"**{study.paper.title}**: {done} of {total} cells {verb} measured.", ""]
    for optimizer, own in cells.items():
        missing = [power(c.batch_size) for c in own if c.batch_size not in found[optimizer]]
        what = f"{len(own) - len(missing)} of {len(own)}."
        if len(missing) == len(own):
            what = f"none of {len(own)}."
        elif missing:
            what += f" Still missing: b = {', '.join(missing)}."
        lines.append(f"- {name_of(optimizer)}: {what}")
    return lines


def least(study: PublishedStudy, optimizer: str) -> str:
    """A sentence on where K·b of one optimizer is smallest, beside the paper's."""
    name, curve = name_of(optimizer), curves_by_variant(study).get(optimizer)
    theirs = study.paper.critical.get(optimizer)
    if curve is None or not measured_cells(study)[optimizer]:
        return f"{name} is {NOT_YET}."
    best, sizes = curve.best, [point.batch_size for point in curve.points]
    if best is None or best.sfo is None:
        return f"{name} did not reach the threshold at b = {', '.join(map(power, sizes))}."
    cost = f"K·b = {best.sfo:,.0f}"
    if len(sizes) == 1:
        return f"{name} is measured only at b = {power(best.batch_size)} so far ({cost})."
    reached = [point.batch_size for point in curve.points if point.all_reached]
    if len(reached) == 1:
        missed = ", ".join(power(size) for size in sizes if size not in reached)
        only = f"{name} has reached the threshold only at b = {power(best.batch_size)} so far"
        return f"{only} ({cost}), and did not at b = {missed}."
    text = f"{name}'s K·b is smallest at b = {power(best.batch_size)} ({cost})"
    complete = len(measured_cells(study)[optimizer]) == len(study.paper.cells[optimizer])
    open_ended = curve.best_at_edge and not complete
    if open_ended:
        text += ", at the edge of the batch sizes measured so far"
    if theirs == best.batch_size and not open_ended:
        return f"{text}, as in the paper."
    return f"{text}; the paper reports {power(theirs)}." if theirs is not None else f"{text}."


def steps_in_words(study: PublishedStudy) -> str:
    parts = []
    for optimizer in study.paper.cells:
        curve = curves_by_variant(study).get(optimizer)
        reached = [point for point in curve.points if point.all_reached] if curve else []
        if len(reached) > 1:
            first, last = reached[0], reached[-1]
            parts.append(
                f"{name_of(optimizer)} needs {first.steps:,.0f} steps at b = "
                f"{power(first.batch_size)} and {last.steps:,.0f} at b = {power(last.batch_size)}."
            )
        if curve and curve.unreached:
            sizes = ", ".join(power(point.batch_size) for point in curve.unreached)
            parts.append(f"{name_of(optimizer)} does not reach the threshold at b = {sizes}.")
    return " ".join(parts) or f"{NOT_YET.capitalize()}."


def sfo_in_words(study: PublishedStudy) -> str:
    return " ".join(least(study, optimizer) for optimizer in study.paper.cells)


def captions(study: PublishedStudy) -> dict[int, str]:
    """A caption for each figure of the study."""
    steps, sfo = study.paper.figures
    asked = f"to a training loss of {study.paper.threshold:g}, {study.paper.title}"
    return {
        steps: f"**Figure {steps}.** Steps K {asked}. {steps_in_words(study)}",
        sfo: f"**Figure {sfo}.** SFO complexity K·b {asked}. {sfo_in_words(study)}",
    }


def cell_tables(study: PublishedStudy) -> list[str]:
    """Every cell of the paper's tables beside what was measured."""
    lines: list[str] = []
    curves = curves_by_variant(study)
    for variant in dict.fromkeys([*study.paper.cells, *curves]):
        optimizer = variant.removesuffix(YOURS)
        cells = {cell.batch_size: cell for cell in study.paper.cells.get(optimizer, [])}
        points = {p.batch_size: p for p in (curves[variant].points if variant in curves else ())}
        sizes = points.keys() if variant not in study.paper.cells else cells.keys() | points.keys()
        rows = [_cell_row(size, points.get(size), cells.get(size)) for size in sorted(sizes)]
        title = study.paper.tables.get(optimizer, "")
        lines += [f"**{markdown(name_of(variant))}** (the paper's {title})", ""]
        header = ["b", "here", "K", "K·b", "accuracy %", "test accuracy %", "seconds", "seeds"]
        theirs = ["paper", "paper: accuracy %", "paper: seconds"]
        lines += [*table([*header, *theirs], rows), ""]
    return lines[:-1]


def _cell_row(size: int, point: BatchSizePoint | None, cell: PaperCell | None) -> list[str]:
    theirs = ["", "", ""]
    if cell is not None:
        reached = "reached" if cell.reached else "not reached"
        theirs = [reached, number(cell.accuracy, ".2f", 100), number(cell.seconds, ",.1f")]
    if point is None:
        return [power(size), NOT_YET, *[""] * 6, *theirs]
    runs = point.reached or point.runs
    status = " / ".join(sorted({str(run.status) for run in point.runs}))
    if point.abandoned and not point.reached:
        bound = min(run.steps_answered * run.effective_batch_size for run in point.abandoned)
        status += f", K·b > {bound:,}"
    tested = [run.test_accuracy for run in point.reached if run.steps == run.steps_run]
    return [
        power(size),
        status,
        number(point.steps),
        number(point.sfo),
        number(_median(run.accuracy for run in runs), ".2f", 100),
        number(_median(tested), ".2f", 100),
        number(_median(run.seconds for run in runs)),
        str(len(point.runs)),
        *theirs,
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
