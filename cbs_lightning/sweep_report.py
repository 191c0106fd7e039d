"""What a sweep prints at its end: every run, the answer, and where to look."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from cbs_lightning.curves import curves
from cbs_lightning.recommend import recommend, told
from cbs_lightning.results import Result, Status
from cbs_lightning.wording import duration


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
    for curve in curves(result for result in results if result is not None):
        console.print("\n".join(told(recommend(curve))), highlight=False)
    for study in sorted({directory.parent for directory in directories}):
        console.print(
            f"Runs: {study}. Figures and tables: make figures OUTPUT_DIR={study.parent}",
            highlight=False,
        )


def _cells(result: Result) -> tuple[str, ...]:
    style = "green" if result.status is Status.REACHED else "yellow"
    return (
        result.variant,
        str(result.batch_size),
        str(result.seed),
        f"[{style}]{result.status}[/{style}]",
        f"{result.steps:,}" if result.steps is not None else "-",
        f"{result.sfo:,}" if result.sfo is not None else "-",
        f"{result.accuracy:.2%}" if result.accuracy is not None else "-",
        duration(result.seconds),
    )
