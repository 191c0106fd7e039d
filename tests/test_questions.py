"""`make figures STUDY=… VARIANTS=…`, and which question a study with mixed runs answers."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cbs_lightning.analysis.study import Question, read
from cbs_lightning.errors import UserError
from cbs_lightning.reporting import study_files
from cbs_lightning.reporting.figures.__main__ import main
from cbs_lightning.results import store
from cbs_lightning.results.result import answer
from tests.studies import make_run


@pytest.fixture
def study(tmp_path) -> Path:
    folder = tmp_path / "outputs" / "mixed"
    for batch_size in (8, 16, 32):
        for optimizer in ("adam", "sgd"):
            make_run(folder, optimizer, batch_size, 3, falling=True)
    return folder


@pytest.mark.parametrize(
    ("variants", "runs"), [("ad*", 3), ("adam", 3), ("sgd, adam", 6), ("*", 6), (None, 6)]
)
def test_some_variants_alone(study, variants, runs):
    found, _ = read(study, Question(variants=variants))
    assert found is not None and len(found.runs) == runs


def test_a_variant_with_a_comma_in_its_name(study):
    make_run(study, "adam", 8, 3, variant="adam betas=0.8,0.99")
    for variants in ("adam betas=0.8,0.99", "adam betas*"):
        found, _ = read(study, Question(variants=variants))
        assert found is not None and len(found.runs) == 1


def test_a_variant_that_no_run_has_is_refused(study):
    with pytest.raises(UserError, match=r"VARIANTS=adm: did you mean adam\? mixed has: adam, sgd"):
        read(study, Question(variants="sgd,adm"))


def test_the_summary_keeps_every_run(study, monkeypatch, capsys):
    monkeypatch.setattr(study_files, "_write_figures", lambda *_: "")
    monkeypatch.setattr(sys, "argv", ["figures", str(study.parent)])
    main()
    before = (study / "summary.csv").read_bytes()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["figures", "--variants=adam", str(study.parent)])
    main()
    out = capsys.readouterr().out
    assert "3 runs" in out and "sgd" not in out
    assert (study / "summary.csv").read_bytes() == before


def test_a_study_that_is_not_there_is_told_with_those_that_are(study, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["figures", "--study=mixd", str(study.parent)])
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == "error: STUDY=mixd: did you mean mixed? allowed: mixed"


def test_the_question_is_explained_where_runs_were_asked_for_different_things(study):
    found, _ = read(study)
    assert found is not None and not any("asked for" in line for line in found.summary_lines())
    (run, *_) = found.runs
    other = replace(found.request, threshold=1.5)
    store.publish(run.directory, answer(run.result, run.trajectory, other))
    found, _ = read(study)
    assert found is not None
    assert found.summary_lines()[1].startswith("  5 of 6 runs were asked for this, the others")
    found, _ = read(study, Question(loss=0.7))
    assert found is not None and not any("asked for" in line for line in found.summary_lines())
