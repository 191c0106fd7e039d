"""Writes all figures of a study as PNG and PDF."""

import re
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from cbs_lightning.analysis.conditions import describe_conditions, why_seconds_differ
from cbs_lightning.analysis.hyperparameters import by_optimizer
from cbs_lightning.analysis.study import Study
from cbs_lightning.commands import option
from cbs_lightning.files import file_names, inside, remove_scratch, write_atomically
from cbs_lightning.reporting.figures.beside_paper import draw_beside_paper
from cbs_lightning.reporting.figures.by_batch_size import MOST_TOGETHER, draw
from cbs_lightning.reporting.figures.by_hyperparameter import draw_by_hyperparameter
from cbs_lightning.reporting.figures.by_threshold import draw_by_threshold
from cbs_lightning.reporting.figures.contact_sheet import write_contact_sheet
from cbs_lightning.reporting.figures.losses import draw_losses
from cbs_lightning.reporting.figures.lr_scaling import draw_lr_scaling
from cbs_lightning.reporting.figures.noise import draw_noise
from cbs_lightning.reporting.figures.quantities import QUANTITIES
from cbs_lightning.reporting.figures.style import STYLE, write_figure
from cbs_lightning.reporting.figures.tradeoff import draw_tradeoff
from cbs_lightning.reporting.paper import paper_cells
from cbs_lightning.reporting.tables import table_rows

FIGURES = "figures"
OF_FEW_CURVES = ("tradeoff", "critical_batch")
CONTACT_SHEET = "contact_sheet.png"
WRITTEN = ".written"  # the names of the files, so that stale ones are known
LONGEST_LIST = 2**20  # bytes of that
FIGURE = re.compile(r"[\w,=+-][\w.,=+-]*\.(png|pdf)")  # a name from `file_names`, with a suffix


def write_figures(study: Study) -> list[Path]:
    """Write all figures and remove those no longer drawn; return the paths, contact sheet first."""
    directory = inside(study.output, FIGURES)
    remove_scratch(directory)
    pictures: list[Path] = []
    for name, figure in figures_of(study):
        pictures += write_figure(figure, directory / name)
    if images := [path for path in pictures if path.suffix == ".png"]:
        sheet = write_contact_sheet(images, directory / CONTACT_SHEET)
        pictures = [sheet, *pictures]
    _remove_others(directory / WRITTEN, pictures)
    return pictures


def _remove_others(manifest: Path, pictures: list[Path]) -> None:
    """Remove figures that were written last time, but not now."""
    names = [path.name for path in pictures]
    for name in listed(manifest) - set(names):
        path = manifest.parent / name
        if path.is_file() and not path.is_symlink():
            path.unlink()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(manifest, "".join(f"{name}\n" for name in names).encode())


def listed(manifest: Path) -> set[str]:
    """The figures in a list of them, each by its bare name.

    The list may come from somebody else: other lines are ignored, and so is a list that is a link
    or cannot be read.
    """
    if manifest.is_symlink() or not manifest.is_file():
        return set()
    try:
        with manifest.open("rb") as file:
            lines = file.read(LONGEST_LIST).decode().split("\n")
    except (OSError, UnicodeDecodeError):
        return set()
    return {line for line in lines if FIGURE.fullmatch(line)}


def figures_of(study: Study, *, conditions: bool = True) -> Iterator[tuple[str, Figure]]:
    """Draw the study's figures one by one with their names, the most important first.

    If the runs were made under different `conditions`, the captions say so.
    """
    note = describe_conditions(study.answers) if conditions else ""
    for name, figure in _figures_of(study):
        if note:
            _add_to_title(figure, note)
        yield name, figure


def left_out(study: Study) -> str:
    """Which figures are not drawn of so many curves, and what to do about it; or nothing."""
    if len(study.curves) <= MOST_TOGETHER:
        return ""
    choose = option("variants", "'adam*,sgd'")
    names = " and ".join(OF_FEW_CURVES)
    return f"{names} are left out with more than {MOST_TOGETHER} curves: {choose} chooses some"


def _add_to_title(figure: Figure, note: str) -> None:
    if figure.get_suptitle():  # of several panels
        figure.suptitle(f"{figure.get_suptitle()}\n{note}", x=0.02, ha="left", fontsize=8)
        return
    first = figure.axes[0]
    title = f"{first.get_title(loc='left')}\n{note}"
    first.set_title(title, loc="left", fontsize=STYLE["axes.titlesize"])


def _figures_of(study: Study) -> Iterator[tuple[str, Figure]]:
    names = _names(study)
    paper = paper_cells(study.name)
    found: dict[str, Figure | None] = {}
    if study.over_batch_sizes and study.curves:
        for name in QUANTITIES:
            cells = paper if name != "seconds" else None
            yield name, draw(study.name, study.curves, name, cells, study.recommendations)
    if study.over_batch_sizes and 0 < len(study.curves) <= MOST_TOGETHER:
        found["tradeoff"] = draw_tradeoff(study.name, study.curves, study.recommendations)
    for compared in study.lr_comparisons:
        name = names[f"lr_scaling_{compared.variant}"]
        found[name] = draw_lr_scaling(study.name, compared)
    if len(study.curves) <= MOST_TOGETHER:
        found["critical_batch"] = draw_by_threshold(study.name, study.across)
    found["noise"] = draw_noise(study.name, study.noise_records, study.recommendations)
    for name, figure in found.items():
        if figure is not None:
            yield name, figure
    if paper:
        rows, caveat = table_rows(study.name, study.curves), why_seconds_differ(study.answers)
        yield "paper", draw_beside_paper(study.name, rows, caveat)
    for variant, group in study.loss_curves.items():
        if len({curve.result.batch_size for curve in group}) > 1:
            yield names[f"losses_{variant}"], draw_losses(study.name, group)
    for optimizer, panels in by_optimizer(study.panels).items():
        name = names[f"hyperparameters_{optimizer}"]
        yield name, draw_by_hyperparameter(study.name, panels)


def _names(study: Study) -> dict[str, str]:
    """The file names of figures that are named after a variant or an optimizer."""
    return file_names(
        [
            *(f"lr_scaling_{compared.variant}" for compared in study.lr_comparisons),
            *(f"losses_{variant}" for variant in study.loss_curves),
            *(f"hyperparameters_{optimizer}" for optimizer in by_optimizer(study.panels)),
        ]
    )
