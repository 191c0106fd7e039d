"""How much memory a batch needs, and how small its slices have to be to fit."""

import copy
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cbs_lightning.models import Classifier
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.optim.groups import make_optimizer
from cbs_lightning.training.resources.allocator import LARGEST_MMAP_THRESHOLD
from cbs_lightning.training.resources.system_memory import available_memory

USABLE = 0.7  # of the memory that is free; the rest is for libraries' own buffers
KEPT = 2.0  # times what a step's tensors take, at most, where all that is freed is kept
LARGEST_OF_SAMPLE = 64  # times a sample's own size, that a layer makes of it in ordinary nets
PROBES = (32, 64)  # samples of the two batches that tell how memory grows with the batch


def automatic_slice(
    model: Classifier, device: torch.device, image: tuple[int, ...], batch_size: int, workers: int
) -> int | None:
    """The largest slice of a batch of images of this shape that fits; None for the whole batch.

    On a GPU, slices are tried. On a CPU, where a system short of memory kills processes without
    warning, the need is measured on small batches. No random numbers are consumed.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cpu":
            room = USABLE * available_memory() / workers - batch_size * math.prod(image) * 4
            at_rest, per_sample = _growth(model, image)
            return largest_slice(batch_size, lambda size: at_rest + size * per_sample <= room)
        return largest_slice(batch_size, lambda size: _fits(model, device, image, batch_size, size))


def largest_slice(batch_size: int, fits: Callable[[int], bool]) -> int | None:
    """The size of even slices, the fewest that fit, at least 1; None if the whole batch fits."""
    too_few, slices = 0, 1
    while not fits(-(-batch_size // slices)) and slices < batch_size:
        too_few, slices = slices, min(2 * slices, batch_size)
    while slices - too_few > 1:
        middle = (too_few + slices) // 2
        if fits(-(-batch_size // middle)):
            slices = middle
        else:
            too_few = middle
    return None if slices == 1 else -(-batch_size // slices)


def room_for_freed_blocks(
    model: Classifier, image: tuple[int, ...], batch_size: int, workers: int
) -> bool:
    """Whether a run on a CPU, one of several at a time, can keep all memory that a step frees.

    False also if batches are so small that no large block is ever freed.
    """
    size = model.micro_batch_size or batch_size
    if LARGEST_OF_SAMPLE * size * math.prod(image) * 4 < LARGEST_MMAP_THRESHOLD:
        return False
    need = KEPT * peak_of_batch(model, image, size) + batch_size * math.prod(image) * 4
    return need <= USABLE * available_memory() / workers


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures as `peak` the most bytes held at one time by tensors made inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._held = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in given:
                self._count(storage)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return

        def freed(_: Any) -> None:
            del self._known[key]
            self._held -= size

        self._known[key] = weakref.ref(storage, freed)
        self._held += size
        self.peak = max(self.peak, self._held)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def peak_of_step(model: Classifier, images: Tensor) -> int:
    """Bytes for the forward and backward pass of one slice, beyond the model and the images."""
    net = copy.deepcopy(model.net).train()
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    memory = PeakMemory()
    with memory:
        torch.autograd.backward(cross_entropy(net(images), labels))
    return memory.peak


def peak_of_batch(model: Classifier, image: tuple[int, ...], size: int) -> float:
    """Bytes for the forward and backward pass of a slice of images of this shape.

    Found without computing anything if the net allows it, otherwise from small batches.
    """
    try:
        images = torch.zeros(size, *image, device="meta").to(memory_format=torch.channels_last)
        return peak_of_step(copy.deepcopy(model).to("meta"), images)
    except Exception:  # whatever a net raises that looks at values
        at_rest, per_sample = _growth(model, image)
        return at_rest + size * per_sample


def growth_of_training_step(module: L.LightningModule, batch: Any) -> tuple[float, float]:
    """Bytes at rest and per sample of any module's `training_step` and its backward pass."""
    size = next(len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    peaks = []
    for part in (max(1, size // 2), size):
        memory = PeakMemory()
        with memory, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of logging without a Trainer
            found: Any = module.training_step(tree_map(partial(_first, size, part), batch), 0)
            loss = found["loss"] if isinstance(found, Mapping) else found
            torch.autograd.backward(loss)
        module.zero_grad()
        peaks.append(memory.peak)
    per_sample = (peaks[1] - peaks[0]) / max(1, size - size // 2)
    return max(0.0, peaks[1] - size * per_sample), per_sample


def _first(size: int, part: int, value: Any) -> Any:
    sliced = isinstance(value, Tensor) and value.ndim > 0 and len(value) == size
    return value[:part] if sliced else value


def _growth(model: Classifier, image: tuple[int, ...]) -> tuple[float, float]:
    """Bytes at rest (at least those of the gradients) and per sample, from two small batches."""
    small, large = PROBES
    low, high = (
        peak_of_step(model, torch.zeros(size, *image).to(memory_format=torch.channels_last))
        for size in PROBES
    )
    per_sample = (high - low) / (large - small)
    gradients = sum(weight.nbytes for weight in model.net.parameters())
    return max(low - small * per_sample, gradients), per_sample


def _fits(
    model: Classifier, device: torch.device, image: tuple[int, ...], batch_size: int, size: int
) -> bool:
    """Whether two steps on a slice of this size succeed, beside the whole batch's images."""
    try:
        _two_steps(model, torch.zeros(batch_size, *image, device=device), size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def _two_steps(model: Classifier, batch: Tensor, size: int) -> None:
    net = copy.deepcopy(model.net).to(batch.device).train()
    optimizer = make_optimizer(model.optimizer_factory, net, frozen=True)
    images = batch[:size].to(memory_format=torch.channels_last)
    labels = torch.zeros(size, dtype=torch.long, device=batch.device)
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(net(images), labels))
        optimizer.step()
