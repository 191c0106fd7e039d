"""DataModules as a stranger would write them: nothing of this project is in them."""

import random
from collections.abc import Iterator
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from tests.strangers import data


class Strange(L.LightningDataModule):
    """Takes the batch size and what a test varies."""

    def __init__(self, batch_size: int, kind: str = "tuple", **loader: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.kind = kind
        self.loader = loader
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(stage)
        self.train = data(self.kind)

    def train_dataloader(self) -> Any:
        shuffled = {} if self.kind == "iterable" else {"shuffle": True}
        return DataLoader(self.train, self.batch_size, **(shuffled | self.loader))


class Noisy(Dataset[Any]):
    """Every sample draws from three kinds of random numbers."""

    def __init__(self, plain: TensorDataset) -> None:
        self.plain = plain

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, labels = self.plain[index]
        noise = torch.rand(8) + float(np.random.rand()) + random.random()
        return inputs + 0.1 * noise, labels


class NoisyData(Strange):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train = Noisy(data())  # type: ignore[arg-type]


class Backwards(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 1, -1, -1))


class Sampled(Strange):
    """Has a sampler of its own."""

    def train_dataloader(self) -> Any:
        sampler = Backwards(len(self.train))  # type: ignore[arg-type]
        return DataLoader(self.train, self.batch_size, sampler=sampler)


class NoisySampled(Sampled):
    """Besides, its samples draw random numbers."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train = Noisy(data())  # type: ignore[arg-type]


class Half(Strange):
    """Has a sampler that draws half of the samples, others in every epoch."""

    told: list[int] = []  # noqa: RUF012

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, sampler=_Halving())


class _Halving(Sampler[int]):
    epoch = 0

    def __len__(self) -> int:
        return 100

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        Half.told.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch % 2, 200, 2))


class InBatches(Sampler[list[int]]):
    def __init__(self, size: int, batch_size: int) -> None:
        self.batches = [list(range(size))[i : i + batch_size] for i in range(0, size, batch_size)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class BatchSampled(Strange):
    """Has a sampler of batches of its own."""

    def train_dataloader(self) -> Any:
        sampler = InBatches(len(self.train), self.batch_size)  # type: ignore[arg-type]
        return DataLoader(self.train, batch_sampler=sampler)


class Stubborn(Strange):
    """Takes the batch size, and does not use it."""

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, 7, shuffle=True)


class Several(Strange):
    def train_dataloader(self) -> Any:
        return [super().train_dataloader()] * 2


class Loaderless(Strange):
    def train_dataloader(self) -> Any:
        return None


class Broken(Strange):
    def setup(self, stage: str) -> None:
        raise FileNotFoundError("no such\nfile: my.csv")


class Sizeless(L.LightningDataModule):
    """Does not take a batch size at all."""

    def __init__(self) -> None:
        super().__init__()


class Marked(Strange):
    fingerprint = "one"
    tokens_per_sample = 5
