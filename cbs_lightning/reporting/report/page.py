"""The report: one file that holds all it needs, and asks nothing of the network."""

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template

from cbs_lightning.analysis.study import Study, read
from cbs_lightning.console import count_of, visible
from cbs_lightning.files import remove_scratch, write_atomically
from cbs_lightning.reporting.report.content import content
from cbs_lightning.results.locks import held

REPORT = "report.html"
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = ("state.js", "plots.js", "tables.js", "page.js")


def write_report(directory: Path) -> list[str]:
    """Write a study's report; return the lines that tell of it."""
    study, lines = read(directory)
    return lines if study is None else [*lines, f"{study.name}: {write_page(study)}"]


def write_page(study: Study) -> Path:
    path = study.directory / REPORT
    content_now = page(study).encode()
    with held(study.directory):
        remove_scratch(study.directory)
        write_atomically(path, content_now)
    return path


def page(study: Study) -> str:
    values = json.dumps(content(study), separators=(",", ":"), allow_nan=False)
    return Template(_part("page.html")).substitute(
        title=_text(f"{study.name}: which batch size?"),
        study=_text(study.name),
        asked=_text(f"{study.request_in_words}, {count_of(len(study.runs), 'run')}"),
        answers="\n".join(_answer(found.summary_lines()) for found in study.recommendations),
        style=_part("page.css"),
        libraries="\n".join(_part(name) for name in LIBRARIES),
        script="\n".join(_part(name) for name in SCRIPTS),
        content=values.replace("<", "\\u003c"),  # else it could end, or hide the end of, a script
    )


def _answer(lines: list[str]) -> str:
    """An item of the list of answers, as the page's script writes it, for readers without one."""
    first, *others = (_text(line.strip()) for line in lines)
    return f"<li><strong>{first}</strong>{''.join(f'<p>{line}</p>' for line in others)}</li>"


def _text(text: str) -> str:
    return html.escape(visible(text))


def _part(name: str) -> str:
    return files("cbs_lightning.reporting.report").joinpath(name).read_text("utf-8")
