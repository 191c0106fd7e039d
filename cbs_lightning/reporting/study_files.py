"""Everything that `make figures` writes for a study: summary, answer, tables and figures."""

from pathlib import Path

from cbs_lightning.analysis.study import Study, read
from cbs_lightning.reporting.figures.write import write_figures
from cbs_lightning.reporting.recommendation_file import write_recommendations
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.reporting.tables import write_tables
from cbs_lightning.reporting.tensorboard import write_sweep_events
from cbs_lightning.results.locks import held


def write_study(directory: Path) -> list[str]:
    """Write a study's summary, answer, tables and figures; return the lines that tell of them."""
    study, lines = read(directory)
    return lines if study is None else [*lines, *study.summary_lines(), *write_files(study)]


def write_files(study: Study) -> list[str]:
    """Write all that is made of a study; return the lines that tell where."""
    with held(study.directory):
        summary = write_summary(study.directory, study.rows)
        tables = write_tables(study.directory / "tables", study.name, study.curves)
        answer_file = write_recommendations(
            study.directory, study.recommendations, study.across, study.lr_comparisons
        )
        pictures = write_figures(study)
        images = {path.stem: path.read_bytes() for path in pictures[1:] if path.suffix == ".png"}
    write_sweep_events(study.directory, study.curves, images)
    return [
        f"  Figures: {' '.join(map(str, pictures[:1]))}, and each as PNG and PDF beside it",
        f"  Tables: {tables[0].with_suffix('')}{', '.join(path.suffix for path in tables)}",
        f"  The answer for scripts: {answer_file}",
        f"  Every threshold and rule: {summary}",
    ]
