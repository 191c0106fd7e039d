"""Makes any training loader repeatable: the contents of a batch depend only on its place."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from cbs_lightning.data.seeds import generator, seed_of

DRAWS = 1  # beside an epoch's order: what its batches draw
ENDED = object()
WORKERS = 2  # the seed that torch would give to workers
BEYOND = 2**32  # the epochs of a run: what is drawn apart from it
_SPARE = np.random.MT19937(0)


class Place(NamedTuple):
    """Which batch, or slice of one, to fetch."""

    epoch: int
    number: int  # in its epoch
    indices: list[int]


class CountingLoader:
    """Batches of one epoch after the other, counted so that a run can resume from any of them.

    Lightning saves and restores its state. `len` is that of an epoch, in slices.
    """

    slices = 1  # of a batch, each handed over by itself

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader = loader
        self.seed = seed
        self.epoch = 0
        self.position = 0  # batches of this epoch handed over

    @property
    def dataset(self) -> Any:
        return getattr(self.loader, "dataset", None)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class RepeatableLoader(CountingLoader):
    """A loader of a map-style data set in an order given by (seed, epoch), or in the data's own.

    Whatever samples and batches draw from the random numbers of torch, numpy and Python depends on
    the seed, the epoch and the batch, not on the number of workers. With `slice_size`, every batch
    is handed over in slices of that many samples.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, slice_size: int | None = None) -> None:
        super().__init__(loader, seed)
        assert loader.batch_size is not None
        self.samples = len(loader.sampler)  # type: ignore[arg-type]
        self.batch_size = min(loader.batch_size, self.samples)
        self.slice_size = min(slice_size or self.batch_size, self.batch_size)
        self.slices = -(-self.batch_size // self.slice_size)
        self.shuffled = isinstance(loader.sampler, RandomSampler)
        whole, rest = divmod(self.samples, loader.batch_size)
        self.steps_per_epoch = whole if loader.drop_last else whole + (rest > 0)
        self._fetching = _Fetching(loader, seed)
        self._batches = DataLoader(
            self._fetching,
            batch_sampler=_Places(self),  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            # Else torch draws one of the run's random numbers whenever an epoch begins.
            generator=generator(seed, 0, WORKERS),
        )

    def __len__(self) -> int:
        last = min(self.samples - (self.steps_per_epoch - 1) * self.batch_size, self.batch_size)
        return (self.steps_per_epoch - 1) * self.slices + -(-last // self.slice_size)

    def __iter__(self) -> Iterator[Any]:
        for position, batch in enumerate(self._batches, self.position):
            # Before the yield: a checkpoint taken while the batch is used must count it.
            self.position = position + 1
            if self.position == len(self):
                self.epoch, self.position = self.epoch + 1, 0
            yield batch

    def batch_of(self, number: int) -> int:
        """Samples of the batch that the slice with this number in an epoch is part of."""
        first = number // self.slices * self.batch_size
        return min(self.batch_size, self.samples - first)

    def slice_of(self, number: int) -> int:
        """Samples of the slice with this number in an epoch."""
        before = number % self.slices * self.slice_size  # in its batch
        return min(self.slice_size, self.batch_of(number) - before)

    def sample(self, size: int, rng: torch.Generator) -> Any:
        """So many samples drawn independently, fetched by this process; the order stays."""
        place = int(torch.randint(2**31, (1,), generator=rng))
        indices = torch.randint(self.samples, (size,), generator=rng)
        return self._fetching.__getitems__(Place(BEYOND + place, 0, indices.tolist()))

    def places(self) -> Iterator[Place]:
        """Those that are left of the epoch."""
        if self.shuffled:
            order = torch.randperm(self.samples, generator=generator(self.seed, self.epoch))
        else:
            order = torch.arange(self.samples)
        epoch, position, number = self.epoch, self.position, 0
        for batch in torch.split(order, self.batch_size)[: self.steps_per_epoch]:
            for indices in torch.split(batch, self.slice_size):
                if number >= position:
                    yield Place(epoch, number, indices.tolist())
                number += 1


class KeptLoader(CountingLoader):
    """A loader with its own order: that of an iterable data set, or of a user's sampler.

    What is drawn while an epoch begins, or a batch is fetched, depends only on the seed, the epoch
    and the batch. A resumed run restarts the epoch and skips what was trained, which is exact if
    the loader yields the same again.
    """

    def __init__(self, loader: Iterable[Any], seed: int, batch_size: int) -> None:
        super().__init__(loader, seed)
        self.batch_size = batch_size
        self.steps_per_epoch = _length(loader)

    def __len__(self) -> int:
        if self.steps_per_epoch is None:
            raise TypeError("this loader does not know its length")
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        trained = self.position
        for number, batch in enumerate(self._batches(), 1):
            if number <= trained:
                continue
            if self.steps_per_epoch is not None:
                ends = number == self.steps_per_epoch
                self.epoch, self.position = (self.epoch + 1, 0) if ends else (self.epoch, number)
                yield batch
            else:
                # Lightning asks for one more in advance where it does not know how many there are.
                yield batch
                self.position = number
        if self.steps_per_epoch is None:
            self.epoch, self.position = self.epoch + 1, 0

    def _batches(self) -> Iterator[Any]:
        """Those of this epoch, from its first on."""
        for sampler in _samplers(self.loader):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(self.epoch)
        epoch, batches = self.epoch, None
        for number in count():
            place = (DRAWS, number) if number else ()
            with _drawing(seed_of(self.seed, epoch, *place)):
                batches = iter(self.loader) if batches is None else batches
                batch = next(batches, ENDED)
            if batch is ENDED:
                return
            yield batch


def samples_of_epoch(loader: Any) -> int | None:
    """Those that a loader's sampler draws, or that its data set has; None if nobody knows."""
    loader = loader.loader if isinstance(loader, CountingLoader) else loader
    for owner in (getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        if (length := _length(owner)) is not None:
            return length
    return None


def _samplers(loader: Any) -> Iterable[Any]:
    """Each once."""
    batches = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    return {id(each): each for each in found}.values()


def is_repeatable(loader: Any) -> bool:
    """Whether the order is simple: the data's own, or reshuffled every epoch."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


class _Places:
    """As a batch sampler: which batches are left of the loader's epoch."""

    def __init__(self, loader: RepeatableLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Place]:
        return self.loader.places()


class _Fetching(Dataset[Any]):
    """Fetches whole batches, with random numbers that depend on their places."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.samples: Any = loader.dataset
        self.collate = loader.collate_fn
        self.seed = seed

    def __getitems__(self, place: Place) -> Any:
        if type(self.samples) is TensorDataset and self.collate is default_collate:
            return [tensor[place.indices] for tensor in self.samples.tensors]  # draws nothing
        with _drawing(seed_of(self.seed, place.epoch, DRAWS, place.number)):
            if hasattr(self.samples, "__getitems__"):
                return self.collate(self.samples.__getitems__(place.indices))
            return self.collate([self.samples[index] for index in place.indices])


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """While inside, torch, numpy and Python draw from this seed; afterwards as before."""
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = np.random.mtrand.get_bit_generator()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    # To swap generators is a hundred times faster than to save and restore the state of one.
    np.random.mtrand.set_bit_generator(_SPARE)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.mtrand.set_bit_generator(of_numpy)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
