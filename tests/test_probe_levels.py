"""When probes are due as a loss falls, and how many steps each stands for."""

import numpy as np
import pytest

from cbs_lightning.callbacks.probes.schedule import Descent, reading_rule, steps_stood_for
from cbs_lightning.results.trajectory import Rule, RuleName, Trajectory, last_reading


def probed_at(losses, threshold=0.1, number=5, window=1):
    """The losses after which a probe is due, in a run with one sample per step."""
    descent, found = Descent(threshold, window, number), []
    for loss in losses:
        descent.add(loss, 1)
        if descent.is_due():
            found.append(descent.reading)
    return found


def test_levels_are_evenly_spaced_in_log_loss():
    found = np.log(probed_at(np.geomspace(2.3, 0.1, 10_000)))
    assert np.diff(found) == pytest.approx([np.log(0.1 / 2.3) / 5] * 4, rel=0.01)
    assert found[0] == pytest.approx(np.log(2.3) + np.log(0.1 / 2.3) / 10, rel=0.01)
    assert probed_at([0.05, 0.04]) == [] and probed_at([float("nan")] * 3) == []


def test_levels_that_a_step_passes_are_made_up_for():
    falling = np.geomspace(2.3, 0.1, 12)
    assert len(probed_at(falling, number=10)) >= 8
    assert len(probed_at(np.r_[2.3, np.geomspace(0.5, 0.1, 100)], number=10)) == 10


def test_readings_are_those_of_the_rule_also_after_a_restart():
    rng = np.random.default_rng(0)
    loss, size = rng.random(60).astype(np.float32), rng.integers(1, 9, 60).astype(np.int32)
    trajectory = Trajectory(loss, np.zeros(60, np.int32), size)
    rule = Rule(RuleName.WINDOW, 1, 20)
    whole, resumed = Descent(0.0, 20, 3), Descent(0.0, 20, 3)
    for at in range(60):
        if at == 40:
            resumed.resume(trajectory[:40])
        for each in (whole, resumed) if at >= 40 else (whole,):
            each.add(float(loss[at]), int(size[at]))
    wanted = last_reading(trajectory, rule)
    assert whole.reading == resumed.reading == pytest.approx(wanted.loss, rel=1e-12)
    assert whole.samples == resumed.samples == wanted.samples and resumed.steps == 60


def test_each_probe_stands_for_the_steps_nearest_to_it_in_log_loss():
    loss = np.exp(-np.arange(100) / 20).astype(np.float32)
    size = np.full(100, 512, np.int32)
    trajectory = Trajectory(loss, np.zeros(100, np.int32), size)
    rule = reading_rule(10_000, Rule(RuleName.EPOCH, 10, 10_000))
    probed = [(step, float(loss[step - 1])) for step in (11, 32, 91)]
    assert steps_stood_for(trajectory, rule, probed) == [22, 40, 38]
    assert steps_stood_for(trajectory, rule, []) == []
