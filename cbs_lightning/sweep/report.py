"""The end of a sweep: every run, the answer, and where to look."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.lr_comparison import lr_comparisons, tuned_curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.study import Study, left_out
from cbs_lightning.console import count_of, duration, print_line, print_lines, visible
from cbs_lightning.errors import PartlyDoneError, output_errors
from cbs_lightning.results.result import Request, Result, Status, answer
from cbs_lightning.results.store import read_study


def report(
    results: list[Result | None], directories: list[Path], studies: Mapping[Path, bool]
) -> None:
    """Print every run and the answer, and write figures and report where they are wanted.

    Args:
        results: One per job; None is a job that failed without one.
        directories: The run directories of the jobs.
        studies: The directories above them, and whether figures and report are wanted there.
    """
    console = Console()
    if not console.is_terminal:  # a log has no width
        console = Console(width=160, soft_wrap=True)
    console.print(_table(results, directories))
    read = {path: Study(path, *read_study(path)) for path in sorted(studies) if path.is_dir()}
    found = [result for result in results if result is not None]
    earlier = _earlier_runs(found, directories, read.values())
    if earlier:
        console.print(f"With {count_of(len(earlier), 'earlier run')} of the study:")
    written = [study for path, study in read.items() if studies[path] and study.runs]
    for line in _answer([*found, *earlier], written):
        console.print(visible(line), markup=False, highlight=False, emoji=False)
    for path, wanted in studies.items():
        _finish(path, read.get(path) if wanted else None)


def _table(results: list[Result | None], directories: list[Path]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("optimizer", "b", "seed", "status", "steps", "SFO", "accuracy", "time"):
        table.add_column(name, justify="left" if name in ("optimizer", "status") else "right")
    for result, directory in zip(results, directories, strict=True):
        if result is None:
            failed = Text(Status.FAILED, style="red")
            table.add_row(Text(visible(directory.name)), "", "", failed)
        else:
            table.add_row(*_cells(result))
    return table


def _answer(results: list[Result], written: Iterable[Study]) -> Iterator[str]:
    """Lines with what the results say to this sweep's own request.

    A curve that one of the studies to be written has as well is taken from there, so that the
    forms are fitted to it once.
    """
    known = [curve for study in written for curve in study.recommended_curves]

    def shared(curve: Curve) -> Curve:
        return next((same for same in known if same == curve), curve)

    own = [shared(curve) for curve in curves(results)]
    tuned = [shared(found.curve) for found in tuned_curves(own)]
    for curve in [*own, *tuned]:
        yield from recommend(curve).summary_lines()
    for compared in lr_comparisons(own):
        yield from compared.summary_lines()


def _finish(directory: Path, study: Study | None) -> None:
    """Write what is made of the study, if one is given, and say where its runs are."""
    output_dir = str(directory.parent)
    where = "" if output_dir == "outputs" else f" OUTPUT_DIR={quote(output_dir)}"
    if study is None:
        print_line(f"Runs: {directory}; to look at them: make figures report tensorboard{where}")
        return
    with output_errors(directory.parent):
        _write(study)
    print_line(f"  Runs: {directory}; in TensorBoard: make tensorboard{where}")


def _write(study: Study) -> None:
    from cbs_lightning.reporting.report import write_page
    from cbs_lightning.reporting.study_files import write_files

    lines = left_out(study)
    refused = None
    if study.runs:
        print_line(f"{study.name}: drawing {count_of(len(study.runs), 'run')} ...")
        try:
            lines += write_files(study)
        except PartlyDoneError as error:
            lines += error.lines
            refused = error
        lines.append(f"  Report: {write_page(study)}")
    print_lines(lines)
    if refused is not None:
        raise refused


def _earlier_runs(
    results: list[Result], directories: list[Path], studies: Iterable[Study]
) -> list[Result]:
    """What other runs of the studies, of the same variants, say to what this sweep asked."""
    asked: dict[tuple[str, str], set[Request]] = {}
    for run in results:
        request = Request(run.threshold, run.rule, run.window)
        asked.setdefault((run.study, run.variant), set()).add(request)
    own = {directory.resolve() for directory in directories}
    return [
        answer(run.result, run.trajectory, request)
        for study in studies
        for run in study.runs
        if run.directory.resolve() not in own
        for request in asked.get((run.result.study, run.result.variant), ())
    ]


def _sfo(result: Result) -> str:
    if result.status is Status.ABANDONED:
        return f"> {result.sfo_answered:,}"
    return f"{result.sfo:,}" if result.sfo is not None else "-"


def _cells(result: Result) -> tuple[str | Text, ...]:
    """Names are text, never markup."""
    style = "green" if result.status is Status.REACHED else "yellow"
    return (
        Text(visible(result.variant)),
        str(result.batch_size),
        str(result.seed),
        Text(str(result.status), style=style),
        f"{result.steps:,}" if result.steps is not None else "-",
        _sfo(result),
        f"{result.accuracy:.2%}" if result.accuracy is not None else "-",
        duration(result.seconds),
    )
