"""How the critical batch size moves with the loss threshold, from the same runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cbs_lightning.curves import Curve
from cbs_lightning.recommend import Recommendation, recommend
from cbs_lightning.thresholds import FEWEST_SIZES, JointFit, joint_fit


@dataclass(frozen=True)
class AcrossThresholds:
    """One variant at every threshold that tells something, the loosest first.

    Thresholds that some run met with the rule's first reading are left out: its K only says when
    the first reading was.
    """

    variant: str
    optimizer: str
    at: tuple[Recommendation, ...]
    joint: JointFit

    def as_json(self) -> dict[str, Any]:
        return {
            "thresholds": [found.threshold for found in self.at],
            "least_sfo_batch_size": [
                found.least_sfo.batch_size if found.least_sfo else None for found in self.at
            ],
            "critical_batch": [found.critical_batch for found in self.at],
            **{name: getattr(self.joint, name) for name in ("c1", "c2", "c3", "contradicted")},
            "says": self.joint.describe(),
        }


def across_thresholds(curves: Iterable[Curve]) -> list[AcrossThresholds]:
    """Of curves by one rule, at several thresholds each."""
    found = []
    ordered = sorted(curves, key=lambda curve: (curve.variant, -curve.threshold))
    for variant, group in groupby(ordered, lambda curve: curve.variant):
        telling = [curve for curve in group if _tells(curve)]
        if telling:
            joint = joint_fit({curve.threshold: curve.measurements() for curve in telling})
            at = tuple(recommend(curve) for curve in telling)
            found.append(AcrossThresholds(variant, telling[0].optimizer, at, joint))
    return found


def _tells(curve: Curve) -> bool:
    reached = [point for point in curve.points if point.reached]
    return len(reached) >= FEWEST_SIZES and not any(point.at_first_reading for point in reached)
