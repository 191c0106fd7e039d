"""The report: one file that contains everything and needs no network."""

import html
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

from cbs_lightning.analysis.conditions import describe_seconds
from cbs_lightning.analysis.recommendation import (
    Recommendation,
    percent,
    size_in_words,
    span_in_words,
)
from cbs_lightning.analysis.study import USUAL, Question, Study, read
from cbs_lightning.console import count_of, duration
from cbs_lightning.files import remove_scratch, write_atomically
from cbs_lightning.noise.branches import schedule_line
from cbs_lightning.noise.record import Probe
from cbs_lightning.reporting.escaping import unbroken
from cbs_lightning.reporting.report.content import content
from cbs_lightning.results.locks import held

REPORT = "report.html"
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = ("state.js", "plots.js", "tables.js", "page.js")
MOST_UNFOLDED = 4  # answers, as in page.js


def write_report(directory: Path, question: Question = USUAL) -> list[str]:
    """Write a study's report; return the lines to print."""
    study, lines = read(directory, question)
    return lines if study is None else [*lines, f"{study.name}: {write_page(study)}"]


def write_page(study: Study) -> Path:
    path = study.output / REPORT
    content_now = page(study).encode()
    with held(study.directory):
        study.output.mkdir(exist_ok=True)
        remove_scratch(study.output)
        write_atomically(path, content_now)
    return path


def page(study: Study) -> str:
    values = json.dumps(content(study), separators=(",", ":"), allow_nan=False)
    unanswered = _to_fold(study.recommendations)
    answered = [found for found in study.recommendations if found not in unanswered]
    return Template(_part("page.html")).substitute(
        title=_text(f"{study.name}: which batch size?"),
        study=_text(study.name),
        asked=_text(_asked(study)),
        seconds=_text(describe_seconds(study.recommended_curves)),
        within=_text(percent(study.question.within)),
        answers=_answers(answered),
        unanswered=_answers(unanswered),
        unanswered_summary=_text(_unanswered([found.variant for found in unanswered])),
        no_unanswered="" if unanswered else " hidden",
        predictions="\n".join(_prediction_rows(study)),
        branches="\n".join(_branch_items(study)),
        no_predictions="" if any(one.predictions for one in answered + unanswered) else " hidden",
        style=_part("page.css"),
        libraries="\n".join(_part(name) for name in LIBRARIES),
        script="\n".join(_part(name) for name in SCRIPTS),
        content=values.replace("<", "\\u003c"),  # else it could end, or hide the end of, a script
    )


def _to_fold(recommendations: list[Recommendation]) -> list[Recommendation]:
    """Variants without an answer, and those of one batch size each if there are many of them."""
    reached = [found for found in recommendations if found.least_sfo is not None]
    single = [found for found in reached if len(found.batch_sizes) == 1]
    many = single if len(single) > MOST_UNFOLDED else []
    return [found for found in recommendations if found.least_sfo is None or found in many]


def _answers(recommendations: list[Recommendation]) -> str:
    """The answers as list items, written like the page's script does, for readers without one."""
    items = []
    for found in recommendations:
        heading = f"<strong>{_text(found.headline())}</strong>"
        more = "".join(f"<li>{_text(line)}</li>" for line in found.details())
        more = f"<ul>{more}</ul>" if more else ""
        if len(recommendations) > MOST_UNFOLDED and more:
            heading, more = f"<details><summary>{heading}</summary>", f"{more}</details>"
        items.append(f"<li>{heading}{more}</li>")
    return "\n".join(items)


def _prediction_rows(study: Study) -> Iterator[str]:
    """Rows of the table of predictions from single runs."""
    for found in study.recommendations:
        measured = least = "-"
        if found.least_sfo is not None and len(found.batch_sizes) > 1:
            measured = span_in_words(found.interval)
            least = f"{found.least_sfo.batch_size:,}"
        for each in found.predictions:
            record = study.noise_records[each.config_hash]
            cells = [
                found.variant,
                str(each.batch_size),
                str(each.seed),
                size_in_words(each.critical_batch) if each.critical_batch else f"{each.reason}",
                span_in_words(each.interval) if each.critical_batch and each.interval else "-",
                measured,
                least,
                size_in_words(each.b_simple) if each.b_simple else "-",
                record.shortfall or str(len(record.probes)),
                f"{record.cost.in_gradients:,} gradients, {duration(record.cost.seconds)}",
            ]
            yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


def _branch_items(study: Study) -> Iterator[str]:
    """List items: what the branches of runs say, and the schedules to paste."""
    for found in study.recommendations:
        for each in found.predictions:
            record = study.noise_records[each.config_hash]
            local = [probe for probe in record.probes if probe.branches]
            if not local:
                continue
            sizes = "; ".join(map(_local_in_words, local))
            lines = [f"{found.variant}, b = {each.batch_size}, seed {each.seed}: local b* {sizes}"]
            if (suggested := schedule_line(record.schedule, record.probes)) is not None:
                lines.append(suggested + record.own_threshold(study.request.threshold))
            yield f"<li>{'<br>'.join(map(_text, lines))}</li>"


def _local_in_words(probe: Probe) -> str:
    where, size = f"at a loss of {probe.loss:.3g}", probe.local_critical_batch
    if size is None:
        return f"none {where} ({probe.local_critical_batch_reason})"
    interval = probe.local_critical_batch_interval
    span = f" ({span_in_words(interval)})" if interval is not None else ""
    return f"{size_in_words(size)}{span} {where}"


def _unanswered(variants: list[str]) -> str:
    some = ", ".join(variants[:5]) + (", …" if len(variants) > 5 else "")
    return f"{count_of(len(variants), 'variant')} without an answer: {some}"


def _asked(study: Study) -> str:
    asked = study.request_in_words.replace("<=", "≤")
    return f"{asked}, {count_of(len(study.runs), 'run')}"


def _text(text: str) -> str:
    return html.escape(unbroken(text))


def _part(name: str) -> str:
    return files("cbs_lightning.reporting.report").joinpath(name).read_text("utf-8")
