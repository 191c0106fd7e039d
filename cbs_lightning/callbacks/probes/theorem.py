"""What Theorem 3.1 supposes of a run, measured while it is trained once more.

The final weights θ are known from the first time: runs repeat bit for bit.
"""

from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from cbs_lightning.callbacks.probes.gradients import GradientSums, Jackknife
from cbs_lightning.files import write_atomically
from cbs_lightning.noise.theorem import Inner, Suprema

FINAL_WEIGHTS = "final_weights.pt"  # of a run, until the theorem's constants are measured
REFERENCE = "reference.pt"  # θ, where a run is trained once more


class KeepFinalWeights(L.Callback):
    """Leaves the trained weights in a file when training ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        buffer = BytesIO()
        torch.save({name: weight.detach() for name, weight in _trained(module)}, buffer)
        write_atomically(self.path, buffer.getvalue())


class MeasureTheorem:
    """Looks at every step of an optimizer, and at the gradients of probes.

    Args:
        path: of the file with θ.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.suprema = Suprema()
        self.inner: dict[int, Inner] = {}  # by the steps of probes
        self.paused = False  # in a probe, whose steps are none of the run's

    def attach(self, module: L.LightningModule, optimizer: Optimizer) -> None:
        reference = torch.load(self.path, map_location="cpu", weights_only=True)
        weights = _trained(module)
        self._weights = [weight for _, weight in weights]
        self._reference = [reference[name].to(weight.device) for name, weight in weights]
        self.suprema = replace(self.suprema, d=sum(each.numel() for each in self._weights))
        optimizer.register_step_post_hook(self._look)

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, *_: Any) -> None:
        if self.paused:
            return
        before, away = self.suprema, self._away()
        dist2 = float(away.square().sum(dtype=torch.float64))
        gradients = [each.grad.abs().max() for each in self._weights if each.grad is not None]
        self.suprema = replace(
            before,
            dist=max(before.dist, dist2**0.5),
            theta1_dist2=dist2 if before.theta1_dist2 is None else before.theta1_dist2,
            D=max(before.D, float(away.abs().max()) ** 2),
            M=max(before.M, float(torch.stack(gradients).max()) ** 2),
            steps=before.steps + 1,
            **_second_moments(before, optimizer),
        )

    @torch.no_grad()
    def at_probe(self, step: int, sums: GradientSums) -> None:
        """∇f(θₖ)ᵀ(θₖ - θ), by gradients of batches that the run has not trained on."""
        away = self._away()
        sizes = [len(members) for members in sums.members]
        groups = [
            size * float((each * away).sum(dtype=torch.float64))
            for each, size in zip(sums.group_means(), sizes, strict=True)
        ]
        mean = sum(groups) / sums.batches
        left = [
            (sum(groups) - each) / (sums.batches - size)
            for each, size in zip(groups, sizes, strict=True)
        ]
        self.inner[step] = Inner(mean, Jackknife.of(left).se)

    def state_dict(self) -> dict[str, Any]:
        inner = {step: asdict(each) for step, each in self.inner.items()}
        return {"suprema": asdict(self.suprema), "inner": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.suprema = Suprema(**state["suprema"])
        self.inner = {step: Inner(**each) for step, each in state["inner"].items()}

    def _away(self) -> Tensor:
        """θₖ - θ, in one row."""
        pairs = zip(self._weights, self._reference, strict=True)
        return torch.cat([(weight - final).reshape(-1) for weight, final in pairs])


def _second_moments(before: Suprema, optimizer: Optimizer) -> dict[str, Any]:
    """The least of them after this step and those before; nothing for an optimizer without."""
    moments = [state["square"] for state in optimizer.state.values() if "square" in state]
    if not moments:
        return {}
    positive = [torch.where(each > 0, each, torch.inf).min() for each in moments]
    least = float(torch.stack([each.min() for each in moments]).min())
    above = float(torch.stack(positive).min())
    zeros = int(torch.stack([(each == 0).sum() for each in moments]).sum())
    return {
        "v_star": least if before.v_star is None else min(before.v_star, least),
        "v_star_above_0": min(above, before.v_star_above_0 or above),
        "weights_at_0": max(zeros, before.weights_at_0),
    }


def _trained(module: L.LightningModule) -> list[tuple[str, Tensor]]:
    return [each for each in module.named_parameters() if each[1].requires_grad]
