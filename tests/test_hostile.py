"""Somebody else's study cannot hurt: nothing outside of it changes, and the rest is reported."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cbs_lightning.analysis.curves import curves
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import PartlyDoneError, UserError
from cbs_lightning.files import LinkError
from cbs_lightning.reporting.figures.__main__ import main as figures_main
from cbs_lightning.reporting.report.__main__ import main as report_main
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.reporting.tables import write_tables
from cbs_lightning.results.hparams import write_hparams
from cbs_lightning.results.locks import LOCK
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.results.store import read_study
from cbs_lightning.sweep.live.board import JobState
from cbs_lightning.sweep.live.table import draw
from cbs_lightning.sweep.report import report
from cbs_lightning.training.run import publish_answer, run
from tests.hostile import DRAWN, LINKED_DIRECTORIES, LINKED_FILES, NAMES, make_hostile, snapshot
from tests.studies import make_run, make_study
from tests.test_tensorboard import hparams

ROOT = Path(__file__).parents[1]
ANSWER = "Fewest gradients: b = 8, K·b = 3,000 in 375 steps"


@pytest.fixture
def without_pictures(monkeypatch) -> None:
    monkeypatch.setattr("cbs_lightning.reporting.study_files.write_figures", lambda study: [])


def called(main, monkeypatch, capsys, output_dir) -> tuple[str, list[str]]:
    """What a command prints, and its lines of errors."""
    monkeypatch.setattr(sys, "argv", ["command", str(output_dir)])
    errors = []
    try:
        main()
    except SystemExit as ended:
        errors = str(ended.code).splitlines()
    return capsys.readouterr().out, errors


def assert_plain(text: str) -> None:
    assert all(char.isprintable() for line in text.split("\n") for char in line)


@pytest.mark.parametrize("links", [True, False])
def test_figures_and_report_of_a_hostile_study_change_nothing_outside(tmp_path, links):
    study, outside = tmp_path / "outputs" / "study", tmp_path / "outside"
    make_hostile(study, outside, links=links)
    before = snapshot(tmp_path, study)
    for module in ("figures", "report"):
        done = subprocess.run(
            [sys.executable, "-m", f"cbs_lightning.reporting.{module}", str(study.parent)],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert_plain(done.stdout)
        assert done.returncode == (links and module == "figures"), done.stderr
        assert snapshot(tmp_path, study) == before
        if module == "figures":
            assert ANSWER in done.stdout and "skipped" in done.stdout
    for name in LINKED_FILES:
        assert not (study / name).is_symlink() and "adam" in (study / name).read_text()
    if not links:
        assert not (study / "figures" / "stale.png").exists()
        assert (study / "figures" / "linked.png").is_symlink()
        assert (study / "figures" / "sfo.png").exists()
        read = {run.result.variant for run in read_study(study)[0]}  # none is lost or hidden
        drawn = read & {*DRAWN, "adam", "sgd"}
        assert len(list((study / "figures").glob("losses_*.png"))) == len(drawn)
        assert len(list((study / "figures").glob("hyperparameters_x,*evil_b8.png"))) == 1
        assert len(list((study / "_sweep").glob("*/events*.curve"))) == len(read)


def test_every_link_is_refused_in_a_line_that_names_it(tmp_path, monkeypatch, capsys):
    study, outside = tmp_path / "outputs" / "study", tmp_path / "outside"
    make_hostile(study, outside)
    make_run(tmp_path / "outputs" / "zebra", "adam", 8, 2)
    monkeypatch.setattr("cbs_lightning.reporting.figures.write.figures_of", lambda _: ())
    out, errors = called(figures_main, monkeypatch, capsys, study.parent)
    assert ANSWER in out and "zebra: loss <= 1" in out  # the next study is not left out
    assert all(line.startswith("error: ") for line in errors)
    for name in LINKED_DIRECTORIES:
        assert [line for line in errors if f"{study / name}: a symbolic link" in line]
    rows = list(csv.DictReader((study / "summary.csv").open(newline="")))
    assert {row["variant"] for row in rows} >= {"adam", "sgd"}


def test_a_link_in_place_of_a_lock_is_refused(tmp_path, monkeypatch, capsys, without_pictures):
    study, outside = tmp_path / "outputs" / "study", tmp_path / "outside"
    make_study(study)
    outside.mkdir()
    (study / LOCK).symlink_to(outside / "lock")
    before = snapshot(tmp_path, study)
    for main in (figures_main, report_main):
        _, errors = called(main, monkeypatch, capsys, study.parent)
        assert errors == [
            f"error: {study / LOCK}: a symbolic link, which is not followed; remove it"
        ]
    assert snapshot(tmp_path, study) == before


def test_a_link_at_the_end_of_a_sweep_is_refused_after_all_else_is_written(tmp_path, capsys):
    study, outside = tmp_path / "outputs" / "study", tmp_path / "outside"
    make_study(study)
    outside.mkdir()
    (study / "figures").symlink_to(outside)
    with pytest.raises(PartlyDoneError, match=f"{study / 'figures'}: a symbolic link"):
        report([], [], {study: True})
    out = capsys.readouterr().out
    assert f"  Report: {study / 'report.html'}" in out and f"{study / 'summary.csv'}" in out
    assert list(outside.iterdir()) == []


def test_what_a_search_tells_its_jobs_stays_in_the_study(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "adam-01234567").write_text("precious")
    (tmp_path / "_search").symlink_to(outside)
    for sfo in (100.0, None):
        with pytest.raises(LinkError, match="_search: a symbolic link"):
            SfoLimit(tmp_path / "_search" / "adam-01234567").write(sfo)
    assert (outside / "adam-01234567").read_text() == "precious"


def test_a_run_directory_that_is_a_link_is_read_but_not_written(tiny, tmp_path):
    cfg = tiny("stop.max_steps=2")
    result = run(cfg)
    directory = run_directory(cfg)
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    assert run(cfg) == result
    with pytest.raises(LinkError, match=f"{directory.name}: a symbolic link"):
        run(tiny("stop.max_steps=4"))
    publish_answer(tiny("stop.max_steps=1"), None)
    assert snapshot(tmp_path / "elsewhere") == before


def test_names_are_text_in_every_table(tmp_path):
    pattern = make_run(tmp_path / "one", "adam", 8, 2)
    results = [replace(pattern, variant=name, optimizer=name) for name in NAMES]
    summary = write_summary(tmp_path, results).read_text()
    paths = write_tables(tmp_path / "tables", "study", curves(results))
    csv_text, markdown, latex = (path.read_text() for path in paths)
    for text in (summary, csv_text, markdown, latex):
        assert_plain(text)
    for text in (summary, csv_text):
        for row in csv.DictReader(text.splitlines()):
            assert not any(cell.startswith(tuple("=+-@")) for cell in row.values())
            assert float(row["seconds"]) == 125.0
    for row in csv.DictReader(summary.splitlines()):
        assert json.loads(row["hyperparameters"]) == {"fused": True}
    assert r"\input" not in latex and r"\textbackslash{}input\{/etc/passwd\}" in latex
    headings = [line for line in markdown.splitlines() if line.startswith("### ")]
    assert len(headings) == len(NAMES)
    assert r"### a \| b\](http\://evil.example) \`c\`" in headings


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_in_tensorboard(tmp_path, name):
    result = make_run(tmp_path / "study", "adam", 8, 2)
    directory = next((tmp_path / "study").iterdir())
    settings = {"optimizer": name, "data": name, "hyperparameters": {name: name}}
    write_hparams(directory, replace(result, variant=name, **settings))
    values, _ = hparams(directory)
    for key in ("variant", "optimizer", "data", "settings"):
        assert_plain(values[key])
        assert "\n" not in values[key]


def test_names_are_text_at_the_end_of_a_sweep(tmp_path, capsys):
    result = make_run(tmp_path / "study", "adam", 8, 2)
    results = [
        replace(result, variant=name, config_hash=f"{number:016x}")
        for number, name in enumerate(NAMES)
        if len(name) < 40
    ]
    directory = tmp_path / "study" / "[red]x\x1b[2J"
    report([*results, None], [directory] * (len(results) + 1), {directory.parent: False})
    out = capsys.readouterr().out
    assert_plain(out)
    for name in ("[red]markup[/red] :skull:", r"escape \x1b]0;owned\x07\x1b[2J", r"two\nlines"):
        assert out.count(name) == 2  # in the table, and in the answer
    assert r"[red]x\x1b[2J" in out


def test_names_are_text_in_the_live_table():
    console = Console(width=100, file=StringIO(), record=True)
    console.print(draw([JobState(1, "adam\x1b[2J[red]\n", 8, 0, 1.0)], 1, 0.0, 100, 30))
    text = console.export_text()
    assert_plain(text)
    assert r"adam\x1b[2J[red]\n" in text


def test_an_error_is_one_line_whatever_it_names():
    assert str(UserError("a\nb\x1b[2J")) == r"a\nb\x1b[2J"
