"""From short branches of a run at several batch sizes to its local critical batch size.

A branch that leaves a run at batch size b shows two things: a quick move to the noise level of b,
and the slower difference in progress. Its second half tells them apart: a line through the log of
its losses ends at the `level` that the branch has come to, and its slope is the progress of a step.
That is a share of the loss, since branches are at different losses by then; times the loss at the
probe it is the `decrease`. Over the branches of a probe,

    level = L∞ + N/b        decrease = a - c/b,

so that (a - c/b)/b, the decrease per gradient, is largest at the local critical batch size 2c/a.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.noise.record import Interval, Probe

Floats = NDArray[np.float64]

SETTLED = 0.5  # of a branch's steps, after which it is taken to be at its noise level
DRAWS = 20_000  # of a and c, for an interval of their ratio
LEVEL = 0.9


@dataclass(frozen=True)
class Branch:
    """Losses of a branch at some of its steps, the first being step 0, on samples held fixed."""

    batch_size: int
    steps: tuple[int, ...]
    loss: tuple[float, ...]

    @property
    def line(self) -> tuple[float, float] | None:
        """`level` and `decrease`; None unless the loss stayed finite, and above 0."""
        settled = [at for at, step in enumerate(self.steps) if step >= SETTLED * self.steps[-1]]
        if len(settled) < 2 or not all(0 < each < math.inf for each in self.loss):
            return None
        steps, losses = ([values[at] for at in settled] for values in (self.steps, self.loss))
        slope, end = np.polyfit(np.array(steps) - self.steps[-1], np.log(losses), 1)
        return math.exp(end), -float(slope) * self.loss[0]

    def to_dict(self) -> dict[str, Any]:
        """As in `noise.json`; a loss that is not finite is None there."""
        line = self.line
        return {
            "batch_size": self.batch_size,
            "steps": list(self.steps),
            "loss": [each if math.isfinite(each) else None for each in self.loss],
            "decrease_per_step": line[1] if line is not None else None,
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Branch":
        losses = tuple(math.nan if each is None else float(each) for each in values["loss"])
        return cls(values["batch_size"], tuple(values["steps"]), losses)


@dataclass(frozen=True)
class LocalFit:
    """What the branches of one probe say, by the names of a `Probe`."""

    level_limit: float | None = None  # L∞
    noise_level: float | None = None  # N
    a_branches: float | None = None
    a_branches_se: float | None = None
    c_branches: float | None = None
    c_branches_se: float | None = None
    local_critical_batch: float | None = None  # 2c/a
    local_critical_batch_interval: Interval | None = None  # 90 %; open ends are 0 and inf
    local_critical_batch_reason: str | None = None  # why there is none


def fit_branches(branches: Sequence[Branch]) -> LocalFit:
    """The lines of a probe's branches against 1/b, by least squares.

    What branches of b samples scatter by is taken to have a variance in proportion to 1/b; its size
    is that of the residuals, so that what does not follow the two forms widens the interval too.
    """
    lines = [(each.batch_size, line) for each in branches if (line := each.line) is not None]
    if len({size for size, _ in lines}) < 2:
        too_few = "fewer than two batch sizes have branches whose losses stay finite and above 0"
        return LocalFit(local_critical_batch_reason=too_few)
    sizes = np.array([size for size, _ in lines], np.float64)
    levels, decreases = (np.array([line[at] for _, line in lines]) for at in (0, 1))
    level = _Regression.of(sizes, levels)
    decrease = _Regression.of(sizes, decreases)
    a, c = float(decrease.values[0]), -float(decrease.values[1])
    errors = decrease.errors
    reason: str | None = None
    if a <= 0:
        reason = "a <= 0: the loss does not fall, even with large batches"
    elif c <= 0:
        reason = "c <= 0: small batches make as much progress in a step as large ones"
    return LocalFit(
        level_limit=float(level.values[0]),
        noise_level=float(level.values[1]),
        a_branches=a,
        a_branches_se=errors[0] if errors is not None else None,
        c_branches=c,
        c_branches_se=errors[1] if errors is not None else None,
        local_critical_batch=2 * c / a if reason is None else None,
        local_critical_batch_interval=decrease.interval_of_critical_batch(),
        local_critical_batch_reason=reason,
    )


@dataclass(frozen=True)
class _Regression:
    """value = x + y/b over some branches: x and y, and their covariance, None without residuals."""

    values: Floats
    covariance: Floats | None
    freedom: int

    @classmethod
    def of(cls, sizes: Floats, measured: Floats) -> "_Regression":
        weights = sizes / sizes.max()
        design = np.stack((np.ones_like(sizes), 1 / sizes), 1)
        normal = design.T @ (weights[:, None] * design)
        values = np.linalg.solve(normal, design.T @ (weights * measured))
        freedom = len(sizes) - 2
        if freedom < 1:
            return cls(values, None, 0)
        residuals = measured - design @ values
        variance = float((weights * residuals**2).sum()) / freedom
        return cls(values, variance * np.linalg.inv(normal), freedom)

    @property
    def errors(self) -> tuple[float, float] | None:
        if self.covariance is None:
            return None
        return float(np.sqrt(self.covariance[0, 0])), float(np.sqrt(self.covariance[1, 1]))

    def interval_of_critical_batch(self) -> Interval | None:
        """Of 2c/a, where decrease = a - c/b: 0 where noise does not slow a run, inf where a <= 0.

        Student's distribution of a and c, drawn from, since a ratio has no simple one.
        """
        if self.covariance is None:
            return None
        rng = np.random.default_rng(0)
        spread = np.sqrt(self.freedom / rng.chisquare(self.freedom, DRAWS))
        away = rng.multivariate_normal((0.0, 0.0), self.covariance, DRAWS)
        drawn = self.values + spread[:, None] * away
        a, c = drawn[:, 0], -drawn[:, 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(a > 0, np.maximum(2 * c / a, 0.0), np.inf)
        ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
        low, high = (float(np.quantile(ratios, end, method="nearest")) for end in ends)
        return low, high


def with_local_fit(probe: Probe) -> Probe:
    """The probe with what its branches say."""
    if not probe.branches:
        return probe
    return replace(probe, **asdict(fit_branches([Branch.of(each) for each in probe.branches])))


def suggest_schedule(
    probes: Sequence[Probe], batch_size: int, total_steps: int
) -> dict[str, int] | None:
    """The batch size from so many samples on, as `{"0": 16, "12000": 32}`; None: not determined.

    At every probe it is the power of two next to the local critical batch size, or an end of the
    branches' batch sizes, beyond which nothing was measured; a batch size never falls, so
    neighbours that would make it fall have their weighted mean, with weights by their intervals.
    Samples are those that the run itself, of `batch_size` samples a step, needed between two
    probes, by the ratio of steps that decrease = a - c/b gives.
    """
    found = [each for each in probes if each.local_critical_batch is not None]
    tried = branch_range(found)
    if tried is None or not any(map(_is_bounded, found)):
        return None
    low, high = map(math.log2, tried)
    logs = [min(max(math.log2(each.local_critical_batch or 1.0), low), high) for each in found]
    allowed = sorted({low, high, *map(float, range(math.ceil(low), math.floor(high) + 1))})
    smooth = _never_falling(logs, [_weight(each) for each in found])
    schedule: dict[str, int] = {}
    samples, sizes = 0.0, 0
    ends = [(one.step + other.step) / 2 for one, other in pairwise(found)]
    edges = [0.0, *ends, float(total_steps)]
    for number, log_size in enumerate(smooth):
        size = round(2 ** min(allowed, key=lambda each: abs(each - log_size)))
        if size > sizes:
            schedule[str(round(samples))] = sizes = size
        steps = edges[number + 1] - edges[number]
        samples += sizes * steps * _ratio_of_steps(2**log_size / 2, batch_size, sizes)
    return schedule


def branch_range(probes: Sequence[Probe]) -> tuple[int, int] | None:
    """The smallest and the largest batch size of all branches; None without any."""
    sizes = [branch["batch_size"] for probe in probes for branch in probe.branches]
    return (min(sizes), max(sizes)) if sizes else None


def schedule_line(schedule: Mapping[str, int] | None, probes: Sequence[Probe]) -> str | None:
    """Ready to paste; says where the branches' batch sizes end, or why there is no schedule.

    None without branches.
    """
    if branch_range(probes) is None:
        return None
    if schedule is None or not any(map(_is_bounded, probes)):
        return (
            "no batch sizes are suggested by its branches: no probe has a local critical batch "
            "size whose interval has two ends"
        )
    pairs = ", ".join(f"{samples}: {size}" for samples, size in schedule.items())
    line = f"batch sizes suggested by its branches (samples: batch size): {{{pairs}}}"
    low, high = branch_range(probes) or (0, 0)
    ends = ((low, "smallest", "smaller"), (high, "largest", "larger"))
    used = [each for each in ends if each[0] in schedule.values()]
    notes = [f"{size} is the {which} of its branches: {than} ones may do better"
             for size, which, than in used]  # fmt: skip
    return "; ".join([line, *notes])


def _ratio_of_steps(pole: float, before: int, after: int) -> float:
    """K at one batch size against K at another, by K = Ab/(b - B₀); 1 next to the pole."""
    if min(before, after) <= pole * 1.25:
        return 1.0
    return (after / (after - pole)) / (before / (before - pole))


def _is_bounded(probe: Probe) -> bool:
    """Whether the branches of a probe tell the local critical batch size from all others."""
    interval = probe.local_critical_batch_interval
    if probe.local_critical_batch is None or interval is None:
        return False
    return interval[0] > 0 and interval[1] < math.inf


def _weight(probe: Probe) -> float:
    interval = probe.local_critical_batch_interval
    if interval is None or not _is_bounded(probe):
        return 0.1  # an octave and a half or more
    return 1 / max(0.1, math.log2(interval[1] / interval[0])) ** 2


def _never_falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, by weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, before, length = blocks.pop()
            both = before + block[1]
            block = ((mean * before + block[0] * block[1]) / both, both, length + block[2])
        blocks.append(block)
    return [mean for mean, _, length in blocks for _ in range(length)]
