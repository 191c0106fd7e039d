"""How runs scatter about a curve: the likelihood of any curve K(b), for thousands of them at once.

log K of a run is the curve, plus a deviation shared by all runs of its batch size (no curve is
exact, and more seeds do not make it so), plus the run's own noise. The runs of one batch size
together follow Student's t distribution, so that one wild run, or one wild batch size, decides
little. Runs that did not reach the threshold are right-censored: their K is above the steps run.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit

from cbs_lightning.fit.likelihood import LEAST_SIGMA, Floats, softplus
from cbs_lightning.fit.measurements import Measurements

TAIL = 4  # degrees of freedom of Student's distribution
WILD = 0.02  # share of the runs that tell nothing: a failed one, a mistyped number
WILD_MISFIT = 1.0  # of log K there
LEAST_CHANCE = 1e-300
FAR = 1e9  # standard deviations: where a curve has no K at all


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs by batch size: what the likelihood of a curve needs to know of them."""

    sizes: Floats  # that reached the threshold
    seeds: Floats  # runs at each
    means: Floats  # of their log K
    squares: Floats  # sum of their squared deviations from it
    rounding: Floats  # variance of log K because K is a whole number of steps, or of epochs
    missed_sizes: Floats  # that did not reach it, each with the steps run in vain
    missed_log_steps: Floats
    missed: Floats  # runs of each such pair

    @classmethod
    def of(cls, data: Measurements) -> "Runs":
        sizes, index, seeds = np.unique(data.reached, return_inverse=True, return_counts=True)
        means = np.bincount(index, data.log_steps) / seeds
        squares = np.bincount(index, (data.log_steps - means[index]) ** 2).astype(float)
        rounding = np.bincount(index, data.rounding**2 / 3) / seeds
        censored = data.observations.censored
        in_vain = np.column_stack((data.batch_sizes, data.observations.log_steps))[censored]
        in_vain, missed = np.unique(in_vain, axis=0, return_counts=True)
        return cls(
            sizes,
            seeds.astype(float),
            means,
            squares,
            rounding,
            in_vain[:, 0],
            in_vain[:, 1],
            missed.astype(float),
        )

    @cached_property
    def all_sizes(self) -> Floats:
        """At which a curve is looked at: those that reached, then those that did not."""
        return np.concatenate((self.sizes, self.missed_sizes))

    @cached_property
    def _log_odds(self) -> Floats:
        """That all runs of a batch size tell nothing: the less likely, the more there are."""
        return np.asarray(self.seeds * np.log(WILD) - np.log1p(-(WILD**self.seeds)), np.float64)

    @cached_property
    def _companions(self) -> Floats:
        """How many other runs missed the threshold at the same batch size."""
        same: Floats = (self.missed_sizes[:, None] == self.missed_sizes) @ self.missed
        return same - 1

    def log_likelihood(self, log_steps: Floats, noise: Floats, misfit: Floats) -> Floats:
        """One value per row of `log_steps`, which holds log K of a curve at `all_sizes`.

        `noise` is the standard deviation between runs of a batch size, `misfit` of what they share.
        """
        within, between = noise[:, None] ** 2, misfit[:, None] ** 2
        at_sizes, at_missed = np.split(log_steps, [len(self.sizes)], axis=1)
        usual, log_odds = self._usual_and_odds(at_sizes, within, between)
        found = (usual + softplus(log_odds)) @ np.ones(len(self.sizes))
        if len(self.missed_sizes):
            # runs that share a deviation are worth fewer than their number
            worth = 1 / (1 + self._companions * (between / (within + between)))
            beyond = self.missed_log_steps - at_missed
            chance = (1 - WILD) * _chance_above(beyond / np.sqrt(within + between))
            chance += WILD * _chance_above(beyond / np.sqrt(within + WILD_MISFIT**2))
            found += (worth * np.log(chance)) @ self.missed
        likelihood: Floats = found
        return likelihood

    def wild_probability(self, log_steps: Floats, noise: Floats, misfit: Floats) -> Floats:
        """That all runs of a batch size tell nothing, if a curve is right: a row per curve.

        `log_steps` holds log K of the curves at `sizes`; `noise` and `misfit` as above.
        """
        _, log_odds = self._usual_and_odds(log_steps, noise[:, None] ** 2, misfit[:, None] ** 2)
        found: Floats = expit(log_odds)
        return found

    def _usual_and_odds(
        self, at_sizes: Floats, within: Floats, between: Floats
    ) -> tuple[Floats, Floats]:
        """The log density if runs are no wild ones, and the log odds that they are."""
        usual = self._log_density(at_sizes, within, between)
        wild = self._log_density(at_sizes, within, WILD_MISFIT**2)
        return usual, wild - usual + self._log_odds

    def _log_density(self, at_sizes: Floats, within: Floats, between: Floats | float) -> Floats:
        """Of the runs of each batch size, up to a constant.

        Seeds with the same K do not make the noise vanish: K is rounded.
        """
        shared = within + self.seeds * (between + self.rounding)
        distance = self.seeds * (self.means - at_sizes) ** 2 / shared
        spread = np.log(shared)
        if (self.seeds > 1).any():  # else nothing is seen of the noise alone
            seen = within + self.rounding + LEAST_SIGMA**2
            distance += self.squares / seen
            spread += (self.seeds - 1) * np.log(seen)
        found: Floats = -0.5 * (spread + (TAIL + self.seeds) * np.log(1 + distance / TAIL))
        return found


def _chance_above(z: Floats) -> Floats:
    """Student's survival function for `TAIL` = 4 degrees of freedom, in closed form."""
    z = np.maximum(z, -FAR)
    tail = TAIL / (TAIL + z**2)
    sine = z / np.sqrt(TAIL + z**2)
    rest = np.where(sine > 0, tail / (1 + np.abs(sine)), 1 - sine)  # 1 - sine, to the last digit
    chance: Floats = np.maximum(rest**2 * (2 + sine) / 4, LEAST_CHANCE)
    return chance


def draw_scatter(rng: np.random.Generator, noise: Floats, misfit: Floats) -> Floats:
    """Deviations of a new run's log K from each curve."""
    scale = np.sqrt(noise**2 + misfit**2)
    drawn: Floats = scale * rng.standard_t(TAIL, len(noise))
    return drawn
