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
