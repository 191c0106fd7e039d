"""A noisy quadratic as anybody's module: its gradient, noise and curvature are known exactly."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.data.repeatable import RepeatableLoader

SPECTRUM = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.1, 0.02], dtype=torch.float64)
POINTS = 400


class Quadratic(L.LightningModule):
    """Half of (w - x)ᵀH(w - x), in the mean over the samples x of a batch."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((len(SPECTRUM),), start, dtype=torch.float64))

    def training_step(self, batch: Any, _: int) -> Tensor:
        (points,) = batch
        return 0.5 * ((self.weight - points).square() * SPECTRUM).sum(1).mean()


def points() -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(POINTS, len(SPECTRUM), generator=rng, dtype=torch.float64) * 2


@dataclass(frozen=True)
class Exact:
    """At the weights of a module, for a step of eta times scale times the gradient."""

    gradient: Tensor
    variance: Tensor  # of a single sample's gradient, by coordinate

    @classmethod
    def at(cls, module: Quadratic) -> "Exact":
        each = (module.weight.detach() - points()) * SPECTRUM
        return cls(each.mean(0), each.var(0, unbiased=False))

    def norm2(self, scale: Tensor | float = 1.0) -> float:
        return float((scale * self.gradient.square()).sum())

    def noise_trace(self, scale: Tensor | float = 1.0) -> float:
        return float((scale * self.variance).sum())

    def a(self, eta: float, scale: Tensor | float = 1.0) -> float:
        step = eta * scale * self.gradient
        return float((step * self.gradient).sum() - 0.5 * (SPECTRUM * step.square()).sum())

    def c(self, eta: float, scale: Tensor | float = 1.0) -> float:
        return float(0.5 * eta**2 * (scale**2 * SPECTRUM * self.variance).sum())


def objective(module: L.LightningModule, step: int, batch_size: int) -> Objective:
    """The batches of a probe at one step of a run on these points."""
    loader = RepeatableLoader(DataLoader(TensorDataset(points()), 10, shuffle=True), seed=0)
    trainer: Any = SimpleNamespace(
        train_dataloader=loader,
        precision_plugin=Precision(),
        strategy=SimpleNamespace(batch_to_device=lambda batch, dataloader_idx: batch),
    )
    return Objective(trainer, module, batch_size, None, seed=0, step=step)
