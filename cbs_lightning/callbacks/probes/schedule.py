"""When a run is probed, and how many of its steps each probe stands for."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cbs_lightning.results.trajectory import (
    Reading,
    Readings,
    Rule,
    RuleName,
    Trajectory,
    last_reading,
)

READING_SAMPLES = 512  # of a loss to compare with levels, which are some 20 % apart


def reading_rule(data_size: int | None, stop: Rule) -> Rule:
    """How probes read the loss: over fewer samples than an epoch, so that short runs have some.

    `stop` is the rule by which the run ends.
    """
    windows = [READING_SAMPLES, data_size or READING_SAMPLES]
    if stop.name is not RuleName.EPOCH:
        windows.append(stop.window)
    return Rule(RuleName.WINDOW, stop.steps_per_epoch, min(windows))


def levels(first: float, threshold: float, number: int) -> list[float]:
    """The middles of as many equal intervals of log loss between a first reading and a threshold.

    >>> [round(level, 3) for level in levels(1.0, 0.01, 2)]
    [0.316, 0.032]
    """
    if not threshold < first < math.inf:
        return []
    return [first * (threshold / first) ** ((each + 0.5) / number) for each in range(number)]


def passed(reading: float, all_levels: Sequence[float]) -> int:
    """How many levels, which fall, a loss is at or below."""
    return sum(reading <= level for level in all_levels)


def steps_stood_for(
    trajectory: Trajectory, rule: Rule, probed: Sequence[tuple[int, float]]
) -> list[int]:
    """The steps of the run that each probe, given by its step and loss, stands for.

    Two neighbours share the steps between them where the loss passes the geometric mean of theirs;
    the first has all before it, the last all after it.
    """
    if not probed:
        return []
    readings = Readings.of(trajectory, rule)
    edges = [0]
    for (step, loss), (next_step, next_loss) in pairwise(probed):
        between = (readings.ends > step) & (readings.ends <= next_step)
        below = readings.means <= math.sqrt(loss * next_loss)
        found = np.flatnonzero(between & below)
        edges.append(int(readings.ends[found[0]]) if len(found) else next_step)
    edges.append(len(trajectory))
    return [end - start for start, end in pairwise(edges)]


def latest_reading(trajectory: Trajectory, rule: Rule) -> Reading | None:
    """None before the rule gives one."""
    if int(trajectory.size.sum(dtype=np.int64)) < rule.window:
        return None
    return last_reading(trajectory, rule)
