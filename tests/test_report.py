import csv
import json
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest

from cbs_lightning.analysis.study import read
from cbs_lightning.reporting.report import REPORT, write_report
from cbs_lightning.reporting.report.__main__ import main
from cbs_lightning.reporting.report.page import page
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.results import store
from tests.studies import make_full_study, make_run, make_study


def content(text: str) -> dict:
    (found,) = re.findall(r'<script id="content" type="application/json">(.*?)</script>', text)
    return json.loads(found)


def plain(text: str) -> str:
    """With spaces for those at which no line breaks."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    study = tmp_path_factory.mktemp("report") / "full"
    make_full_study(study)
    write_report(study)
    return study


def test_every_number_is_in_the_summary(full):
    study, _ = read(full)
    with write_summary(full, study.rows).open(newline="") as file:
        rows = {
            (r["variant"], r["batch_size"], r["seed"], r["rule"], float(r["threshold"])): r
            for r in csv.DictReader(file)
        }
    found = content((full / REPORT).read_text())
    names = [variant["name"] for variant in found["variants"]]
    assert {(choice["rule"], choice["threshold"]) for choice in found["choices"]} == {
        key[3:] for key in rows
    }
    for choice in found["choices"]:
        for run, answer in zip(found["runs"], choice["answers"], strict=True):
            key = (names[run["variant"]], str(run["batch_size"]), str(run["seed"]))
            row = rows.pop((*key, choice["rule"], choice["threshold"]))
            shown = dict(zip(found["answer_keys"], answer, strict=True))
            assert (shown.pop("status") or "") == row["status"]
            for name, value in shown.items():
                expected = float(row[name]) if row[name] else None
                assert value == (expected and pytest.approx(expected, rel=1e-4))
    assert rows == {}


def test_the_answer_stands_on_top_also_without_scripts(full):
    study, _ = read(full)
    text = (full / REPORT).read_text()
    static = unescape(text[text.index('<ul id="answers"') : text.index('<details id="unanswered')])
    for found in study.recommendations:
        for line in (found.headline(), *found.details()):
            assert line in plain(static)
    assert "at most\N{SPACE}10\N{NO-BREAK SPACE}%" in static
    choices = {(choice["rule"], choice["threshold"]): choice for choice in content(text)["choices"]}
    asked = choices["epoch", 1.0]
    assert [[*map(plain, says["lines"])] for says in asked["says"]] == [
        [found.headline(), *found.details()] for found in study.recommendations
    ]


def test_variants_without_an_answer_are_folded_also_without_scripts(tmp_path):
    for batch_size in (8, 16):
        make_run(tmp_path / "some", "adam", batch_size, 3)
    make_run(tmp_path / "some", "sgd <b>", 8, 3, reached=False)
    text = plain(page(read(tmp_path / "some")[0]).split("<script")[0])
    answers, folded = text.split('<details id="unanswered">')
    assert "adam: use b = " in answers and "no run reached" not in answers
    assert "1 variant without an answer: sgd &lt;b&gt;" in folded
    make_run(tmp_path / "all", "adam", 8, 3)
    assert '<details id="unanswered" hidden>' in page(read(tmp_path / "all")[0])


@pytest.mark.parametrize("variants", [4, 5])
def test_many_variants_of_one_batch_size_each_are_folded(tmp_path, variants):
    for batch_size in (8, 16):
        make_run(tmp_path / "race", "adam", batch_size, 3)
    for lr in range(variants):
        make_run(tmp_path / "race", "sgd", 8, 3, variant=f"sgd lr={lr + 1}")
    text = plain(page(read(tmp_path / "race")[0]).split("<script")[0])
    answers = text.partition('<details id="unanswered"')[0]
    assert "adam: use b = " in answers and answers.count("only b = 8 was run") == (variants % 5)
    assert ("5 variants without an answer: sgd lr=1" in text) == (variants == 5)


def test_the_curve_has_its_band_and_that_of_one_more_run(full):
    study, _ = read(full)
    (asked,) = [
        choice
        for choice in content((full / REPORT).read_text())["choices"]
        if (choice["rule"], choice["threshold"]) == ("epoch", 1.0)
    ]
    for curve, says in zip(study.curves, asked["says"], strict=True):
        found, shown = curve.comparison, says["curve"]
        if not curve.is_fitted:
            assert shown is None
            continue
        assert shown["steps"] == pytest.approx(found.steps(shown["b"]), rel=1e-3)
        bands = {"": found.band(shown["b"]), "further_": found.prediction_band(shown["b"])}
        for name, (low, high) in bands.items():
            assert shown[f"{name}low"] == pytest.approx(low, rel=1e-3)
            assert shown[f"{name}high"] == pytest.approx(high, rel=1e-3)
        best = says["forms"][0]
        assert best["model"] == found.best.model
        assert best["steps"] == pytest.approx(found.best.steps(best["b"]), rel=1e-3)
        assert says["probability"] == pytest.approx(found.probability, rel=1e-3)
        cheap, *wider = says["ranges"]
        assert cheap["low"] <= says["least"] <= cheap["high"] and len(wider) <= 1


def test_a_threshold_that_some_runs_stopped_before_has_no_answer(tmp_path):
    study = tmp_path / "soon"
    make_run(study, "adam", 8, 3, falling=True)
    for batch_size in (16, 32):
        make_run(study, "adam", batch_size, 3)
    make_run(study, "sgd", 8, 3, falling=True)
    choices = content(page(read(study)[0]))["choices"]
    (stricter,) = [c for c in choices if (c["rule"], c["threshold"]) == ("epoch", 0.5)]
    adam, sgd = stricter["says"]
    assert adam["lines"] == [
        "adam: 2 of 3 runs stopped too early to answer 0.5. "
        "Run again with stop.loss=0.5 to find out."
    ]
    assert adam["least"] is None and adam["forms"] == []
    assert plain(sgd["lines"][0]).startswith("sgd: only b = 8 was run")
    assert [answer[0] for answer in stricter["answers"]] == ["reached", None, None, "reached"]


def test_it_needs_nothing_from_elsewhere(full):
    text = (full / REPORT).read_text()
    assert "default-src 'none'" in text
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', text.split("<script")[0]) == [
        "summary.csv", "recommendation.json", "figures/"
    ]  # fmt: skip


def test_the_same_results_give_the_same_bytes(full):
    study, _ = read(full)
    assert page(study) == (full / REPORT).read_text()


def test_what_was_run_is_told(full):
    ran = {row["key"]: row["values"] for row in content((full / REPORT).read_text())["ran"]}
    assert ran["commit"] == ["0123abc"] and ran["machine"] == ["a machine, 2 cores, Linux 6"]
    assert ran["version of python"] == ["3.11.0"] and ran["stop.rule"] == ["epoch"]
    assert set(ran["batch_size"]) == {"4", "8", "16", "32", "64", "128"}


def test_names_are_text_and_not_markup(tmp_path):
    study = tmp_path / "a & b <i>"
    make_run(study, "adam", 8, 2, variant="adam <!--<script></script><b>&amp;")
    text = page(read(study)[0])
    assert "<i>" not in text.split("<script")[0]
    assert content(text)["variants"][0]["name"] == "adam <!--<script></script><b>&amp;"


def test_the_papers_cells_are_beside(tmp_path):
    study = tmp_path / "cifar10_resnet20"
    make_run(study, "adam", 2048, 3)
    cells = content(page(read(study)[0]))["paper"]
    assert len(cells) == 32
    (measured,) = [cell for cell in cells if cell["status"] == "reached"]
    assert (measured["steps"], measured["paper_seconds"]) == (3, 195.4)
    assert sum(cell["status"] == "not measured" for cell in cells) == 31


def test_a_hundred_runs_fit_into_five_megabytes(tmp_path):
    for seed in range(10):
        for exponent in range(10):
            make_run(tmp_path / "many", "adam", 2**exponent, 12, seed=seed, falling=True)
    assert len(page(read(tmp_path / "many")[0]).encode()) < 5e6


def test_as_a_command(tmp_path, monkeypatch, capsys):
    make_study(tmp_path / "first")
    make_run(tmp_path / "second", "adam", 8, 2)
    broken = next((tmp_path / "first").glob("sgd-b4-*"))
    (broken / store.RESULT).write_text("")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    main()
    out = capsys.readouterr().out
    for name in ("first", "second"):
        assert str(tmp_path / name / REPORT) in out
    assert f"skipped {broken}" in out
    (skipped,) = content((tmp_path / "first" / REPORT).read_text())["skipped"]
    assert skipped.startswith(broken.name)
    shutil.rmtree(tmp_path / "first")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--study", "first"])
    with pytest.raises(SystemExit, match="allowed: second"):
        main()
