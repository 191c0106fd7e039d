"""`make figures STUDY=… VARIANTS=…`, and which question a study with mixed runs answers."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cbs_lightning.analysis.study import Question, read
from cbs_lightning.errors import UserError
from cbs_lightning.reporting import study_files
from cbs_lightning.reporting.figures.__main__ import main
from cbs_lightning.reporting.prediction import main as main_of_prediction
from cbs_lightning.reporting.report.__main__ import main as main_of_report
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


def files_of(folder: Path) -> dict[str, bytes]:
    """Those that are made of runs, `figures` apart."""
    names = ("summary.csv", "recommendation.json", "report.html", "tables/variants.md")
    return {name: (folder / name).read_bytes() for name in names}


def test_another_question_replaces_nothing_of_the_studys_own(study, monkeypatch, capsys):
    """Its figures and answer once took the place of the study's, beside a report of the other."""
    monkeypatch.setattr(study_files, "_write_figures", lambda *_: "")

    def ask(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["figures", *options, str(study.parent)])
        main()
        main_of_report()
        return capsys.readouterr().out

    ask()
    before, swept = files_of(study), (study / "_sweep").stat().st_mtime_ns
    folders = {path for path in study.iterdir() if path.is_dir()}
    out = ask("--variants=adam", "--loss=0.6", "--rule=window")
    assert "3 runs" in out and "sgd" not in out
    other = study / "loss_0.6_window_variants_adam"
    assert str(other / "recommendation.json") in out and str(other / "report.html") in out
    report = files_of(other)["report.html"].decode()
    assert '"runs_at":"../"' in report and '"runs_at":""' in before["report.html"].decode()
    assert {path for path in study.iterdir() if path.is_dir()} == folders | {other}
    assert (study / "_sweep").stat().st_mtime_ns == swept
    usual = read(study)[0].request
    ask(f"--loss={usual.threshold:g}", f"--rule={usual.rule}")  # the study's own, in other words
    assert files_of(study) == before
    assert {path for path in study.iterdir() if path.is_dir()} == folders | {other}
    assert len(read(study)[0].runs) == 6  # which the folder is none of


def test_a_link_in_place_of_the_folder_is_not_followed(study, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (study / "loss_0.6").symlink_to(tmp_path / "elsewhere")
    for command in (main, main_of_report):
        monkeypatch.setattr(sys, "argv", ["figures", "--loss=0.6", str(study.parent)])
        with pytest.raises(SystemExit, match=r"error: .*loss_0\.6: a symbolic link"):
            command()
    assert list((tmp_path / "elsewhere").iterdir()) == []


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


def test_a_question_that_no_run_can_answer_leaves_the_other_studies_alone(
    study, monkeypatch, capsys
):
    """It once ended in a traceback, and the other studies were not drawn."""
    make_run(study.parent / "later", "adam", 8, 300, falling=True)
    monkeypatch.setattr(sys, "argv", ["figures", "--loss=1e-9", str(study.parent)])
    main()
    out = capsys.readouterr().out
    for name in ("mixed", "later"):
        assert f"{name}: loss <= 1e-09" in out
        assert (study.parent / name / "loss_1e-09" / "recommendation.json").exists()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--study=mixd"], "STUDY=mixd: did you mean mixed? allowed: mixed"),
        (["--published=nowhere"], "PUBLISHED=nowhere: no folder with CSV files of studies"),
        (["--loss=0.5,,0.2"], "LOSS=0.5,,0.2: must be numbers > 0, separated by commas"),
        (["--", ""], "OUTPUT_DIR=: must name a directory"),
    ],
)
def test_a_question_about_predictions_is_checked(study, monkeypatch, typed, told):
    """These were ignored, with an exit code of 0."""
    output_dir = [] if "--" in typed else [str(study.parent)]
    monkeypatch.setattr(sys, "argv", ["prediction", *typed, *output_dir])
    with pytest.raises(SystemExit) as error:
        main_of_prediction()
    assert error.value.code == f"error: {told}"
