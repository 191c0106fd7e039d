"""Posterior over the curves K(b) given the runs so far: what one more run would find and cost.

A search must decide after a single run and thousands of times in a benchmark, so it has a posterior
of its own: that of the fit (`fit.posterior`) samples three families for seconds. This one has a
closed form. A curve is one of several hundred of the form K = A(b + B1)/(b - B0) times a smooth
deviation, a Gaussian process in log b, since measured curves leave every form. Each is weighted by
how probable it makes the runs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr

from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.trials import BatchSizeTrials

PER_OCTAVE = 2  # grid points of b*
BEYOND = 2.0  # octaves by which b* may lie outside the range of batch sizes
# (B0 + B1)/B0: 1 is the paper's form; the larger it is, the flatter K·b is around b*.
RATIOS = 2.0 ** np.arange(-2, 11, 1.5)
HIGHEST = 8.0  # log of K·b over its least, where a curve has no K at all
# Standard deviations of log K with their prior probabilities: between seeds, and about the form.
NOISES = {0.03: 0.3, 0.06: 0.4, 0.12: 0.24, 0.25: 0.05, 0.5: 0.01}
DEVIATIONS = {0.02: 0.4, 0.1: 0.3, 0.3: 0.3}
LENGTH = 1.5  # octaves over which a deviation lasts
LEVEL = 3.0  # standard deviation of log A
CURVES = 1024  # drawn from the posterior


@dataclass(frozen=True, eq=False)
class Posterior:
    """Curves drawn given runs of which at least one reached the threshold."""

    log_sfo: Floats  # (curves, batch sizes): log of K·b without a run's noise
    weights: Floats  # of the curves; they sum to 1
    noises: Floats  # standard deviation of log K between seeds, of each curve

    @property
    def noise(self) -> float:
        """Mean standard deviation of log K between seeds."""
        return float(self.weights @ self.noises)

    def chance_below(self, sfo: float) -> Floats:
        """At each batch size, the probability that a run takes fewer gradients than `sfo`."""
        below = ndtr((math.log(sfo) - self.log_sfo) / self.noises[:, None])
        chances: Floats = self.weights @ below
        return chances

    def chance_of_better(self, places: Sequence[int], best: int, clearly: float) -> float:
        """Probability that one of `places` takes fewer gradients than `best` by a share `clearly`
        or more; all are indices of batch sizes."""
        least = self.log_sfo[:, places].min(axis=1)
        return float(self.weights @ (least < self.log_sfo[:, best] - math.log1p(clearly)))

    def cost(self, sfo_limit: float) -> Floats:
        """At each batch size, the expected gradients of a run abandoned at `sfo_limit`."""
        costs: Floats = self.weights @ np.exp(np.minimum(self.log_sfo, math.log(sfo_limit)))
        return costs

    def median_sfo(self, place: int) -> float:
        """Median at the batch size with index `place`."""
        log_sfo = self.log_sfo[:, place]
        order = np.argsort(log_sfo)
        half = int(np.searchsorted(np.cumsum(self.weights[order]), 0.5))
        return math.exp(log_sfo[order][min(half, len(order) - 1)])


@dataclass(frozen=True, eq=False)
class _Runs:
    """What the weight of a curve depends on."""

    sizes: Floats  # that reached the threshold
    means: Floats  # of log K·b at each, over seeds
    seeds: Floats  # runs at each
    squares: float  # sum of squared deviations from these means
    missed_sizes: Floats  # one entry per run that missed it
    limits: Floats  # log of the K·b that it exceeds

    @classmethod
    def of(cls, tried: Sequence[BatchSizeTrials]) -> "_Runs":
        reached = [(group.batch_size, np.log(group.reached)) for group in tried if group.reached]
        missed = [trial for group in tried for trial in group.trials if trial.steps is None]
        return cls(
            np.array([size for size, _ in reached], float),
            np.array([logs.mean() for _, logs in reached]),
            np.array([len(logs) for _, logs in reached], float),
            sum(float(((logs - logs.mean()) ** 2).sum()) for _, logs in reached),
            np.array([trial.batch_size for trial in missed], float),
            np.log([float(max(trial.spent, 1)) for trial in missed]),
        )


@dataclass(frozen=True, eq=False)
class _Kind:
    """All curves with the same deviation and noise, given the runs that reached the threshold.

    `curves` and `at` are for the batch sizes that reached, those of every run that missed, then
    those asked for.
    """

    runs: _Runs
    curves: Floats
    at: Floats
    deviation: float
    noise: float

    @cached_property
    def _covariance(self) -> Floats:
        octaves = np.log2(self.at)
        apart = (octaves[:, None] - octaves) / LENGTH
        return np.asarray(self.deviation**2 * np.exp(-0.5 * apart**2) + LEVEL**2, np.float64)

    @cached_property
    def _among_runs(self) -> Floats:
        count = len(self.runs.sizes)
        return self._covariance[:count, :count] + np.diag(self.noise**2 / self.runs.seeds)

    @cached_property
    def _misses(self) -> Floats:
        return self.runs.means - self.curves[:, : len(self.runs.sizes)]

    @cached_property
    def _gain(self) -> Floats:
        count = len(self.runs.sizes)
        found = np.linalg.solve(self._among_runs, self._covariance[:count, count:]).T
        return np.asarray(found, np.float64)

    @cached_property
    def expected(self) -> Floats:
        """Mean of log K·b of every curve elsewhere."""
        return self.curves[:, len(self.runs.sizes) :] + self._misses @ self._gain.T

    @cached_property
    def root(self) -> Floats:
        """Turns independent standard normal numbers into deviations from the mean."""
        count = len(self.runs.sizes)
        rest = self._covariance[count:, count:] - self._gain @ self._covariance[:count, count:]
        variances, directions = np.linalg.eigh(rest)
        return np.asarray(directions * np.sqrt(np.maximum(variances, 0.0)), np.float64)

    @cached_property
    def missed(self) -> Floats:
        """Log probability of every curve's that the runs that missed do miss, each by itself."""
        count = len(self.runs.limits)
        spread = np.sqrt((self.root[:count] ** 2).sum(axis=1) + self.noise**2)
        found: Floats = log_ndtr((self.expected[:, :count] - self.runs.limits) / spread).sum(axis=1)
        return found

    @cached_property
    def log_likelihood(self) -> Floats:
        runs = self.runs
        solved = np.linalg.solve(self._among_runs, self._misses.T).T
        distance = (self._misses * solved).sum(axis=1) + runs.squares / self.noise**2
        repeated = float(runs.seeds.sum()) - len(runs.sizes)
        spread = np.linalg.slogdet(self._among_runs)[1] + 2 * repeated * math.log(self.noise)
        found: Floats = self.missed - 0.5 * (distance + spread)
        return found

    def draw(self, rows: Floats, normal: Floats) -> tuple[Floats, Floats]:
        """Curves about those in `rows` at the batch sizes asked for, and the log of their weights:
        how much better they miss where runs did than their mean promised."""
        count = len(self.runs.limits)
        drawn = self.expected[rows] + normal @ self.root.T
        missed = log_ndtr((drawn[:, :count] - self.runs.limits) / self.noise).sum(axis=1)
        return drawn[:, count:], missed - self.missed[rows]


def posterior(
    tried: Sequence[BatchSizeTrials],
    batch_sizes: Sequence[int],
    predicted: Prediction | None = None,
) -> Posterior:
    """K·b at `batch_sizes`, in ascending order, given trials of which one reached the threshold."""
    runs, sizes = _Runs.of(tried), np.asarray(batch_sizes, float)
    at = np.concatenate((runs.sizes, runs.missed_sizes, sizes))
    critical, forms = _forms(sizes, at)
    curves = forms + runs.means.mean()
    log_prior = 0.0 if predicted is None else predicted.log_prior(critical)
    kinds = list(_kinds(runs, curves, at))
    log_weights = np.concatenate(
        [log_prior + math.log(share) + kind.log_likelihood for kind, share in kinds]
    )
    weights = np.exp(log_weights - log_weights.max())
    shares = (np.arange(CURVES) + 0.5) / CURVES * weights.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), shares), len(weights) - 1)
    normal = np.random.default_rng(0).standard_normal((CURVES, len(at) - len(runs.sizes)))
    log_sfo, log_weight, noises = np.empty((CURVES, len(sizes))), np.empty(CURVES), np.empty(CURVES)
    for number, (kind, _) in enumerate(kinds):
        mine = chosen // len(curves) == number
        log_sfo[mine], log_weight[mine] = kind.draw(chosen[mine] % len(curves), normal[mine])
        noises[mine] = kind.noise
    weight = np.exp(log_weight - log_weight.max())
    return Posterior(log_sfo, weight / weight.sum(), noises)


def _kinds(runs: _Runs, curves: Floats, at: Floats) -> Iterator[tuple[_Kind, float]]:
    """With their prior probabilities."""
    for deviation, share in DEVIATIONS.items():
        for noise, chance in NOISES.items():
            yield _Kind(runs, curves, at, deviation, noise), share * chance


def _forms(sizes: Floats, at: Floats) -> tuple[Floats, Floats]:
    """b* of each form, and the log of its K·b over the least at each batch size of `at`.

    The prior is uniform in log b*.
    """
    first, last = np.log2(sizes[0]) - BEYOND, np.log2(sizes[-1]) + BEYOND
    places = np.linspace(first, last, round(PER_OCTAVE * (last - first)) + 1)
    critical, ratio = (axis.ravel()[:, None] for axis in np.meshgrid(2.0**places, RATIOS))
    pole = critical / (1 + np.sqrt(ratio))  # b* = B0 + sqrt(B0(B0 + B1))

    def log_sfo(b: Floats) -> Floats:
        room = np.maximum(b - pole, 1e-300)
        return np.asarray(np.log1p(ratio * pole / room) + np.log(b), np.float64)

    return critical[:, 0], np.minimum(log_sfo(at) - log_sfo(critical), HIGHEST)
