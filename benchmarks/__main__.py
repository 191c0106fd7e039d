"""All that is measured, or some parts of it: `python -m benchmarks [--every] [part ...]`."""

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import (
    callback,
    coverage,
    figures,
    growth,
    memory,
    noise,
    optimizers,
    pages,
    quadratics,
    rules,
    search,
    start,
    steps,
    switches,
    throughput,
)
from benchmarks.outcome import Finding, Outcome, Table, Verdict
from cbs_lightning.results import provenance as record
from cbs_lightning.results.store import run_directories
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.resources.threads import cores

WIDTH = 140  # of a log's lines
UNUSUAL = (
    "quadratics",
    "switches",
    "optimizers",
    "search",
    "coverage",
)  # only where they are asked for
STYLES = {Verdict.AIM: "green", Verdict.MET: "green", Verdict.UNCLEAR: "yellow"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parts: dict[str, Callable[[Callable[[str], None]], Outcome]] = {
        "steps": partial(steps.run, every=False),
        "growth": growth.run,
        "callback": callback.run,
        "throughput": throughput.run,
        "start": start.run,
        "memory": memory.run,
        "pages": pages.run,
        "figures": figures.run,
        "noise": noise.run,
        "quadratics": quadratics.run,
        "switches": switches.run,
        "optimizers": optimizers.run,
        "search": search.run,
        "coverage": coverage.run,
    }
    usual = [name for name in parts if name not in UNUSUAL]
    of_runs = {"rules": rules.run}
    every = ", ".join([*parts, *of_runs])
    parser.add_argument("parts", nargs="*", help=f"of {every}; without any: {', '.join(usual)}")
    parser.add_argument("--every", action="store_true", help="all combinations of a step's")
    parser.add_argument("--runs", type=Path, help="a study, for rules, search, optimizers")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench.json"))
    given = parser.parse_args()
    if unknown := set(given.parts) - {*parts, *of_runs}:
        parser.error(f"{' '.join(sorted(unknown))}: allowed: {every}")
    if given.runs is None and (needing := sorted(of_runs.keys() & set(given.parts))):
        parser.error(f"{' '.join(needing)}: needs --runs, a study")
    if given.runs is not None:
        if not given.runs.is_dir() or not run_directories(given.runs):
            parser.error(f"--runs {given.runs}: no runs of a study")
        parts["search"] = partial(search.run, study=given.runs)
        parts["optimizers"] = partial(optimizers.run, study=given.runs)
        parts |= {name: partial(part, study=given.runs) for name, part in of_runs.items()}
    try:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.touch()
    except OSError as error:
        parser.error(f"--output {given.output}: {error.strerror}")
    if given.every:
        parts["steps"] = partial(steps.run, every=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    started = time.monotonic()

    def report(what: str) -> None:
        console.print(f"[dim]{timedelta(seconds=round(time.monotonic() - started))} {what}[/dim]")

    took = "" if given.parts or given.every else ", about 10 minutes on two"
    console.print(f"{cores()} cores{took}; a ratio is the median of rounds")
    outcomes = {}
    for name in given.parts or usual:
        outcomes[name] = parts[name](report)
        for table in outcomes[name].tables:
            show(console, table)
    findings = [finding for outcome in outcomes.values() for finding in outcome.findings]
    if findings:
        show(console, summary(findings))
    write(given.output, outcomes)
    console.print(f"{timedelta(seconds=round(time.monotonic() - started))}; {given.output}")


def summary(findings: list[Finding]) -> Table:
    rows = []
    for finding in findings:
        style = STYLES.get(finding.verdict, "red")
        verdict = f"[{style}]{finding.verdict}[/{style}]"
        median, worst = f"{finding.median:.3g}", f"{finding.worst}, {finding.where}"
        rows.append([finding.target.what, str(finding.target), median, worst, verdict])
    return Table("Targets", ["", "must be", "median", "worst", ""], rows)


def show(console: Console, table: Table) -> None:
    """In a log as Markdown."""
    form = box.HEAVY_HEAD if console.is_terminal else box.MARKDOWN
    drawn = RichTable(title=table.title, title_justify="left", box=form)
    for column in table.columns:
        drawn.add_column(column)
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)


def write(path: Path, outcomes: dict[str, Outcome]) -> None:
    found = {
        "machine": record.machine(),
        "versions": record.versions(),
        "parts": {name: outcome.numbers for name, outcome in outcomes.items()},
        "targets": [
            {
                "what": finding.target.what,
                "must": str(finding.target),
                "median": finding.median,
                "worst": finding.worst.median,
                "where": finding.where,
                "verdict": finding.verdict,
            }
            for outcome in outcomes.values()
            for finding in outcome.findings
        ],
    }
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, Interrupted):
        sys.exit("interrupted")
