"""How the critical batch size changes with the loss threshold, from the same runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import Recommendation
from cbs_lightning.fit.joint import JointFit, joint_fit
from cbs_lightning.fit.measurements import FEWEST_SIZES
from cbs_lightning.results.result import Result

# Whose K the theorem's form is meant for, at least as an approximation; weight decay is none of it.
COVERED = ("sgd", "momentum", "momentum_ema", "adam", "amsgrad", "adam_monotone")
FROM_JOINT = ("c1", "c2", "c3", "contradicted")  # in as_json


@dataclass(frozen=True)
class AcrossThresholds:
    """One variant at every usable threshold, the loosest first.

    A threshold is left out if some run met it at the rule's first reading, because its K only says
    when that was, or if the losses of some run end too early to answer it. `joint` is None for an
    optimizer that the theorem is not about.
    """

    variant: str
    optimizer: str
    at: tuple[Recommendation, ...]
    joint: JointFit | None

    def as_json(self) -> dict[str, Any]:
        return {
            "thresholds": [found.threshold for found in self.at],
            "least_sfo_batch_size": [
                found.least_sfo.batch_size if found.least_sfo else None for found in self.at
            ],
            "critical_batch": [found.critical_batch for found in self.at],
            **{name: getattr(self.joint, name, None) for name in FROM_JOINT},
            "says": self.joint.describe() if self.joint is not None else None,
        }


def across_thresholds(
    answers: Iterable[Result], known: Iterable[Curve] | None = None
) -> list[AcrossThresholds]:
    """Compare the thresholds that all runs of a variant answer, by one rule.

    `known` are curves of these answers that already exist.
    """
    answers = list(answers)
    untold = {(run.variant, run.threshold) for run in answers if run.status is None}
    telling = [
        curve
        for curve in (curves(answers) if known is None else known)
        if _tells(curve) and (curve.variant, curve.threshold) not in untold
    ]
    telling.sort(key=lambda curve: (curve.variant, -curve.threshold))
    found = []
    for variant, group in groupby(telling, lambda curve: curve.variant):
        own = list(group)
        optimizer, joint = own[0].optimizer, None
        if optimizer in COVERED:
            joint = joint_fit({curve.threshold: curve.measurements() for curve in own})
        at = tuple(recommend(curve, leverage=False) for curve in own)
        found.append(AcrossThresholds(variant, optimizer, at, joint))
    return found


def _tells(curve: Curve) -> bool:
    reached = [point for point in curve.points if point.reached]
    return len(reached) >= FEWEST_SIZES and not any(point.at_first_reading for point in reached)
