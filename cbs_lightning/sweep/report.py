"""The end of a sweep: all runs, the answer, and where to find the files."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cbs_lightning.analysis.conditions import describe_seconds
from cbs_lightning.analysis.curves import Curve, curves, request_of
from cbs_lightning.analysis.lr_comparison import lr_comparisons, tuned_curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import Recommendation
from cbs_lightning.analysis.study import Question, Study, left_out
from cbs_lightning.commands import study_commands
from cbs_lightning.console import count_of, duration, print_line, print_lines, visible
from cbs_lightning.errors import PartlyDoneError, output_errors
from cbs_lightning.fit.comparison import WITHIN
from cbs_lightning.results.result import Request, Result, Status, answer, tell_apart
from cbs_lightning.results.store import read_study

Answers = list[tuple[Curve, Recommendation]]


def report(
    results: list[Result | None],
    directories: list[Path],
    studies: Mapping[Path, bool],
    within: float = WITHIN,
) -> None:
    """Print all runs and the answer, and write figures and report if they are wanted.

    Args:
        results: One per job; None is a job that failed without one.
        directories: The run directories of the jobs.
        studies: The directories above them, and whether figures and report are wanted there.
        within: The share of the least SFO that the batch sizes of an answer's range may cost more.
    """
    console = Console()
    if not console.is_terminal:  # a log has no width
        console = Console(width=160, soft_wrap=True)
    console.print(_table(results, directories))
    for path, wanted in studies.items():
        found = [
            result
            for result, directory in zip(results, directories, strict=True)
            if result is not None and directory.parent == path
        ]
        lines = [f"{path.name}:"] if len(studies) > 1 else []
        study = Study(path, *read_study(path), Question(within=within)) if path.is_dir() else None
        answered: Answers = []
        if study is not None:
            earlier = _earlier_runs(found, directories, study)
            if earlier:
                count = count_of(len({run.config_hash for run in earlier}), "earlier run")
                lines.append(f"With {count} of the study ({_list_runs(earlier)}):")
            runs = [*_each_once(found), *earlier]
            own = _curves(runs, study if wanted and study.runs else None)
            answered = [(curve, recommend(curve, within, study.noise_records)) for curve in own]
            lines += _answer_lines(answered, runs)
        for line in lines:
            console.print(visible(line), markup=False, highlight=False, emoji=False)
        _finish(path, study if wanted else None, answered)


def _table(results: list[Result | None], directories: list[Path]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    asked = tell_apart(request_of(result) for result in results if result is not None)
    several = len(asked) > 1
    names = ["optimizer", "b", "seed", *(["until"] if several else []), "status"]
    for name in (*names, "steps", "SFO", "accuracy", "time"):
        left = name in ("optimizer", "until", "status")
        table.add_column(name, justify="left" if left else "right")
    for result, directory in zip(results, directories, strict=True):
        if result is None:
            failed = Text(Status.FAILED, style="red")
            table.add_row(Text(visible(directory.name)), *[""] * (len(names) - 2), failed)
        else:
            until = [asked[request_of(result)]] if several else []
            table.add_row(*_cells(result, until))
    return table


def _each_once(results: Iterable[Result]) -> list[Result]:
    """Each run once for each request, as it was with the budget that tells most."""
    found: dict[tuple[str, Request], Result] = {}
    for run in results:
        key = (run.config_hash, request_of(run))
        known = found.setdefault(key, run)
        if (run.steps is not None, run.steps_run) > (known.steps is not None, known.steps_run):
            found[key] = run
    return list(found.values())


def _curves(results: list[Result], written: Study | None) -> list[Curve]:
    """The curves that answer this sweep's own requests.

    One that also belongs to the study to be written is taken from there, so that it is fitted only
    once.
    """
    known = written.recommended_curves if written is not None else []
    own = curves(results)
    tuned = [found.curve for found in tuned_curves(own)]
    return [next((same for same in known if same == curve), curve) for curve in [*own, *tuned]]


def _answer_lines(answered: Answers, results: list[Result]) -> Iterator[str]:
    asked = tell_apart(curve.request for curve, _ in answered)
    for curve, found in answered:
        yield from found.summary_lines(asked[curve.request])
    if seconds := describe_seconds(curve for curve, _ in answered):
        yield seconds
    for compared in lr_comparisons(curves(results)):
        yield from compared.summary_lines(asked[compared.request])


def _finish(directory: Path, study: Study | None, answered: Answers) -> None:
    """Write the files of the study, if there is one, and say where its runs are."""
    output_dir = directory.parent
    if study is None:
        commands = study_commands(output_dir, "figures", "report", "tensorboard")
        print_line(f"Runs: {directory}; to look at them: {commands}")
        return
    with output_errors(output_dir):
        _write(study, answered)
    print_line(f"  Runs: {directory}; in TensorBoard: {study_commands(output_dir, 'tensorboard')}")


def _write(study: Study, answered: Answers) -> None:
    from cbs_lightning.reporting.report import write_page
    from cbs_lightning.reporting.study_files import write_files

    lines = left_out(study)
    refused = None
    if study.runs:
        print_line(f"{study.name}: drawing {count_of(len(study.runs), 'run')} ...")
        try:
            others = [found for curve, found in answered if curve.request != study.request]
            lines += write_files(study, others)
        except PartlyDoneError as error:
            lines += error.lines
            refused = error
        lines.append(f"  Report: {write_page(study)}")
    print_lines(lines)
    if refused is not None:
        raise refused


def _earlier_runs(results: list[Result], directories: list[Path], study: Study) -> list[Result]:
    """What other runs of the study, with the same variants, add to this sweep's answer."""
    asked: dict[str, set[Request]] = {}
    for run in results:
        asked.setdefault(run.variant, set()).add(request_of(run))
    own = {directory.resolve() for directory in directories}
    answers = [
        answer(run.result, run.trajectory, request)
        for run in study.runs
        if run.directory.resolve() not in own
        for request in asked.get(run.result.variant, ())
    ]
    return [run for run in answers if run.status is not None]


def _list_runs(runs: list[Result]) -> str:
    """The batch sizes of each variant."""
    sizes: dict[str, set[int]] = {}
    for run in runs:
        sizes.setdefault(run.variant, set()).add(run.batch_size)
    return "; ".join(
        f"{variant}: b = {', '.join(map(str, sorted(own)))}" for variant, own in sizes.items()
    )


def _sfo(result: Result) -> str:
    if result.status is Status.ABANDONED:
        return f"> {result.sfo_exceeded:,}"
    return f"{result.sfo:,}" if result.sfo is not None else "-"


def _cells(result: Result, until: list[str]) -> tuple[str | Text, ...]:
    """The cells of a row, as text that is never read as markup."""
    style = "green" if result.status is Status.REACHED else "yellow"
    return (
        Text(visible(result.variant)),
        str(result.batch_size),
        str(result.seed),
        *until,
        Text(str(result.status), style=style),
        f"{result.steps:,}" if result.steps is not None else "-",
        _sfo(result),
        f"{result.accuracy:.2%}" if result.accuracy is not None else "-",
        duration(result.seconds),
    )
