"""Runs that were not made alike: what is told of them, and what is not compared."""

import json

import pytest

from cbs_lightning.analysis.conditions import describe_conditions, why_seconds_differ
from cbs_lightning.analysis.study import read
from cbs_lightning.config.identity import run_directory
from cbs_lightning.reporting.figures import figures_of
from cbs_lightning.reporting.report.content import content
from cbs_lightning.results import provenance
from cbs_lightning.results.store import read_run
from cbs_lightning.training.run import run
from tests.studies import make_run, make_study

OTHER = "another machine, 64 cores, Linux 6"


def figures(study):
    found, _ = read(study)
    return dict(figures_of(found))


def legend(figure):
    return [text.get_text() for own in figure.legends for text in own.get_texts()]


def test_runs_that_were_made_alike_say_nothing(tmp_path):
    make_study(tmp_path / "study")
    drawn = figures(tmp_path / "study")
    assert not any("made on" in figure.axes[0].get_title(loc="left") for figure in drawn.values())
    assert any("fastest of those run" in text for text in legend(drawn["seconds"]))


def test_another_machine_is_told_in_every_caption_and_per_run(tmp_path):
    make_study(tmp_path / "study")
    make_run(tmp_path / "study", "adam", 64, 9, machine=OTHER, threads=4)
    study, _ = read(tmp_path / "study")
    drawn = figures(tmp_path / "study")
    assert {"sfo", "steps", "seconds", "tradeoff", "losses_adam"} <= drawn.keys()
    for figure in drawn.values():
        title = figure.axes[0].get_title(loc="left")
        assert title.endswith("\nmade on 2 machines, with 1 or 4 threads: K may differ a little")
    assert f"cpu, 4 threads, {OTHER}" in {run["device"] for run in content(study)["runs"]}


def test_another_version_of_the_system_is_no_other_machine(tmp_path):
    make_run(tmp_path / "study", "adam", 4, 3)
    make_run(tmp_path / "study", "adam", 8, 3, machine="a machine, 2 cores, Linux 7")
    study, _ = read(tmp_path / "study")
    assert describe_conditions(study.answers) == why_seconds_differ(study.answers) == ""


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"machine": OTHER}, "not comparable: not all on the same machine"),
        ({"waited": 0.4}, "not comparable: 1 of 9 runs waited for a core"),
        ({"waited": None}, "comparable only if the machine was idle, which is not known"),
    ],
)
def test_seconds_that_do_not_compare_are_not_joined_and_have_no_least(tmp_path, made, reason):
    make_study(tmp_path / "study")
    make_run(tmp_path / "study", "adam", 64, 9, **made)
    drawn = figures(tmp_path / "study")
    seconds, tradeoff = drawn["seconds"], drawn["tradeoff"]
    said = f"Seconds are {reason}"
    assert said in " ".join(legend(seconds)).replace("\n", " ") and said in legend(tradeoff)
    assert not any("fastest" in text for text in legend(seconds) + legend(tradeoff))
    points = [line for line in seconds.axes[0].lines if len(line.get_xdata()) > 1]
    points += [line for line in tradeoff.axes[1].lines if len(line.get_xdata()) > 1]
    assert points and all(line.get_linestyle() == "None" for line in points)
    assert not any(line.get_marker() == "*" for line in seconds.axes[0].lines)
    assert any("least SFO" in text for text in legend(drawn["sfo"]))


def test_a_run_resumed_on_another_machine_says_so(tiny, monkeypatch, capsys):
    kept = ("checkpoint.keep=true", "stop.loss=0.01", "threads=1")
    run(tiny(*kept, "stop.max_steps=16"))
    monkeypatch.setattr(provenance, "processor", lambda: "another machine, 64 cores")
    resumed = run(tiny(*kept, "stop.max_steps=32"))
    assert resumed.moved and "; from step 16: 1 thread of another machine" in resumed.machine
    assert "processor was" in capsys.readouterr().out
    assert why_seconds_differ([resumed]) == "not comparable: not all on the same machine"
    again = run(tiny(*kept, "stop.max_steps=48", "threads=2"))
    assert again.machine.count("; from step ") == 1 and "step 32: 2 threads of" in again.machine


def test_a_run_resumed_where_it_began_does_not(tiny):
    kept = ("checkpoint.keep=true", "stop.loss=0.01", "threads=1")
    first = run(tiny(*kept, "stop.max_steps=16"))
    resumed = run(tiny(*kept, "stop.max_steps=32"))
    assert resumed.machine == first.machine and not resumed.moved


def test_the_time_without_a_core_is_recorded_and_survives_a_restart(tiny, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(
        "cbs_lightning.callbacks.recorder._seconds_without_core", lambda: next(clock)
    )
    kept = ("checkpoint.keep=true", "stop.loss=0.01")
    assert run(tiny(*kept, "stop.max_steps=16")).waited == 1.0  # seconds a look, in no time at all
    monkeypatch.setattr(
        "cbs_lightning.callbacks.recorder._seconds_without_core", lambda: float("nan")
    )
    cfg = tiny(*kept, "stop.max_steps=32")
    assert run(cfg).waited is None
    stored = json.loads((run_directory(cfg) / "result.json").read_text())
    assert stored["waited"] is None and read_run(run_directory(cfg)).result.waited is None
