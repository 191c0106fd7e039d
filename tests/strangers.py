"""LightningModules and data as a stranger would write them: nothing of this project is in them."""

from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

SAMPLES = 200


def data(kind: str = "tuple") -> Dataset[Any]:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 8, generator=rng)
    labels = (inputs[:, 0] + 0.3 * inputs[:, 1] > 0).long()
    plain = TensorDataset(inputs, labels)
    return {"tuple": plain, "dict": _Named(plain), "iterable": _Stream(plain)}[kind]


class _Named(Dataset[Any]):
    def __init__(self, plain: TensorDataset) -> None:
        self.plain = plain

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.plain[index]
        return {"inputs": inputs, "labels": labels}


class _Stream(IterableDataset[Any]):
    def __init__(self, plain: TensorDataset) -> None:
        self.plain = plain

    def __iter__(self) -> Iterator[Any]:
        return (self.plain[index] for index in range(len(self.plain)))


def loader(batch_size: int, kind: str = "tuple", **settings: Any) -> DataLoader[Any]:
    return DataLoader(data(kind), batch_size, **settings)


class Plain(L.LightningModule):
    """Notes the loss of every call, and the samples in it, for a count by hand."""

    def __init__(self, lr: float = 0.5) -> None:
        super().__init__()
        self.net = nn.Linear(8, 2)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)
        self.lr = lr
        self.noted: list[tuple[float, int]] = []

    def _loss(self, batch: Any) -> Tensor:
        inputs, labels = batch.values() if isinstance(batch, Mapping) else batch
        loss = cross_entropy(self.net(inputs), labels)
        self.noted.append((loss.item(), len(labels)))
        return loss

    def training_step(self, batch: Any, _: int) -> Any:
        return self._loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr)


class WithAccuracy(Plain):
    def training_step(self, batch: Any, _: int) -> Any:
        inputs, labels = batch
        return {"loss": self._loss(batch), "correct": (self.net(inputs).argmax(1) == labels).sum()}


class Manual(Plain):
    def __init__(self, steps_per_call: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.steps_per_call = steps_per_call

    def training_step(self, batch: Any, _: int) -> Any:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        loss = self._loss(batch)
        for _ in range(self.steps_per_call):
            optimizer.zero_grad()
            self.manual_backward(loss, retain_graph=True)
            optimizer.step()
        return loss


class Scheduled(Plain):
    """Its learning rate falls, by step or by epoch."""

    def __init__(self, interval: str) -> None:
        super().__init__()
        self.interval = interval

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.interval},
        }


class Logged(Plain):
    """Trains on twice the loss that it logs."""

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self._loss(batch)
        self.log("own", loss)
        return 2 * loss


class Odd(Plain):
    """Returns what is no loss."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, labels = batch
        each = cross_entropy(self.net(inputs), labels, reduction="none")
        return {"several": each, "complex": each.mean() + 0j, "none": None}[self.what]


class Forgetful(Plain):
    """Learns with dropout, and with a scheduler."""

    def __init__(self, interval: str = "step") -> None:
        super().__init__()
        self.interval = interval
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 2))  # type: ignore[assignment]
        self.epochs_ended = 0

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.interval},
        }

    def on_train_epoch_end(self) -> None:
        """What happens here changes what follows."""
        self.epochs_ended += 1
        with torch.no_grad():
            self.net[0].weight.mul_(0.99)


STEP_HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "optimizer_step", "optimizer_zero_grad",
    "backward", "configure_gradient_clipping", "on_before_batch_transfer",
    "transfer_batch_to_device", "on_after_batch_transfer",
)  # fmt: skip
OTHER_HOOKS = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start",
    "on_train_epoch_end",
)  # fmt: skip


def counting(name: str) -> Any:
    def hook(self: Any, *arguments: Any, **settings: Any) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(super(Hooked, self), name)(*arguments, **settings)

    return hook


class Hooked(Plain):
    """Overrides every hook, and counts the calls, of all its kind."""

    calls: dict[str, int] = {}  # noqa: RUF012


for each in (*STEP_HOOKS, *OTHER_HOOKS):
    setattr(Hooked, each, counting(each))


class TwoOptimizers(Manual):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]


class Laden(Plain):
    """Its hyperparameters are what no checkpoint can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"net": nn.Linear(2, 2)})


class Optimizerless(Plain):
    configure_optimizers = L.LightningModule.configure_optimizers


class OnImages(L.LightningModule):
    """Of digits, as (images, labels)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def training_step(self, batch: Any, _: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)
