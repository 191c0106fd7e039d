"""Which batch size decides the answer, and where one more run would settle it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbs_lightning.fit.likelihood import Floats, Observations
from cbs_lightning.fit.measurements import Measurements
from cbs_lightning.fit.posterior import Posterior, posterior
from cbs_lightning.fit.scatter import Runs

EFFECTIVE = 0.3  # share of the curves that still count without a batch size; below, sample anew
CURVES = 600  # when sampling anew
# Of the probability of a minimum. With other random numbers that of 600 curves has a standard
# deviation of 0.01 to 0.02, and that of `posterior`'s own a much smaller one.
SAMPLING_ERROR = 0.03


@dataclass(frozen=True)
class Leverage:
    """The answer without the runs of one batch size."""

    batch_size: float
    probability: float  # of an interior minimum
    critical_batch: float | None  # None: no curve has one
    # Whether a minimum is claimed now and not without it, or the reverse, and the two probabilities
    # differ by more than the sampler's own error.
    overturns: bool


def leverage(found: Posterior, data: Measurements, claim: float) -> tuple[Leverage, ...]:
    """The answer without each batch size in turn; a minimum is claimed from probability `claim`."""
    claimed = found.probability >= claim
    answers = []
    for size in np.unique(data.batch_sizes):
        rest = _select(data, data.batch_sizes != size)
        if not rest.distinct:
            continue
        weight = _weight_without(found, _select(data, data.batch_sizes == size))
        # without the smallest batch size that reached, poles are possible that no curve has
        same_poles = min(rest.reached) == min(data.reached)
        if same_poles and weight.sum() ** 2 / (weight**2).sum() >= EFFECTIVE * len(weight):
            curves = found
        else:
            curves = posterior(rest, (found.first, found.last), CURVES)
            weight = np.ones(len(curves.critical))
        inside = curves.interior
        probability = float(weight[inside].sum() / weight.sum())
        critical = _median(curves.critical[inside], weight[inside]) if inside.any() else None
        moved = abs(probability - found.probability) > SAMPLING_ERROR
        overturns = moved and (probability >= claim) != claimed
        answers.append(Leverage(float(size), probability, critical, overturns))
    return tuple(answers)


def settling_batch_size(found: Posterior, data: Measurements) -> float | None:
    """The batch size at which one more run would tell most about b*.

    Candidates are the batch sizes run, the middles of gaps of more than an octave, and one octave
    beyond each end. A run tells as much as the curves' K there differs with their b*, compared with
    how much it would scatter.
    """
    run = np.unique(data.batch_sizes)
    middles = np.sqrt(run[1:] * run[:-1])[run[1:] > 2.1 * run[:-1]]
    ends = np.array([run[0] / 2, run[-1] * 2])
    candidates = np.unique(np.concatenate((run, np.round(middles), ends[ends >= 1])))
    critical = np.clip(found.critical, found.first, found.last)
    rank = np.searchsorted(np.quantile(critical, [0.2, 0.4, 0.6, 0.8]), critical)
    group = np.where(found.critical == 0, -1, np.where(np.isinf(found.critical), 5, rank))
    if len(np.unique(group)) < 2:
        return None
    ceiling = float(np.median(found.log_steps(run[:1]).clip(max=50.0))) + math.log(100)
    log_steps = np.minimum(found.log_steps(candidates), ceiling)
    told = [_told(values, group, found.scatter) for values in log_steps.T]
    return float(candidates[int(np.argmax(told))])


def _told(values: Floats, group: NDArray[np.intp], scatter: float) -> float:
    """Variance between groups of curves over that within them and of a run."""
    total = float(values.var())
    within = sum(
        float(values[group == one].var()) * float((group == one).mean()) for one in np.unique(group)
    )
    return (total - within) / (within + scatter**2)


def _weight_without(found: Posterior, data: Measurements) -> Floats:
    """By which the curves count when the runs of `data` are taken away."""
    runs = Runs.of(data)
    likelihood = runs.log_likelihood(found.log_steps(runs.all_sizes), found.noise, found.misfit)
    weight: Floats = np.exp(likelihood.min() - likelihood)
    return weight


def _select(data: Measurements, rows: NDArray[np.bool_]) -> Measurements:
    observations = Observations(data.observations.log_steps[rows], data.observations.censored[rows])
    return Measurements(data.batch_sizes[rows], observations, data.rounded_to[rows])


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(values[order][half])
