"""How many samples a batch has: found, said, or refused, and never wrong in silence."""

from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from cbs_lightning import StopAtThreshold
from cbs_lightning.callbacks.samples import check_step, samples_of
from cbs_lightning.config.identity import run_directory
from cbs_lightning.data.repeatable import RepeatableLoader
from cbs_lightning.errors import UserError
from cbs_lightning.results.store import read_run
from cbs_lightning.training.run import run
from tests import strangers
from tests.strange_data import InBatches, Strange
from tests.strange_runs import data, losses_of, model
from tests.strangers import SAMPLES, loader
from tests.test_anywhere import trainer

SHORT = ["stop.loss=1e-9", "stop.max_epochs=2"]


class Held:
    """An object that holds tensors, and is no mapping or sequence."""

    def __init__(self, inputs, labels):
        self.name = "held"
        self.inputs, self.labels = inputs, labels

    def __iter__(self):
        return iter((self.inputs, self.labels))


def stacked(items):
    inputs, labels = zip(*items, strict=True)
    return torch.stack(inputs), torch.stack(labels)


def held(items):
    return Held(*stacked(items))


def named(items):
    """As a tokenizer returns."""
    return UserDict(zip(("inputs", "labels"), stacked(items), strict=True))


def time_first(items):
    inputs, labels = stacked(items)
    return inputs.T, labels


def listed(items):
    return [(inputs.tolist(), int(label)) for inputs, label in items]


COLLATE = {each.__name__: each for each in (held, named, time_first, listed)}


class Collated(Strange):
    def __init__(self, batch_size, collate):
        super().__init__(batch_size)
        self.loader = {"collate_fn": COLLATE[collate]}


class CountedData(Collated):
    def count_samples(self, batch):
        return len(batch[1])


class TimeFirst(strangers.Plain):
    """Its batches are features by samples."""

    def _loss(self, batch):
        inputs, labels = batch
        return cross_entropy(self.net(inputs.T), labels)


class Counted(TimeFirst):
    def count_samples(self, batch):
        return len(batch[1])


class Miscounted(TimeFirst):
    def count_samples(self, batch):
        return len(batch[1]) / 2


class OfLists(strangers.Plain):
    def _loss(self, batch):
        inputs, labels = zip(*batch, strict=True)
        return cross_entropy(self.net(torch.tensor(inputs)), torch.tensor(labels))


class Sizes(strangers.Plain):
    """Returns a key that this project's own loop has too."""

    def training_step(self, batch, _):
        return {"loss": self._loss(batch), "size": [8, 8], "mark": True}


class Share(strangers.Plain):
    """Says what share was right, not how many."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def training_step(self, batch, _):
        inputs, labels = batch
        right = self.net(inputs).argmax(1) == labels
        correct = {"share": right.float().mean(), "each": right, "twice": 2 * len(right)}
        return {"loss": self._loss(batch), "correct": correct[self.how]}


class Skipping(strangers.Plain):
    def training_step(self, batch, number):
        return None if number == 3 else self._loss(batch)


class Prebatched(IterableDataset):
    def __iter__(self):
        inputs, labels = strangers.data().tensors
        return zip(inputs.split(32), labels.split(32), strict=True)


class InEights(Strange):
    """Does not batch as it was told."""

    def train_dataloader(self):
        return DataLoader(self.train, batch_sampler=InBatches(len(self.train), 8))


class PrebatchedData(Strange):
    def train_dataloader(self):
        return DataLoader(Prebatched(), batch_size=None)


OTHER_BATCHES = {
    "an object": data("test_samples.Collated", collate="held"),
    "a mapping of its own kind": data("test_samples.Collated", collate="named"),
    "no tensor": [
        *data("test_samples.Collated", collate="listed"), *model("test_samples.OfLists")
    ],
    "counted by the module": [
        *data("test_samples.Collated", collate="time_first"), *model("test_samples.Counted")
    ],
    "counted by the data": [
        *data("test_samples.CountedData", collate="time_first"), *model("test_samples.TimeFirst")
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The losses with batches as most are."""
    from cbs_lightning.config.composition import compose
    from tests.conftest import STRANGE

    return losses_of(compose([*STRANGE, *SHORT, f"output_dir={tmp_path_factory.mktemp('usual')}"]))


@pytest.mark.parametrize("kind", OTHER_BATCHES)
def test_other_batches_have_the_same_losses_also_in_slices(strange, usual, kind):
    """200 samples leave a batch of 8, and slices of 5 a slice of 1 or 3."""
    cfg = strange(*OTHER_BATCHES[kind], *SHORT, "micro_batch_size=5")
    result = run(cfg)
    found = read_run(run_directory(cfg)).trajectory
    np.testing.assert_allclose(found.loss, usual, rtol=2e-5)
    assert found.size.tolist() == ([16] * 12 + [8]) * 2 and result.steps_run == 26


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            [*data("test_samples.Collated", collate="time_first"), "micro_batch_size=4",
             *model("test_samples.TimeFirst")],
            "the batch's first tensor has length 8, but the batch was loaded from 4 samples; "
            "define count_samples(batch) in the module",
        ),
        (
            [*data("test_samples.Collated", collate="time_first"),
             *model("test_samples.Miscounted")],
            "count_samples returned 8.0; it must return a whole number >= 1",
        ),
        (
            [*data("test_samples.PrebatchedData"), "stop.rule=window", "stop.window=64",
             "stop.max_steps=9"],
            "step 1 took 32 samples, but batch_size is 16; set batch_size=32 if every step",
        ),
        (data("test_samples.InEights"), "step 1 took 8 samples, but batch_size is 16"),
        (
            model("test_samples.Share", how="share"),
            "(logits.argmax(1) == labels).sum(), not torch.float32 of shape ()",
        ),
        (model("test_samples.Share", how="each"), "not torch.bool of shape (16,)"),
        (model("test_samples.Share", how="twice"), "correct is 32 in a step of 16 samples"),
        (
            model("test_samples.Skipping"),
            "training_step returned no loss: batch 3 of epoch 0, step 4; every batch needs one",
        ),
    ],
)  # fmt: skip
def test_what_would_be_counted_wrong_is_refused_in_a_line(strange, overrides, said):
    with pytest.raises(UserError) as error:
        run(strange(*overrides))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_no_module_is_taken_for_this_projects_own_loop(strange, usual):
    assert losses_of(strange(*model("test_samples.Sizes"), *SHORT)) == usual


def test_a_step_of_another_size_is_refused_in_a_trainer_of_ones_own():
    stop = StopAtThreshold(1e-9, batch_size=8)
    with pytest.raises(MisconfigurationException, match="step 1 took 16 samples, but batch_size"):
        trainer(stop, max_epochs=1).fit(strangers.Plain(), loader(16))
    said = "the batch has no tensor to count samples by; define count_samples"
    with pytest.raises(MisconfigurationException, match=said):
        samples_of({"text": ["a", "b"]}, None)


def test_the_module_counts_in_a_trainer_of_ones_own_too():
    stop, batches = StopAtThreshold(1e-9), loader(16, collate_fn=time_first)
    trainer(stop, max_epochs=1).fit(Counted(), batches)
    assert stop.recorder.trajectory.size.tolist() == [16] * 12 + [8]


@pytest.mark.parametrize(
    ("step", "size", "stream", "fine"),
    [
        (3, 16, False, True), (3, 15, False, False), (13, 8, False, True), (13, 17, False, False),
        (1, 8, True, False), (12, 8, True, True), (12, 32, True, False),
    ],
)  # fmt: skip
def test_a_short_batch_ends_an_epoch(step, size, stream, fine):
    """Of a stream every worker ends with one."""
    batches = loader(16, "iterable") if stream else loader(16)
    there = SimpleNamespace(train_dataloader=batches, global_step=step, num_training_batches=13)
    if fine:
        check_step(there, size, 16, step - 1)
    else:
        with pytest.raises(MisconfigurationException, match=f"step {step} took {size} samples"):
            check_step(there, size, 16, step - 1)


@pytest.mark.parametrize(("batch_size", "slice_size"), [(16, 5), (16, 16), (500, 64)])
def test_a_loader_knows_the_samples_of_its_slices(batch_size, slice_size):
    known = RepeatableLoader(loader(batch_size, shuffle=True), 0, slice_size)
    assert [known.slice_of(number) for number in range(len(known))] == [
        len(labels) for _, labels in known
    ]
    assert sum(map(known.slice_of, range(len(known)))) == SAMPLES
