"""A run that is told to stop in a probe stops at once, and makes the probe when it resumes."""

import signal
from dataclasses import replace

import pytest

from cbs_lightning.callbacks.probes import branches
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.noise.record import FILE, Cost
from cbs_lightning.results.store import CHECKPOINT
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.test_branches import BRANCHES
from tests.test_probes import PROBES, RESTLESS, RESUMED, record_of
from tests.test_restart import assert_same_runs
from tests.test_theorem_measured import LINEAR, OPTIMIZERS, THEOREM

THEOREM_OF_SGD = [*LINEAR, *OPTIMIZERS["sgd"], *THEOREM, "noise.samples=256"]
IN_A_BRANCH = 20  # passes
CASES = {
    "gradients, fast": ([*RESTLESS, *PROBES], 3),
    "gradients, general": ([*RESUMED, *PROBES], 3),
    "a schedule": ([*RESTLESS, *PROBES, "warmup_samples=3000"], 3),
    "branches, fast": ([*RESTLESS, *BRANCHES], IN_A_BRANCH),
    "branches, general": ([*RESUMED, *BRANCHES], IN_A_BRANCH),
    "own steps": ([*RESTLESS, *PROBES, "optimizer=lion"], IN_A_BRANCH),
    "schedule-free": ([*RESTLESS, *PROBES, "optimizer=schedule_free"], 3),
    "the theorem": (THEOREM_OF_SGD, 2),
}


def stopped_in_a_probe(monkeypatch, cfg, passes):
    """A signal after so many passes of the first probes; returns how many passes followed."""
    loss, made = Objective._loss, []

    def told_to_stop(self, part):
        found = loss(self, part)
        made.append(self.step)
        if len(made) == passes:
            signal.raise_signal(signal.SIGTERM)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Objective, "_loss", told_to_stop)
        with pytest.raises(Interrupted):
            run(cfg)
    return len(made) - passes


def without_times(record):
    return replace(record, cost=replace(record.cost, seconds=0.0, share_of_run=None))


@pytest.mark.parametrize("case", CASES)
def test_it_stops_at_once_and_ends_as_if_it_had_not(case, tmp_path, monkeypatch):
    monkeypatch.setattr(branches, "HELD_SAMPLES", 64)
    arguments, passes = CASES[case]
    undisturbed, cfg = (
        compose([*arguments, f"output_dir={tmp_path / name}"]) for name in ("whole", "stopped")
    )
    run(undisturbed)
    assert stopped_in_a_probe(monkeypatch, cfg, passes) == 0
    directory = run_directory(cfg)
    assert not (directory / FILE).exists() and list(directory.rglob(CHECKPOINT))
    assert stopped_in_a_probe(monkeypatch, cfg, 1) == 0  # in the same probe, made again
    run(cfg)
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")
    one, other = (record_of(run_directory(each)) for each in (undisturbed, cfg))
    assert one.probes and without_times(other) == without_times(one)
    assert one.cost != Cost()


def test_a_stop_in_the_last_steps_leaves_the_probe_to_a_repeat(tmp_path, monkeypatch):
    same = [*RESTLESS, *PROBES, "stop.max_steps=40"]
    whole, cfg = (compose([*same, f"output_dir={tmp_path / name}"]) for name in ("whole", "told"))
    run(whole)
    step = record_of(run_directory(whole)).probes[0].step
    ends = [f"stop.max_steps={step}"]
    whole, cfg = (
        compose([*same, *ends, f"output_dir={tmp_path / name}"]) for name in ("one", "other")
    )
    run(whole)
    stopped_in_a_probe(monkeypatch, cfg, 3)
    assert not (run_directory(cfg) / FILE).exists()
    run(cfg)
    one, other = (record_of(run_directory(each)) for each in (whole, cfg))
    assert one.probes and other.probes == one.probes
