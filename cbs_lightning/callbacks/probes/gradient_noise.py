"""The gradient noise scale of a run in anybody's Trainer."""

from collections import deque
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from cbs_lightning.callbacks.loaders import data_size
from cbs_lightning.callbacks.probes.attempt import Failure, attempt
from cbs_lightning.callbacks.probes.gradients import Jackknife, Moments, log_ratio
from cbs_lightning.callbacks.probes.objective import Objective, sliced
from cbs_lightning.callbacks.probes.state import cannot_restore
from cbs_lightning.callbacks.samples import CountSamples, length_of_first_tensor

BLOCKS = 10  # of measurements, at most, to leave out one at a time


class Measurement(NamedTuple):
    """At one step: unbiased, so that |G|² may be negative; only means over many say much."""

    step: int
    gradient_norm2: float
    noise_trace: float


class GradientNoise(L.Callback):
    """Measures |G|², tr Σ and B_simple = tr Σ / |G|² while a run goes on, without changing it.

    G is the mean gradient and Σ the covariance of a single sample's. Works with any LightningModule
    under automatic optimization, on one device. With gradient accumulation it compares the
    micro-batches' gradients, which the run computes anyway; without, it takes the gradients of
    `slices` of a batch beside the step, for as much time as a step. With BatchNorm those are of
    batches of the slices' size. Means are over the latest `window` measured steps. They are logged
    as `gradient_norm2`, `noise_trace` and `b_simple`.

    A step in which it cannot measure, such as one for which `training_step` returns no loss, is
    left out with a warning.

    Slices of one batch are different samples of a finite set, which makes g·g of two of them too
    small by tr Σ/n in the mean. That is added where the loader knows its number of samples n,
    unless it draws with replacement: G is then the gradient of all n samples.

    Args:
        every: steps from one measurement to the next.
        window: measured steps that the means are over.
        slices: of a batch, where gradients are not accumulated.
        count_samples: the number of samples in a batch; None: the length of its first tensor.

    Example:
        >>> import torch, lightning as L
        >>> from cbs_lightning import GradientNoise
        >>> class Regression(L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(3, 1)
        ...     def training_step(self, batch, _):
        ...         inputs, targets = batch
        ...         return (self.layer(inputs) - targets).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 1e-3)
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
        >>> noise = GradientNoise(every=1)
        >>> quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        >>> trainer = L.Trainer(callbacks=[noise], max_epochs=2, **quiet, accelerator="cpu",
        ...                     enable_model_summary=False)
        >>> trainer.fit(Regression(), torch.utils.data.DataLoader(data, 8))
        >>> noise.measured, noise.noise_trace > 0
        (16, True)
    """

    def __init__(
        self,
        every: int = 10,
        window: int = 100,
        slices: int = 2,
        count_samples: CountSamples | None = None,
    ) -> None:
        for name, value, least in (
            ("every", every, 1), ("window", window, 1), ("slices", slices, 2),
        ):  # fmt: skip
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, not {value!r}")
        self.every = every
        self.slices = slices
        self.count_samples = count_samples or length_of_first_tensor
        self.measured = 0  # steps so far
        self._latest: deque[Measurement] = deque(maxlen=window)
        self._parts: list[tuple[int, float]] = []  # samples and |g|² of this step's micro-batches
        self._sum: Tensor | None = None  # of their gradients
        self._samples = 0  # of the micro-batch at hand
        self._step = 0  # that it is part of
        self._warnings: set[str] = set()  # so far
        self._population: int | None = None  # samples that are drawn from without replacement

    @property
    def gradient_norm2(self) -> float | None:
        """|G|², the mean over the latest measured steps."""
        return _mean([each.gradient_norm2 for each in self._latest])

    @property
    def noise_trace(self) -> float | None:
        """tr Σ, the mean over the latest measured steps."""
        return _mean([each.noise_trace for each in self._latest])

    @property
    def b_simple(self) -> float | None:
        """The ratio of the two means; None where |G|² is not above 0."""
        if not self.gradient_norm2 or self.gradient_norm2 < 0 or self.noise_trace is None:
            return None
        return self.noise_trace / self.gradient_norm2

    @property
    def b_simple_interval(self) -> tuple[float, float] | None:
        """90 %, from leaving out one block of measured steps at a time; None: too few."""
        found = list(self._latest)
        blocks = min(BLOCKS, len(found))
        left = [
            [each for at, each in enumerate(found) if at * blocks // len(found) != block]
            for block in range(blocks)
        ]
        ratios = [log_ratio(_means(each)) for each in left if each]
        return Jackknife.of(ratios).interval_around(self.b_simple)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not module.automatic_optimization:
            raise MisconfigurationException(
                "GradientNoise needs automatic optimization: under manual optimization the module "
                "itself decides when gradients are whole"
            )
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"GradientNoise needs one device, not {trainer.world_size}"
            )
        self._population = _population(trainer.train_dataloader)

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._samples = self.count_samples(batch)
        if trainer.accumulate_grad_batches == 1 and self._is_due(trainer):
            self._measure_slices(trainer, module, batch)

    def on_after_backward(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.accumulate_grad_batches == 1 or not self._is_due(trainer):
            return
        self._step = trainer.global_step
        whole = _gradient(module) * (trainer.accumulate_grad_batches / _loss_scale(trainer))
        part = whole if self._sum is None else whole - self._sum
        self._parts.append((self._samples, float(part @ part)))
        self._sum = whole

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self._sum is None or trainer.global_step == self._step:  # more are accumulated
            return
        sizes = {size for size, _ in self._parts}
        if len(sizes) == 1 and len(self._parts) > 1:  # the last of an epoch may be short
            of_total, squares = float(self._sum @ self._sum), sum(each for _, each in self._parts)
            self._add(trainer, Moments.of(of_total, squares, len(self._parts), sizes.pop()))
        self._parts, self._sum = [], None

    def state_dict(self) -> dict[str, Any]:
        return {"measured": self.measured, "latest": [tuple(each) for each in self._latest]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.measured = state_dict["measured"]
        self._latest.extend(Measurement(*each) for each in state_dict["latest"])

    def _is_due(self, trainer: L.Trainer) -> bool:
        return trainer.global_step % self.every == 0

    def _measure_slices(self, trainer: L.Trainer, module: L.LightningModule, batch: Any) -> None:
        size = self._samples // self.slices
        if size == 0:
            return
        parts = [sliced(batch, self._samples, at * size, size) for at in range(self.slices)]

        def measured(lost: set[str]) -> Moments:
            if lost:
                self._warn(cannot_restore(lost))
            step = trainer.global_step
            objective = Objective(trainer, module, size, None, seed=0, step=step, kept=parts)
            rows = [objective.gradient(number)[1] for number in range(self.slices)]
            total = torch.stack(rows).sum(0)
            squares = sum(float(row @ row) for row in rows)
            return Moments.of(float(total @ total), squares, self.slices, size)

        found = attempt(trainer, module, None, measured)
        if isinstance(found, Failure):
            self._warn(f"GradientNoise measures nothing in some steps: {found.reason}")
        else:
            self._add(trainer, found)

    def _warn(self, text: str) -> None:
        """Once."""
        if text not in self._warnings:
            self._warnings.add(text)
            rank_zero_warn(text)

    def _add(self, trainer: L.Trainer, found: Moments) -> None:
        self.measured += 1
        norm2 = found.norm2
        if self._population is not None:
            norm2 += found.noise_trace / self._population
        self._latest.append(Measurement(trainer.global_step, norm2, found.noise_trace))
        names = ("gradient_norm2", "noise_trace", "b_simple")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)


def _population(loader: Any) -> int | None:
    """None where it is not known, or where samples are drawn from it with replacement."""
    own = getattr(loader, "sampler", None)
    replaces = getattr(loader, "replacement", False) or getattr(own, "replacement", False)
    if replaces:
        return None
    try:
        return len(own)  # type: ignore[arg-type]  # a part of the data set, for some samplers
    except (TypeError, NotImplementedError):
        return data_size(loader)


def _gradient(module: L.LightningModule) -> Tensor:
    """All gradients so far, in one row."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    return torch.cat(
        [
            (each.grad if each.grad is not None else torch.zeros_like(each)).detach().reshape(-1)
            for each in parameters
        ]
    )


def _loss_scale(trainer: L.Trainer) -> float:
    """What mixed precision multiplies the loss by, before gradients are taken."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None else 1.0


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _means(found: list[Measurement]) -> Moments:
    norm2, trace = (sum(each[at] for each in found) / len(found) for at in (1, 2))
    return Moments(norm2, trace)
