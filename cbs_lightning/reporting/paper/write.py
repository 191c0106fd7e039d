"""Writes the paper's figures and tables beside what was measured, and fills in the pages."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from cbs_lightning.console import count_of
from cbs_lightning.errors import UserError
from cbs_lightning.files import inside, write_atomically
from cbs_lightning.reporting.figures.style import write_figure
from cbs_lightning.reporting.figures.write import figures_of
from cbs_lightning.reporting.paper.cells import STUDIES, YOURS
from cbs_lightning.reporting.paper.page import blocks, figure_name, fill, opening
from cbs_lightning.reporting.paper.study import PublishedStudy, read_published
from cbs_lightning.reporting.tables import write_tables

FOLDER = "paper"  # of the published files, below docs/
PAGE, INDEX, README = "paper.md", "index.md", "README.md"
LEFT_OUT = ("seconds", "tradeoff")  # of a busy machine, and of another kind than the paper's


def write_page(docs: Path) -> list[str]:
    """Write figures and tables to docs/paper, and their text to paper.md, index.md and README."""
    folder = docs / FOLDER
    studies = [read_published(study, folder) for study in STUDIES]
    if not any(study.rows for study in studies):
        names = ", ".join(f"{study.name}.csv" for study in STUDIES)
        raise UserError(f"{folder}: no published study; expected: {names}")
    found = blocks(studies, FOLDER)
    pages = {
        docs / PAGE: found,
        docs / INDEX: opening(studies[0], FOLDER),
        docs.parent / README: opening(studies[0], f"{docs.name}/{FOLDER}"),
    }
    filled = {
        path: fill(path.read_text(), own, path) for path, own in pages.items() if path.exists()
    }
    written = [path for study in studies for path in _write_files(study, folder, ("png",))]
    for path, text in filled.items():
        write_atomically(path, text.encode())
    numbers = [line for name, lines in found.items() for line in ("", f"# {name}", "", *lines)]
    return [*numbers, "", *(f"wrote {path}" for path in [*written, *filled])]


def write_beside(published: Path, output_dir: Path) -> list[str]:
    """Write figures and tables of the published runs, and of a user's own, to OUTPUT_DIR/paper."""
    folder = inside(output_dir, FOLDER)
    lines, written = [], []
    for paper in STUDIES:
        study = read_published(paper, published, output_dir)
        yours = {row.config_hash for row in study.rows if row.variant.endswith(YOURS)}
        lines += [f"skipped {run.directory}: {run.reason}" for run in study.broken]
        lines.append(f"{paper.name}: {count_of(len(yours), 'run')} of yours")
        lines += [line for found in study.recommendations for line in found.summary_lines()]
        written += _write_files(study, folder, ("png", "pdf"))
    return [*lines, *(f"wrote {path}" for path in written)]


def _write_files(study: PublishedStudy, folder: Path, forms: tuple[str, ...]) -> list[Path]:
    written = write_tables(folder, study.name, study.curves, f"{study.name}_tables")
    if study.answers:
        for name, figure in _figures(study):
            written += write_figure(figure, folder / name, forms)
    return written


def _figures(study: PublishedStudy) -> Iterator[tuple[str, Figure]]:
    """The study's figures; those in the paper are named by their numbers.

    On which machines its runs were made is in the text beside them.
    """
    steps, sfo = map(figure_name, study.paper.figures)
    for name, figure in figures_of(study, conditions=False):
        if name not in LEFT_OUT:
            yield {"steps": steps, "sfo": sfo}.get(name, f"{study.name}_{name}"), figure
