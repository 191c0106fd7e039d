"""Which curves K(b) the runs leave possible: one set of them answers every question about b*.

The posterior averages over the families of curves in `families`, each weighted by how probable it
makes the runs. All of its curves weigh the same. Whether K·b has an interior minimum, where, which
batch sizes cost hardly more, the band about the curve and that of a further run are shares of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cbs_lightning.fit.families import Family, Pole, Scaling, Smooth
from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.fit.measurements import Measurements
from cbs_lightning.fit.sampling import sample
from cbs_lightning.fit.scatter import Runs, draw_scatter

CURVES = 1500
PER_OCTAVE = 24  # batch sizes at which K·b is looked at for its minimum
# Prior probabilities: real curves leave every formula. An interior minimum of K·b has about 0.3.
PRIOR = {"scaling": 0.15, "pole": 0.2, "smooth": 0.65}
DRAWN = {"scaling": 0.5, "pole": 0.5, "smooth": 1.0}  # of the curves: formulas need fewer
NOISE = (0.1, 1.2)  # of log K between seeds: median, and standard deviation of the log
# What a curve misses a batch size by: at the median so much, and so much of the noise; and the
# standard deviation of the log
MISFIT, MISFIT_OF_NOISE, MISFIT_SPREAD = 0.01, 0.3, 0.9
LEVEL_SPREAD = 0.4  # standard deviation of a curve's level about the median of the runs


@dataclass(frozen=True)
class Range:
    """Batch sizes that cost little more than the least, and how sure that is.

    Unpacks into its two ends: `low, high = found.range()`.
    """

    low: float
    high: float
    within: float  # of the least K·b
    confidence: float  # probability that all of them, among those run, are within it

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))

    def __contains__(self, batch_size: float) -> bool:
        return self.low <= batch_size <= self.high


@dataclass(frozen=True)
class _FamilyCurves:
    """Curves of one family that are left possible."""

    family: Family
    points: Floats
    level: Floats
    noise: Floats
    misfit: Floats

    def take(self, count: int) -> "_FamilyCurves":
        rows = np.linspace(0, len(self.points) - 1, count).astype(int)
        return _FamilyCurves(
            self.family, self.points[rows], self.level[rows], self.noise[rows], self.misfit[rows]
        )

    def log_steps(self, sizes: Floats) -> Floats:
        return self.family.log_steps(self.points, sizes) + self.level[:, None]


@dataclass(frozen=True, eq=False)
class Posterior:
    """Curves that the runs leave possible, each as probable as the others."""

    draws: tuple[_FamilyCurves, ...]
    families: dict[str, float]  # their probabilities
    first: float  # smallest and largest batch size looked at
    last: float

    def log_steps(self, sizes: ArrayLike) -> Floats:
        """log K of every curve at every batch size; infinite where a curve has none."""
        at = np.atleast_1d(np.asarray(sizes, float))
        return np.vstack([drawn.log_steps(at) for drawn in self.draws])

    @cached_property
    def noise(self) -> Floats:
        """Standard deviation of log K between seeds, of every curve."""
        return np.concatenate([drawn.noise for drawn in self.draws])

    @cached_property
    def misfit(self) -> Floats:
        """Standard deviation of what every curve misses a batch size by."""
        return np.concatenate([drawn.misfit for drawn in self.draws])

    @cached_property
    def grid(self) -> Floats:
        octaves = math.log2(self.last / self.first)
        return np.geomspace(self.first, self.last, max(round(PER_OCTAVE * octaves), 2) + 1)

    @cached_property
    def _log_sfo(self) -> Floats:
        return self.log_steps(self.grid) + np.log(self.grid)

    @cached_property
    def critical(self) -> Floats:
        """b* of every curve: 0 and infinity where K·b is least at an end of the batch sizes."""
        least = np.argmin(self._log_sfo, axis=1)
        found = self.grid[least]
        found = np.where(least == 0, 0.0, found)
        return np.where(least == len(self.grid) - 1, np.inf, found)

    @property
    def interior(self) -> NDArray[np.bool_]:
        """Which curves have a minimum of K·b inside the batch sizes."""
        return (self.critical > 0) & np.isfinite(self.critical)

    @property
    def probability(self) -> float:
        """Of a minimum of K·b inside the batch sizes."""
        return float(self.interior.mean())

    @property
    def critical_batch(self) -> float | None:
        """b*: the median of the curves' that have one."""
        return float(np.median(self.critical[self.interior])) if self.interior.any() else None

    @property
    def scatter(self) -> float:
        """Standard deviation of a run's log K about the curve."""
        return float(np.median(np.hypot(self.noise, self.misfit)))

    def interval(self, level: float) -> tuple[float, float]:
        """Where b* lies with probability `level`: open, 0 or infinite, beyond the batch sizes.

        A curve's b* is known to half a step of the grid; one batch size alone tells nothing.
        """
        if self.first == self.last:
            return 0.0, math.inf
        tail, half_step = (1 - level) / 2, math.sqrt(self.grid[1] / self.grid[0])
        low, high = np.quantile(self.critical, [tail, 1 - tail], method="inverted_cdf")
        return min(float(low) / half_step, self.last), max(float(high) * half_step, self.first)

    def band(self, sizes: ArrayLike, level: float) -> tuple[Floats, Floats]:
        """Between which K of the curve lies with probability `level`, at each batch size."""
        return _central(self.log_steps(sizes), level)

    def prediction_band(self, sizes: ArrayLike, level: float) -> tuple[Floats, Floats]:
        """Between which K of a further run lies with probability `level`, at each batch size."""
        scatter = draw_scatter(np.random.default_rng(0), self.noise, self.misfit)
        return _central(self.log_steps(sizes) + scatter[:, None], level)

    def wild_probability(self, data: Measurements) -> Floats:
        """That the runs of a batch size tell nothing, for each that reached the threshold."""
        runs = Runs.of(data)
        log_steps = self.log_steps(runs.sizes)
        found: Floats = runs.wild_probability(log_steps, self.noise, self.misfit).mean(axis=0)
        return found

    def range(self, sizes: Floats, about: float, within: float, level: float) -> Range:
        """The widest span of the given batch sizes about one that is within so much of the least.

        With at least probability `level`; if none is that sure, the surest one.
        """
        log_sfo = self.log_steps(sizes) + np.log(sizes)
        cheap = log_sfo <= self._log_sfo.min(axis=1, keepdims=True) + math.log1p(within)
        found = []
        for low in range(len(sizes)):
            sure = np.logical_and.accumulate(cheap[:, low:], axis=1).mean(axis=0)
            found += [
                Range(float(sizes[low]), float(sizes[low + more]), within, float(share))
                for more, share in enumerate(sure)
                if sizes[low] <= about <= sizes[low + more]
            ]
        wide = [one for one in found if one.confidence >= level]
        if wide:
            return max(wide, key=lambda one: (one.high / one.low, one.confidence))
        return max(found, key=lambda one: (one.confidence, one.high / one.low))


def _central(log_values: Floats, level: float) -> tuple[Floats, Floats]:
    tail = (1 - level) / 2
    low, high = np.quantile(log_values, [tail, 1 - tail], axis=0, method="inverted_cdf")
    with np.errstate(over="ignore"):  # infinite where no float holds it
        return np.exp(low), np.exp(high)


def posterior(
    data: Measurements,
    reach: tuple[float, float] | None = None,
    curves: int = CURVES,
) -> Posterior:
    """The curves that runs leave possible, of which at least one reached the threshold.

    `reach` widens the batch sizes that are looked at beyond those that were run.
    """
    runs = Runs.of(data)
    looked_at = (*data.batch_sizes, *(reach or ()))
    first, last = float(min(looked_at)), float(max(looked_at))
    families: dict[str, Family] = {
        "scaling": Scaling(first, last),
        "pole": Pole(first, last, runs.sizes[0]),
        "smooth": Smooth(first, last),
    }
    found, log_weight = {}, {}
    for name, family in families.items():
        model = _Model(family, runs)
        with threadpool_limits(limits=1, user_api="blas"):  # matrices too small to share
            points, scatter, log_evidence = sample(model, round(curves * DRAWN[name]))
        found[name] = model.draws(points, scatter)
        log_weight[name] = math.log(PRIOR[name]) + family.log_share + log_evidence
    highest = max(log_weight.values())
    weights = {name: math.exp(value - highest) for name, value in log_weight.items()}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    draws = tuple(drawn.take(round(shares[name] * curves)) for name, drawn in found.items())
    return Posterior(draws, shares, first, last)


@dataclass(frozen=True)
class _Model:
    """A family, the level of its curves and the scatter about them, beside the runs."""

    family: Family
    runs: Runs

    @property
    def parameters(self) -> tuple[int, int]:
        """Those of the family and the level; noise and misfit."""
        return self.family.parameters + 1, 2

    def log_steps(self, points: Floats) -> Floats:
        """log K at the runs."""
        relative = self.family.log_steps(points[:, :-1], self.runs.all_sizes)
        return relative + self._level(points, relative)[:, None]

    def log_likelihood(self, log_steps: Floats, scatter: Floats) -> Floats:
        return self.runs.log_likelihood(log_steps, *_noise_and_misfit(scatter))

    def log_width(self, scatter: Floats) -> Floats:
        found: Floats = np.log(np.hypot(*_noise_and_misfit(scatter)))
        return found

    def draws(self, points: Floats, scatter: Floats) -> _FamilyCurves:
        """The curves that standard normal numbers stand for."""
        own = points[:, :-1]
        level = self._level(points, self.family.log_steps(own, self.runs.all_sizes))
        return _FamilyCurves(self.family, own, level, *_noise_and_misfit(scatter))

    def _level(self, points: Floats, relative: Floats) -> Floats:
        miss = np.median(self.runs.means - relative[:, : len(self.runs.sizes)], axis=1)
        level: Floats = miss + LEVEL_SPREAD * points[:, -1]
        return level


def _noise_and_misfit(scatter: Floats) -> tuple[Floats, Floats]:
    noise = NOISE[0] * np.exp(NOISE[1] * scatter[:, 0])
    misfit = (MISFIT + MISFIT_OF_NOISE * noise) * np.exp(MISFIT_SPREAD * scatter[:, 1])
    return noise, misfit
