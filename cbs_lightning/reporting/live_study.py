"""Shows a study in TensorBoard while its runs finish.

`python -m cbs_lightning.reporting.live_study <study>` draws its figures.
"""

import os
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

from cbs_lightning.analysis.curves import MISSED, Curve, curves
from cbs_lightning.analysis.summary import most_common_request
from cbs_lightning.files import PROJECT
from cbs_lightning.reporting.tensorboard import has_page, write_sweep_curves, write_sweep_events
from cbs_lightning.results.result import Request, Result, Status, answer
from cbs_lightning.results.store import DamagedError, read_result, read_run, run_directories

FIGURES = ("sfo", "steps")
SECONDS_BETWEEN_FIGURES = 60
DOTS_PER_INCH = 120


class LiveStudy:
    """Shows the finished runs of a study in TensorBoard; called when runs have finished.

    The figures are drawn at most once a minute, by another process with the lowest priority:
    drawing in this process would slow down a run that trains here, and count as its time.
    """

    def __init__(self, study_directory: Path) -> None:
        self.study_directory = study_directory
        self._drawing: subprocess.Popen[bytes] | None = None
        self._due = time.monotonic() + SECONDS_BETWEEN_FIGURES

    def __call__(self) -> None:
        if study_curves := _curves(self.study_directory):
            if has_page(self.study_directory):
                write_sweep_curves(self.study_directory, study_curves)
            else:
                write_sweep_events(self.study_directory, study_curves, {})
        idle = self._drawing is None or self._drawing.poll() is not None
        if idle and time.monotonic() >= self._due:
            self._due = time.monotonic() + SECONDS_BETWEEN_FIGURES
            self._drawing = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(self.study_directory.resolve())],
                cwd=PROJECT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """Stop, so that what the sweep writes at its end is not overwritten."""
        if self._drawing is not None:
            self._drawing.kill()
            self._drawing.wait()


def draw_sweep(study_directory: Path) -> None:
    """Draw the curves and the two main figures of the results so far."""
    if study_curves := _curves(study_directory):
        pictures = {name: _picture(study_directory.name, study_curves, name) for name in FIGURES}
        write_sweep_events(study_directory, study_curves, pictures)


def _curves(study_directory: Path) -> list[Curve]:
    """The curves of the runs that can be read."""
    found = {}
    if not study_directory.is_dir():  # before its first run began
        return []
    for directory in run_directories(study_directory):
        try:
            found[directory] = read_result(directory)
        except (DamagedError, OSError):
            continue
    if not found:
        return []
    request = most_common_request(found.values())
    answers = [_answer(directory, result, request) for directory, result in found.items()]
    return curves(result for result in answers if result is not None)


def _answer(directory: Path, result: Result, request: Request) -> Result | None:
    """The run's answer to the request; its losses are read only if its result is not enough."""
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
    import matplotlib as mpl  # takes a second, for which a sweep would wait

    from cbs_lightning.reporting.figures.by_batch_size import draw
    from cbs_lightning.reporting.figures.style import STYLE

    content = BytesIO()
    with mpl.rc_context(STYLE):
        draw(study, study_curves, quantity).savefig(content, format="png", dpi=DOTS_PER_INCH)
    return content.getvalue()


if __name__ == "__main__":
    os.nice(19)
    draw_sweep(Path(sys.argv[1]))
