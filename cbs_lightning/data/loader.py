"""The loader of the image data sets, which are tensors on the training device."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.seeds import generator

Batch = tuple[Tensor, Tensor]  # images (float, channels-last in memory), labels

SAMPLES_PER_CHUNK = 512  # small batches are handed over many at a time


def steps_per_chunk(batch_size: int) -> int:
    return max(1, SAMPLES_PER_CHUNK // batch_size)


@dataclass(frozen=True)
class Images:
    """A data set in memory: `pixels` is uint8, N x H x W x C; `scale` is the value of white."""

    pixels: Tensor
    labels: Tensor
    scale: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device), self.scale)


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation per channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, device=device) for values in (self.mean, self.std))
        return mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)


class InMemoryLoader:
    """Chunks of consecutive batches, one epoch after the other; a chunk is a list of batches.

    Where it is not `chunked` it hands over single batches, in slices of `slice_size` samples if
    that is given.

    The order of an epoch is a permutation derived from (seed, epoch), or, with replacement,
    independent draws: every batch then has the full size. `seed=None` keeps the data's order.
    It counts its epochs itself: Lightning's count is off after a run was restarted twice at the
    ends of epochs. After `load_state_dict` the next chunk is that after the last one handed over.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        seed: int | None = None,
        replacement: bool = False,
        normalization: Normalization | None = None,
        augmentation: Augmentation | None = None,
        chunked: bool = True,
        slice_size: int | None = None,
    ) -> None:
        self.images = images
        self.batch_size = min(batch_size, len(images))
        self.seed = seed
        self.replacement = replacement
        self.normalization = (
            normalization.tensors(images.pixels.device) if normalization is not None else None
        )
        self.augmentation = augmentation
        self.epoch = 0
        self.position = 0  # chunks of this epoch handed over
        self.chunked = chunked
        self.batches_per_chunk = steps_per_chunk(self.batch_size) if chunked else 1
        self.steps_per_epoch = -(-len(images) // self.batch_size)
        self.slice_size = min(slice_size or self.batch_size, self.batch_size)
        self.slices = -(-self.batch_size // self.slice_size)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]

    def __len__(self) -> int:
        if self.chunked:
            return -(-self.steps_per_epoch // self.batches_per_chunk)
        last = self.batch_of((self.steps_per_epoch - 1) * self.slices)
        return (self.steps_per_epoch - 1) * self.slices + -(-last // self.slice_size)

    def batch_of(self, number: int) -> int:
        """Samples of the batch that the slice with this number in an epoch is part of."""
        first = number // self.slices * self.batch_size
        whole = self.replacement or first + self.batch_size <= len(self.images)
        return self.batch_size if whole else len(self.images) - first

    def samples_in(self, steps: int) -> int:
        """The samples in this many batches from the start; the last of an epoch may be short."""
        epochs, batches = divmod(steps, self.steps_per_epoch)
        whole = self.steps_per_epoch * self.batch_size if self.replacement else len(self.images)
        return epochs * whole + batches * self.batch_size

    def __iter__(self) -> Iterator[list[Batch] | Batch]:
        # All random choices of an epoch reach the device at once, so that no step waits for them.
        device = self.images.labels.device
        order = self._order().to(device)
        draws = self._augmentation_draws(len(order)).to(device)
        spans = self._chunk_spans() if self.chunked else self._slice_spans()
        for position, samples in itertools.islice(enumerate(spans), self.position, None):
            # Before the yield: a checkpoint taken while the chunk is used must count it.
            self.position = position + 1
            if self.position == len(self):
                self.epoch, self.position = self.epoch + 1, 0
            chunk = self._chunk(order[samples], draws[samples])
            yield chunk if self.chunked else chunk[0]

    def _chunk_spans(self) -> Iterator[slice]:
        size = self.batches_per_chunk * self.batch_size
        return (slice(number * size, (number + 1) * size) for number in range(len(self)))

    def _slice_spans(self) -> Iterator[slice]:
        for number in range(len(self)):
            batch, within = divmod(number, self.slices)
            first = batch * self.batch_size
            start = first + within * self.slice_size
            yield slice(start, min(start + self.slice_size, first + self.batch_size))

    def _order(self) -> Tensor:
        if self.seed is None:
            return torch.arange(len(self.images))
        rng = generator(self.seed, self.epoch)
        if self.replacement:
            draws = self.steps_per_epoch * self.batch_size
            return torch.randint(len(self.images), (draws,), generator=rng)
        return torch.randperm(len(self.images), generator=rng)

    def _augmentation_draws(self, samples: int) -> Tensor:
        if self.augmentation is None or self.seed is None:
            return torch.empty(0)
        return self.augmentation.draw(samples, generator(self.seed, self.epoch, 1))

    def sample(self, size: int, rng: torch.Generator) -> Batch:
        """This many samples, drawn independently, augmented as in training; the order is kept."""
        device = self.images.labels.device
        indices = torch.randint(len(self.images), (size,), generator=rng)
        draws = torch.empty(0)
        if self.augmentation is not None and self.seed is not None:
            draws = self.augmentation.draw(size, rng)
        return self._batch(indices.to(device), draws.to(device))

    def _chunk(self, indices: Tensor, draws: Tensor) -> list[Batch]:
        batches = (torch.split(tensor, self.batch_size) for tensor in self._batch(indices, draws))
        return list(zip(*batches, strict=True))

    def _batch(self, indices: Tensor, draws: Tensor) -> Batch:
        pixels = self.images.pixels[indices]
        if self.augmentation is not None:
            pixels = self.augmentation.apply(pixels, draws)
        # N x H x W x C seen as N x C x H x W is channels-last, at no cost.
        images = pixels.permute(0, 3, 1, 2).to(torch.get_default_dtype()).div_(self.images.scale)
        if self.normalization is not None:
            mean, std = self.normalization
            images = images.sub_(mean).div_(std)
        return images, self.images.labels[indices]
