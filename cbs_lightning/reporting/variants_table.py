"""A study's variants beside each other: the answer of each, and K·b by batch size, in Markdown."""

from pathlib import Path

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.analysis.names import shared_settings, short_names
from cbs_lightning.analysis.recommendation import (
    LEVEL,
    Recommendation,
    percent,
    size_in_words,
    span_in_words,
)
from cbs_lightning.analysis.study import Study
from cbs_lightning.files import write_atomically
from cbs_lightning.reporting.colors import COLORS
from cbs_lightning.reporting.escaping import markdown

NAME = "variants.md"
UNKNOWN = "-"
Texts = list[list[str]]


def answer_table(study: Study) -> tuple[list[str], dict[str, list[str]]]:
    """The columns, and by variant the cells: b*, the range and the least K·b."""
    fitted, within = f"fitted b* ({percent(LEVEL)})", f"within {percent(study.question.within)}"
    columns = ["", "lr", "least at b", fitted, within, "least K·b"]
    names = short_names(study.recommended_curves)
    found = zip(study.recommended_curves, study.recommendations, strict=True)
    rows = {
        curve.variant: [names[curve.variant], *_answer_cells(curve, answer)]
        for curve, answer in sorted(found, key=lambda pair: _rank(pair[0]))
    }
    return columns, rows


def write_variants_table(directory: Path, study: Study) -> Path:
    """Write both tables to a directory that is there."""
    columns, rows = answer_table(study)
    parts = [markdown_table(columns, list(rows.values())), markdown_table(*_sfo_table(study))]
    if shared := shared_settings(study.curves):
        parts.insert(0, f"{markdown(shared)}\n")
    write_atomically(directory / NAME, "\n".join(parts).encode())
    return directory / NAME


def markdown_table(columns: list[str], rows: Texts) -> str:
    """Names at the left, numbers at the right."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    cells = [columns, rule, *([markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _rank(curve: Curve) -> tuple[int, str]:
    """Families together, as in the figures."""
    known = list(COLORS)
    place = known.index(curve.optimizer) if curve.optimizer in known else len(known)
    return place, curve.variant


def _answer_cells(curve: Curve, answer: Recommendation) -> list[str]:
    known = {run.lr for point in curve.points for run in point.runs}
    rates = sorted(rate for rate in known if rate is not None)
    best, cheap = curve.best, answer.range
    critical = UNKNOWN if answer.critical_batch is None else size_in_words(answer.critical_batch)
    if len(curve.points) > 1:
        critical += f" ({span_in_words(answer.interval)})"
    span = _span([cheap.low, cheap.high]) if cheap else UNKNOWN
    return [
        _span(rates, "g" if len(rates) == 1 else ".3g") if rates else UNKNOWN,
        str(best.batch_size) if best else UNKNOWN,
        critical,
        span if cheap is None or cheap.is_sure else f"{span} ?",
        _sfo(best) if best else UNKNOWN,
    ]


def _sfo_table(study: Study) -> tuple[list[str], Texts]:
    """Median K·b with the range of seeds: a row per variant, a column per batch size."""
    curves = sorted(study.curves, key=_rank)
    sizes = sorted({point.batch_size for curve in curves for point in curve.points})
    names = short_names(curves)
    rows = []
    for curve in curves:
        points = {point.batch_size: point for point in curve.points}
        cells = [_sfo(points[size]) if size in points else "" for size in sizes]
        rows.append([names[curve.variant], *cells])
    return ["K·b", *(f"b = {size:,}" for size in sizes)], rows


def _sfo(point: BatchSizePoint) -> str:
    if not point.all_reached:
        known = len(point.reached) + len(point.missed)
        return f"{len(point.reached)} of {known} reached" if known else UNKNOWN
    seeds = sorted({run.sfo or 0 for run in point.reached})
    median = f"{point.sfo:,.0f}"
    return median if len(seeds) == 1 else f"{median} ({_span(seeds)})"


def _span(values: list[float] | list[int], form: str = ",") -> str:
    """Of sorted values."""
    first, last = format(values[0], form), format(values[-1], form)
    return first if first == last else f"{first} to {last}"
