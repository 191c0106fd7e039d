"""A study's variants beside each other: `tables/variants.md`."""

import re
from dataclasses import replace

import pytest

from cbs_lightning.analysis.curves import curves
from cbs_lightning.analysis.recommendation import CheapRange
from cbs_lightning.analysis.study import Study, read
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.reporting.variants_table import answer_table, markdown_table
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from tests.studies import make_run

SIZES = (4, 8, 16, 32, 64, 128)


@pytest.fixture
def study(tmp_path) -> Study:
    directory = tmp_path / "study"
    for place, size in enumerate(SIZES):
        for seed in (0, 1, 2):
            epochs = 2 + seed + 2 * abs(place - 3)
            make_run(directory, "sgd", size, 2 * epochs, seed=seed)
            make_run(directory, "adam", size, epochs, seed=seed, variant="adam lr=0.1",
                     reached=size < 128 or seed > 0)  # fmt: skip
    for size in SIZES[:2]:
        make_run(directory, "mine", size, 5)
    found, _ = read(directory)
    assert found is not None
    return found


def test_every_variant_has_its_answer(study):
    columns, rows = answer_table(study)
    assert columns == ["", "lr", "least at b", "fitted b* (90 %)", "within 10 %", "least K·b"]
    assert list(rows) == ["sgd", "adam lr=0.1", "mine"]  # by family
    name, lr, least, fitted, within, sfo = rows["adam lr=0.1"]
    assert (name, lr, least) == ("adam", "0.001", "32")
    assert sfo == "3,072 (2,048 to 4,096)"  # 32 steps an epoch
    (answer,) = [one for one in study.recommendations if one.optimizer == "adam"]
    low, high = answer.interval
    assert fitted == f"{answer.critical_batch:.0f} ({low:.0f} to {high:.0f})"
    assert within.split()[0] == str(answer.range.low)
    assert rows["mine"][3].startswith("- (")


def test_a_range_that_is_not_sure_has_a_question_mark(study, monkeypatch):
    for confidence, shown in ((0.95, "16 to 32"), (0.5, "16 to 32 ?")):
        cheap = CheapRange(16, 32, 0.1, confidence)
        answers = [replace(one, range=cheap) for one in study.recommendations]
        monkeypatch.setitem(study.__dict__, "recommendations", answers)
        assert {row[4] for row in answer_table(study)[1].values()} == {shown}


def test_learning_rates_that_differ_are_a_range(study, monkeypatch):
    scaled = [replace(one, lr=one.batch_size / 1000) for one in study.answers]
    monkeypatch.setitem(study.__dict__, "curves", curves(scaled))
    assert answer_table(study)[1]["sgd"][1] == "0.004 to 0.128"


def test_names_are_text_in_the_tables():
    table = markdown_table(["", "b"], [["a | b](http://evil.example) `c`", "8"]])
    assert table.splitlines()[2] == r"| a \| b\](http\://evil.example) \`c\` | 8 |"


def test_a_run_that_was_interrupted_counts_neither_way(study):
    run = make_run(study.directory, "mine", 16, 5, reached=False)
    (directory,) = study.directory.glob("mine-b16-*")
    store.write_result(directory, replace(run, status=Status.INTERRUPTED, ended=Status.INTERRUPTED))
    write_study(study.directory)
    cells = (study.directory / "tables" / "variants.md").read_text().splitlines()[-1].split(" | ")
    assert cells[3] == "-"


def test_figures_write_both_tables(study):
    lines = write_study(study.directory)
    path = study.directory / "tables" / "variants.md"
    assert any(str(path) in line for line in lines)
    answers, sfo = path.read_text().split("\n\n")
    cells = [re.split(r" *\| *", line)[1:-1] for line in answers.splitlines()]
    columns, rows = answer_table(study)
    assert cells[0] == columns and cells[2:] == list(rows.values())
    cells = [re.split(r" *\| *", line)[1:-1] for line in sfo.splitlines()]
    assert cells[0] == ["K·b", *(f"b = {size}" for size in SIZES)]
    assert [row[0] for row in cells[2:]] == ["sgd", "adam", "mine"]
    assert cells[3][4] == "3,072 (2,048 to 4,096)" and cells[3][6] == "2 of 3 reached"
    assert cells[4][3:] == [""] * 4
