"""Writes everything that `make figures` writes for a study: summary, answer, tables and figures."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cbs_lightning.analysis.recommendation import Recommendation
from cbs_lightning.analysis.study import USUAL, Question, Study, read
from cbs_lightning.errors import PartlyDoneError
from cbs_lightning.files import LinkError, inside, remove_scratch
from cbs_lightning.reporting.figures.write import left_out, write_figures
from cbs_lightning.reporting.recommendation_file import write_recommendations
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.reporting.tables import write_tables
from cbs_lightning.reporting.tensorboard import write_sweep_events
from cbs_lightning.reporting.variants_table import write_variants_table
from cbs_lightning.results.locks import held

TABLES = "tables"


def write_study(directory: Path, question: Question = USUAL) -> list[str]:
    """Write a study's summary, answer, tables and figures; return the lines to print."""
    study, lines = read(directory, question)
    if study is None:
        return lines
    lines += study.summary_lines()
    try:
        return [*lines, *write_files(study)]
    except PartlyDoneError as error:
        raise PartlyDoneError([*lines, *error.lines], error.problems) from None
    except LinkError as error:
        raise PartlyDoneError(lines, [str(error)]) from None


def write_files(study: Study, others: Iterable[Recommendation] = ()) -> list[str]:
    """Write all files of a study; return lines that say where they are.

    `others` are answers to other questions that belong beside the study's own. A link out of the
    study is not followed: `PartlyDoneError` names it, after the rest is written.
    """
    lines: list[str] = []
    refused: list[str] = []
    images: dict[str, bytes] = {}
    with held(study.directory):
        study.output.mkdir(exist_ok=True)
        remove_scratch(study.output)
        writers: list[Callable[[], str]] = [
            lambda: _write_summary(study),
            lambda: _write_answer(study, others),
            lambda: _write_tables(study),
            lambda: _write_figures(study, images),
        ]
        for write in writers:
            with _collected(refused):
                lines.insert(0, write())
    if not study.folder:
        with _collected(refused):
            write_sweep_events(study.directory, study.curves, images)
    if refused:
        raise PartlyDoneError(lines, refused)
    return lines


@contextmanager
def _collected(refused: list[str]) -> Iterator[None]:
    try:
        yield
    except LinkError as error:
        refused.append(str(error))


def _write_figures(study: Study, images: dict[str, bytes]) -> str:
    """Fills in `images`, the PNG files by name."""
    pictures = write_figures(study)
    images |= {path.stem: path.read_bytes() for path in pictures[1:] if path.suffix == ".png"}
    if not pictures:
        return "  Figures: none, since there is nothing to draw"
    line = f"  Figures: {pictures[0]}, and each as PNG and PDF beside it"
    more = left_out(study)
    return f"{line}; {more}" if more else line


def _write_tables(study: Study) -> str:
    directory = inside(study.output, TABLES)
    remove_scratch(directory)
    tables = write_tables(directory, study.name, study.curves)
    variants = write_variants_table(directory, study)
    forms = ", ".join(path.suffix for path in tables)
    return f"  Tables: {variants}, {tables[0].with_suffix('')}{forms}"


def _write_answer(study: Study, others: Iterable[Recommendation]) -> str:
    found = [*study.recommendations, *others]
    path = write_recommendations(
        study.output, found, study.across, study.lr_comparisons, study=study.name
    )
    return f"  The answer for scripts: {path}"


def _write_summary(study: Study) -> str:
    return f"  Every threshold and rule: {write_summary(study.output, study.rows)}"
