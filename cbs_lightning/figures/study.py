"""All that is made of a study's runs: summary, answer, tables and figures."""

from pathlib import Path

from matplotlib.figure import Figure

from cbs_lightning.across_thresholds import across_thresholds
from cbs_lightning.curves import curves
from cbs_lightning.figures.by_batch_size import TITLES, draw
from cbs_lightning.figures.by_hyperparameter import draw_by_hyperparameter
from cbs_lightning.figures.by_threshold import draw_by_threshold
from cbs_lightning.figures.style import write_figure
from cbs_lightning.hyperparameters import by_optimizer, hyperparameter_panels
from cbs_lightning.recommend import recommend
from cbs_lightning.recommendation_file import write_recommendations
from cbs_lightning.results import UNFINISHED, answer, read_study
from cbs_lightning.summary import summary_rows, usual_request, write_summary
from cbs_lightning.sweep_events import write_sweep_events
from cbs_lightning.tables import write_tables
from cbs_lightning.wording import count_of


def write_study(directory: Path) -> list[str]:
    """Write a study's summary, answer, tables and figures; return the lines that tell of them."""
    runs, broken = read_study(directory)
    lines = [f"skipped {run.directory}: {run.reason}" for run in broken]
    if not runs:
        return [*lines, f"{directory}: no run that can be read"]
    request = usual_request(runs)
    asked = f"loss <= {request.threshold:g} by rule {request.rule}"
    answers = [answer(run.result, run.trajectory, request) for run in runs]
    for run, result in zip(runs, answers, strict=True):
        if result.status in UNFINISHED:
            lines.append(f"{run.directory}: {result.status}")
        elif result.status is None:
            lines.append(f"left out {run.directory}: it stopped before {asked} could be told")
    study_curves = curves(answers)
    rows = summary_rows(runs)
    summary = write_summary(directory, rows)
    tables = write_tables(directory / "tables", directory.name, study_curves)
    recommendations = [recommend(curve) for curve in study_curves]
    across = across_thresholds([row for row in rows if row.rule is request.rule])
    answer_file = write_recommendations(directory, recommendations, across)
    panels = hyperparameter_panels(answers)
    figures: dict[str, Figure | None] = {}
    if not panels or any(len(curve.points) > 1 for curve in study_curves):
        figures |= {name: draw(directory.name, study_curves, name) for name in TITLES}
    figures["critical_batch"] = draw_by_threshold(directory.name, across)
    for name, group in by_optimizer(panels).items():
        figures[f"hyperparameters_{name}"] = draw_by_hyperparameter(directory.name, group)
    pictures: list[Path] = []
    for name, figure in figures.items():
        if figure is not None:
            pictures += write_figure(figure, directory / "figures" / name)
    drawn = {path.stem: path.read_bytes() for path in pictures if path.suffix == ".png"}
    write_sweep_events(directory, study_curves, drawn)
    lines.append(f"{directory.name}: {asked}, {count_of(len(runs), 'run')}")
    lines += [f"  {line}" for found in recommendations for line in found.told()]
    lines += [f"  {found.variant}: {found.joint.describe()}" for found in across]
    lines += [f"  {panel.describe()}" for panel in panels]
    lines.append(f"  Figures: {' '.join(map(str, pictures))}")
    lines.append(f"  Tables: {' '.join(map(str, tables))}")
    lines.append(f"  The answer for scripts: {answer_file}")
    return [*lines, f"  Every threshold and rule: {summary}"]
