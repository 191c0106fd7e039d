"""How many samples a batch has, and whether a step had as many as the batch size says."""

import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import IterableDataset

from cbs_lightning.data.repeatable import RepeatableLoader

CountSamples = Callable[[Any], int]
HOW = "define count_samples(batch) in the module, or pass it to the callback"
DEEPEST = 8  # levels in which a batch is searched for a tensor


def count_on(trainer: L.Trainer, module: Any) -> CountSamples | None:
    """The method `count_samples` of the module, or of the DataModule."""
    for owner in (module, getattr(trainer, "datamodule", None)):
        found = getattr(owner, "count_samples", None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


def samples_of(batch: Any, count: CountSamples | None, known: int | None = None) -> int:
    """The samples of a batch by `count`, or else by its first tensor.

    `known` is how many were loaded, if the loader says so: it stands in for a tensor that is not
    found, and must agree with one that is.
    """
    if count is not None:
        return _agreed(_whole(count(batch)), known, "count_samples returned {}")
    found = _first_length(batch)
    if found is None:
        return known if known is not None else length_of_first_tensor(batch)
    return _agreed(found, known, "the batch's first tensor has length {}")


def loaded_samples(trainer: L.Trainer, number: int) -> int | None:
    """The samples in the batch, or slice, with this number in its epoch, if the loader knows."""
    loader: Any = trainer.train_dataloader
    return loader.slice_of(number) if isinstance(loader, RepeatableLoader) else None


def check_step(trainer: L.Trainer, size: int, batch_size: int, batch_idx: int) -> None:
    """Raise unless a step had `batch_size` samples; the last one of an epoch may have fewer."""
    if size == batch_size or (size < batch_size and _may_be_last(trainer, batch_idx)):
        return
    raise MisconfigurationException(
        f"step {trainer.global_step} took {size} samples, but batch_size is {batch_size}; set "
        f"batch_size={size} if every step takes so many, or else {HOW}"
    )


def _may_be_last(trainer: L.Trainer, batch_idx: int) -> bool:
    """Every worker that loads a stream ends with a short batch; no stream begins with one."""
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    if isinstance(dataset, IterableDataset):
        return trainer.global_step > 1
    return batch_idx + 1 >= trainer.num_training_batches


def length_of_first_tensor(batch: Any) -> int:
    found = _first_length(batch)
    if found is None:
        raise MisconfigurationException(f"the batch has no tensor to count samples by; {HOW}")
    return found


def _first_length(batch: Any) -> int | None:
    """Mappings, sequences and objects are searched for the first tensor with a length."""
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if isinstance(first, Tensor) and first.ndim > 0:  # as most batches are
        return len(first)
    return next((len(tensor) for tensor in _tensors(batch, DEEPEST) if tensor.ndim > 0), None)


def _tensors(value: Any, levels: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    inside: Any = ()
    if isinstance(value, Mapping):  # also those that only act like a dict, such as BatchEncoding
        inside = value.values()
    elif isinstance(value, list | tuple | deque):
        inside = value
    elif not isinstance(value, type) and not callable(value):
        inside = getattr(value, "__dict__", {}).values()
    for each in inside if levels else ():
        yield from _tensors(each, levels - 1)


def _agreed(found: int, known: int | None, said: str) -> int:
    if known is not None and found != known:
        raise MisconfigurationException(
            f"{said.format(found)}, but the batch was loaded from {known} samples; {HOW}"
        )
    return found


def _whole(count: Any) -> int:
    try:
        found = operator.index(count)
    except TypeError:
        found = 0
    if found < 1:
        raise MisconfigurationException(
            f"count_samples returned {count!r}; it must return a whole number >= 1"
        )
    return found
