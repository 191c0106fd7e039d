"""The end of a sweep: what it prints and what it writes come from one computation."""

from cbs_lightning.sweep import report
from tests.conftest import TINY


def test_what_is_printed_is_not_fitted_again_for_the_figures(cli, tmp_path, monkeypatch):
    printed, written = [], []
    recommend = report.recommend
    monkeypatch.setattr(
        report, "recommend", lambda curve: printed.append(curve) or recommend(curve)
    )
    monkeypatch.setattr(report, "_write", written.append)
    given = ("-m", *TINY, "stop.loss=1.8", "stop.max_epochs=4", f"output_dir={tmp_path}")
    rates = "optimizer.lr=0.001,0.003"
    first = cli(*given, "batch_size=64,128", rates)
    assert first.code == 0 and len(printed) == 3  # the third has the better rate at each size
    printed.clear()
    outcome = cli(*given, "batch_size=256", rates, "report=true")
    assert outcome.code == 0, outcome.err
    assert "With 4 earlier runs of the study:" in outcome.out
    (study,) = written
    assert len(printed) == 3
    assert all(a is b for a, b in zip(printed, study.recommended_curves, strict=True))
    lines = [line for found in study.recommendations for line in found.summary_lines()]
    assert set(lines) <= set(outcome.out.splitlines())
