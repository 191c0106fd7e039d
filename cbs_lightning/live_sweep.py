"""A study's curves in TensorBoard while its runs still finish."""

import time
from io import BytesIO
from pathlib import Path

from cbs_lightning.curves import MISSED, Curve, curves
from cbs_lightning.results import (
    DamagedError,
    Request,
    Result,
    Status,
    answer,
    read_result,
    read_run,
    run_directories,
)
from cbs_lightning.summary import most_asked
from cbs_lightning.sweep_events import page_age, write_sweep_curves, write_sweep_events

FIGURES = ("sfo", "steps")
SECONDS_BETWEEN_FIGURES = 60
DOTS_PER_INCH = 120


def refresh_sweep(study_directory: Path) -> None:
    """Show what the results that are there say; the figures are drawn anew every minute at most.

    Runs that cannot be read are left out.
    """
    found = {}
    for directory in run_directories(study_directory):
        try:
            found[directory] = read_result(directory)
        except (DamagedError, OSError):
            continue
    if not found:
        return
    request = most_asked(found.values())
    answers = [_answer(directory, result, request) for directory, result in found.items()]
    study_curves = curves(result for result in answers if result is not None)
    if study_curves and page_age(study_directory, time.time()) >= SECONDS_BETWEEN_FIGURES:
        pictures = {name: _picture(study_directory.name, study_curves, name) for name in FIGURES}
        write_sweep_events(study_directory, study_curves, pictures)
    else:
        write_sweep_curves(study_directory, study_curves)


def _answer(directory: Path, result: Result, request: Request) -> Result | None:
    """What the run says to the request; its losses are read only if its result does not say."""
    asked = Request(result.threshold, result.rule, result.window)
    to_the_end = result.status is result.ended and result.steps_answered == result.steps_run
    if asked == request and (
        result.status is Status.REACHED or (result.status in MISSED and to_the_end)
    ):
        return result
    try:
        run = read_run(directory)
    except (DamagedError, OSError):
        return None
    return answer(run.result, run.trajectory, request)


def _picture(study: str, study_curves: list[Curve], quantity: str) -> bytes:
    import matplotlib as mpl  # takes a second, which a sweep that is short never needs

    from cbs_lightning.figures.by_batch_size import draw
    from cbs_lightning.figures.style import STYLE

    content = BytesIO()
    with mpl.rc_context(STYLE):
        draw(study, study_curves, quantity).savefig(content, format="png", dpi=DOTS_PER_INCH)
    return content.getvalue()
