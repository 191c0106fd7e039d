"""The end of a sweep: what it prints and what it writes come from one computation."""

import json

from cbs_lightning.sweep import report
from tests.conftest import TINY


def test_what_is_printed_is_not_fitted_again_for_the_figures(cli, tmp_path, monkeypatch):
    printed, written = [], []
    recommend = report.recommend
    monkeypatch.setattr(
        report, "recommend", lambda curve, *rest: printed.append(curve) or recommend(curve, *rest)
    )
    monkeypatch.setattr(report, "_write", lambda study, _: written.append(study))
    given = ("-m", *TINY, "stop.loss=1.8", "stop.max_epochs=4", f"output_dir={tmp_path}")
    rates = "optimizer.lr=0.001,0.003"
    first = cli(*given, "batch_size=64,128", rates)
    assert first.code == 0 and len(printed) == 3  # the third has the better rate at each size
    printed.clear()
    outcome = cli(*given, "batch_size=256", rates, "report=true")
    assert outcome.code == 0, outcome.err
    (earlier,) = [line for line in outcome.out.splitlines() if line.startswith("With 4 earlier")]
    assert "adam: b = 64, 128" in earlier and "adam lr=0.003: b = 64, 128" in earlier
    (study,) = written
    assert len(printed) == 3
    assert all(a is b for a, b in zip(printed, study.recommended_curves, strict=True))
    lines = [line for found in study.recommendations for line in found.summary_lines()]
    assert set(lines) <= set(outcome.out.splitlines())


def test_a_sweep_over_thresholds_and_rules_says_which_answer_is_which(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("cbs_lightning.reporting.study_files._write_figures", lambda *_: "")
    given = ("-m", *TINY, "stop.max_epochs=4", f"output_dir={tmp_path}", "batch_size=128,256")
    outcome = cli(*given, "stop.loss=1.9,1.8", "stop.rule=epoch,middle", "report=true")
    assert outcome.code == 0, outcome.err
    answers = [line for line in outcome.out.splitlines() if line.startswith("adam (")]
    for loss in (1.9, 1.8):
        for rule in ("rule epoch", "rule middle over 1,797 samples"):
            assert sum(line.startswith(f"adam (loss <= {loss}, {rule}): ") for line in answers) == 1
    assert len(answers) == 4
    assert outcome.out.count("loss <= 1.9, rule epoch") == 3  # the answer, and a row for each run
    assert outcome.out.count("Wall-clock times") <= 1
    (answer,) = tmp_path.glob("*/recommendation.json")
    stored = json.loads(answer.read_text())["variants"]
    assert {(each["threshold"], each["rule"]) for each in stored} == {
        (loss, rule) for loss in (1.9, 1.8) for rule in ("epoch", "middle")
    }
    assert len(stored) == 4


def test_every_study_of_a_sweep_has_an_answer_of_its_own(cli, tmp_path):
    """Nets of two studies once made one curve, and K was the mean of theirs."""
    given = ("-m", *TINY, "stop.loss=1.8", f"output_dir={tmp_path}", "study=one,other")
    outcome = cli(*given, "batch_size=128,256")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    at = [lines.index(f"{name}:") for name in ("one", "other")]
    answers = [number for number, line in enumerate(lines) if line.startswith("adam tiny: ")]
    assert len(answers) == 2 and at[0] < answers[0] < at[1] < answers[1]
    assert sum("(2 runs, seed 0)" in line for line in lines) == 2


def test_a_run_counts_once_however_often_a_sweep_asks_for_it(cli, tmp_path):
    """Of two budgets the one that tells more: a missed threshold is not that of another seed."""
    given = ("-m", *TINY, "stop.loss=1.8", f"output_dir={tmp_path}", "batch_size=128,256")
    outcome = cli(*given, "stop.max_steps=1,150", "checkpoint.every_seconds=60,61")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert sum(" exhausted " in line for line in lines) == 4  # rows of the table: all jobs
    assert sum("(2 runs, seed 0)" in line for line in lines) == 1
    assert "at no batch size" not in outcome.out
