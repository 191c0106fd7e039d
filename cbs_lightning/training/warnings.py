"""Warnings about runs whose question makes little sense."""

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.results.result import Request
from cbs_lightning.results.trajectory import RuleName, Trajectory
from cbs_lightning.training.source import Extent


def warnings_before(cfg: RunConfig, request: Request, extent: Extent) -> list[str]:
    """Warnings that are possible before training."""
    lines = []
    b, n = cfg.batch_size, extent.size
    if b > n:
        lines.append(f"batch_size={b}: the data set has {n:,} samples; a step takes all of them")
    assert request.max_steps is not None
    seen = request.max_steps * min(b, n)
    if request.rule is not RuleName.EPOCH and seen < request.window:
        lines.append(
            f"stop.window={request.window}: the budget of {request.max_steps:,} steps sees about "
            f"{seen:,} samples, so that the threshold cannot be met"
        )
    return lines


def warnings_after(request: Request, trajectory: Trajectory) -> list[str]:
    """Warnings about the losses."""
    first = float(trajectory.loss[0]) if len(trajectory) else None
    if first is None or not first <= request.threshold:
        return []
    return [
        f"stop.loss={request.threshold:g}: the very first loss was {first:.3g} already, so that K "
        "says nothing about training"
    ]


def print_warnings(title: str, lines: list[str]) -> None:
    for line in lines:
        print_line(f"{title}: warning: {line}")
