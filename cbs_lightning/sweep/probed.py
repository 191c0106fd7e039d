"""The first run of a search, whose probes predict b* and so where to continue."""

import math
from dataclasses import dataclass

from cbs_lightning.config.identity import run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import ConfigError
from cbs_lightning.noise.prediction import at_threshold
from cbs_lightning.noise.record import NoiseRecord
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.search.prediction import Prediction
from cbs_lightning.search.settings import GROUP
from cbs_lightning.training.probes import read_record

WIDTH = 2 * 1.645  # of a 90 % interval, in standard deviations
UNKNOWN_FACTOR = 3.0  # of a prediction without an interval


@dataclass(frozen=True)
class Probed:
    """The run with probes: its place in the search, and its configuration."""

    cell: tuple[int, ...]
    cfg: RunConfig

    def record(self) -> NoiseRecord | None:
        """What its probes measured on the way to this threshold or beyond, if they already have,
        and what that predicts here."""
        found, threshold = read_record(run_directory(self.cfg)), self.cfg.stop.loss
        if found is None or found.threshold > threshold:
            return None
        return at_threshold(found, threshold)

    def prediction(self) -> Prediction | None:
        """The prediction; None if the probes predict nothing."""
        record = self.record()
        if record is None or not record.critical_batch:
            return None
        return Prediction(record.critical_batch, _factor(record))

    def gradients(self) -> int:
        """What the probes cost, in gradients."""
        record = self.record()
        return record.cost.in_gradients if record is not None else 0

    def summary(self) -> str:
        """A sentence with a leading space, or nothing."""
        record, b = self.record(), self.cfg.batch_size
        if record is None:
            return ""
        if (found := self.prediction()) is None:
            return f" Probes at b = {b} predict no b*: {record.reason}."
        low, high = (found.critical_batch * found.factor**sign for sign in (-1, 1))
        within = f"about {low:.3g} to {high:.3g}"
        return f" Probes at b = {b} predicted b* = {found.critical_batch:.3g} ({within})."


def check_probed(cfg: RunConfig, probes: int) -> None:
    if probes and cfg.lr_scaling == Scaling.TUNED:
        reason = "not with lr_scaling=tuned: a prediction holds at one learning rate; allowed: 0"
        raise ConfigError(f"{GROUP}.probes", probes, reason)


def _factor(record: NoiseRecord) -> float:
    """The factor by which b* is off in one of three cases."""
    low, high = record.interval or (None, None)
    if not low or not high or not low < high < math.inf:
        return UNKNOWN_FACTOR
    return math.exp(math.log(high / low) / WIDTH)
