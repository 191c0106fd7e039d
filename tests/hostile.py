"""A study as somebody who means harm would send it, and what it must leave alone.

The runs of `make_study` are beside runs with names that are paths,
formulas, markup and escape sequences, lists of files to delete, and links out of the study.
"""

import json
import os
from pathlib import Path
from typing import Any

from cbs_lightning.results import store
from tests.studies import make_run, make_study

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
# Each is the variant and the optimizer of runs. The first have two batch sizes: losses are drawn.
DRAWN = (
    "x/../../../evil",
    r"\input{/etc/passwd}$\evil$",
    f"escape {ESCAPE}",
    "lone \ud800 surrogate, nul \0",
    "CASE",
    "case",
)
NAMES = (
    *DRAWN,
    "/tmp/evil",
    "..",
    ".lock",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1+1",
    "a | b](http://evil.example) `c`",
    "[red]markup[/red] :skull:",
    "two\nlines",
    "<script>alert(1)</script>",
    "events.out.tfevents.1.page",
    "long" * 60,
)
MARKUP = {
    "machine": f"<img src=x onerror=alert(1)>{ESCAPE}",
    "commit": "=cmd|' /C calc'!A0",
    "versions": {"</script><script>alert(1)": "<!--"},
    "configuration": {"</title>": {"[red]": "\x1b[2J"}, "batch_size": "@SUM(1)"},
    "hyperparameters": {"=1": "</td>", "\x7f\x1b": ["\n"]},
}
LINKED_DIRECTORIES = ("figures", "tables", "_sweep")
LINKED_FILES = ("report.html", "summary.csv", "recommendation.json")


def make_hostile(study: Path, outside: Path, *, links: bool = True) -> None:
    """Make the study; what it aims at is in `outside`."""
    make_study(study)
    for name in NAMES:
        for batch_size in (8, 16) if name in DRAWN else (8,):
            make_named_run(study, name, batch_size)
    for lr in (0.1, 0.2):  # with that of the first name's other run, a figure of hyperparameters
        make_named_run(study, NAMES[0], 8, lr=lr)
    make_named_run(study, "values", 8, **MARKUP)
    make_named_run(study, "damaged", 8, steps="<b>1</b>", seconds="=1+1")
    _make_targets(outside)
    if links:
        for name in LINKED_DIRECTORIES:
            (study / name).symlink_to(outside / name)
        for name in LINKED_FILES:
            (study / name).symlink_to(outside / "precious.txt")
    else:
        (study / "figures").mkdir()
        write_list(study / "figures", study, outside)


def make_named_run(study: Path, name: str, batch_size: int, **values: Any) -> Path:
    """A run with nothing special but its name, and whatever else its result is to say."""
    before = set(study.iterdir())
    make_run(study, "adam", batch_size, 3, variant=f"run {len(before)}")
    (directory,) = set(study.iterdir()) - before
    edit_result(directory, {"variant": name, "optimizer": name, **values})
    return directory


def edit_result(directory: Path, changes: dict[str, Any]) -> None:
    """Change what result.json says, with a digest that fits."""
    path = directory / store.RESULT
    values = json.loads(path.read_text())
    del values[store.DIGEST]
    values |= changes
    values[store.DIGEST] = store._digest(values)
    path.write_text(json.dumps(values))


def write_list(figures: Path, study: Path, outside: Path) -> None:
    """A list of figures to delete that are none."""
    precious = outside / "precious.png"
    up = os.path.relpath(precious, figures)
    run = next(study.glob("adam-b8-*")).name
    names = [str(precious), up, f"../{run}/result.json", "..", ".", "", "\0", ".lock", "../.lock"]
    (figures / "linked.png").symlink_to(precious)
    (figures / ".written").write_text("\n".join([*names, "linked.png", "stale.png"]))
    (figures / "stale.png").touch()


def _make_targets(outside: Path) -> None:
    for name in LINKED_DIRECTORIES:
        (outside / name / "thesis").mkdir(parents=True)
        (outside / name / "thesis" / "chapter.tex").write_text("years of work")
        (outside / name / "sfo.png").write_text("a picture")
        (outside / name / ".written").write_text("thesis.png\n")
        (outside / name / "thesis.png").write_text("another")
        (outside / name / ".x.png.host.1.tmp").write_text("not yours")
        (outside / name / "events.out.tfevents.1.h.1.page").write_text("events")
    (outside / "precious.txt").write_text("precious")
    (outside / "precious.png").write_text("precious")


def snapshot(directory: Path, leave_out: Path | None = None) -> dict[str, Any]:
    """All that is below a directory: kinds, times, contents and where links lead."""
    found: dict[str, Any] = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        if leave_out is not None and path.is_relative_to(leave_out):
            continue
        stat = path.lstat()
        if path.is_symlink():
            content: Any = path.readlink()
        else:
            content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, content)
    return found
