"""The end of a sweep: every run, the answer, and where to look."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from cbs_lightning.analysis.curves import curves
from cbs_lightning.analysis.lr_comparison import lr_comparisons, tuned_curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.study import read
from cbs_lightning.console import count_of, duration, say
from cbs_lightning.errors import output_errors
from cbs_lightning.results.result import Request, Result, Status, answer
from cbs_lightning.results.store import read_study


def print_report(results: list[Result | None], directories: list[Path]) -> None:
    """One row per job; a result of None is a job that failed without one."""
    console = Console()
    if not console.is_terminal:  # a log has no width
        console = Console(width=160, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("optimizer", "b", "seed", "status", "steps", "SFO", "accuracy", "time"):
        table.add_column(name, justify="left" if name in ("optimizer", "status") else "right")
    for result, directory in zip(results, directories, strict=True):
        if result is None:
            table.add_row(directory.name, "", "", f"[red]{Status.FAILED}[/red]")
        else:
            table.add_row(*_cells(result))
    console.print(table)
    found = [result for result in results if result is not None]
    earlier = _earlier_runs(found, directories)
    if earlier:
        console.print(f"With {count_of(len(earlier), 'earlier run')} of the study:")
    own = curves([*found, *earlier])
    for curve in [*own, *(tuned.curve for tuned in tuned_curves(own))]:
        console.print("\n".join(recommend(curve).summary_lines()), highlight=False)
    for compared in lr_comparisons(own):
        console.print("\n".join(compared.summary_lines()), highlight=False)


def write_and_tell(studies: dict[Path, bool]) -> None:
    """Say where the studies' runs are, and write what is made of them where that is wanted."""
    for directory, wanted in studies.items():
        where = "" if str(directory.parent) == "outputs" else f" OUTPUT_DIR={directory.parent}"
        if wanted and directory.is_dir():
            with output_errors(directory.parent):
                _write(directory)
            say(f"  Runs: {directory}; in TensorBoard: make tensorboard{where}")
        else:
            say(f"Runs: {directory}; to look at them: make figures report tensorboard{where}")


def _write(directory: Path) -> None:
    from cbs_lightning.reporting.report import write_page
    from cbs_lightning.reporting.study_files import write_files

    study, lines = read(directory)
    if study is not None:
        say(f"{study.name}: drawing {count_of(len(study.runs), 'run')} ...")
        lines += [*write_files(study), f"  Report: {write_page(study)}"]
    say("\n".join(lines))


def _earlier_runs(results: list[Result], directories: list[Path]) -> list[Result]:
    """What other runs of the studies, of the same variants, say to what this sweep asked."""
    asked: dict[tuple[str, str], set[Request]] = {}
    for run in results:
        request = Request(run.threshold, run.rule, run.window)
        asked.setdefault((run.study, run.variant), set()).add(request)
    own = {directory.resolve() for directory in directories}
    return [
        answer(run.result, run.trajectory, request)
        for study in sorted({directory.parent for directory in directories})
        if study.is_dir()
        for run in read_study(study)[0]
        if run.directory.resolve() not in own
        for request in asked.get((run.result.study, run.result.variant), ())
    ]


def _sfo(result: Result) -> str:
    if result.status is Status.ABANDONED:
        return f"> {result.sfo_answered:,}"
    return f"{result.sfo:,}" if result.sfo is not None else "-"


def _cells(result: Result) -> tuple[str, ...]:
    style = "green" if result.status is Status.REACHED else "yellow"
    return (
        result.variant,
        str(result.batch_size),
        str(result.seed),
        f"[{style}]{result.status}[/{style}]",
        f"{result.steps:,}" if result.steps is not None else "-",
        _sfo(result),
        f"{result.accuracy:.2%}" if result.accuracy is not None else "-",
        duration(result.seconds),
    )
