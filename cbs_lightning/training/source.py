"""A run's data: a DataModule of this project or of the user, and what training needs to know."""

from typing import Any, NamedTuple

import lightning as L
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import BatchSampler

from cbs_lightning.config.datamodule import build_datamodule
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.data import ImageDataModule
from cbs_lightning.data.repeatable import (
    KeptLoader,
    RepeatableLoader,
    is_repeatable,
    samples_of_epoch,
)
from cbs_lightning.errors import ConfigError, DataError, UserError
from cbs_lightning.results.result import Result
from cbs_lightning.training.budgeted_trainer import Budget, trainer_of_data
from cbs_lightning.training.loops import is_classifier


class Extent(NamedTuple):
    """How much data there is. A stream has no length and counts as epochs of one step."""

    size: int  # samples
    steps_per_epoch: int
    is_stream: bool = False

    @property
    def sized(self) -> int | None:
        """The samples of an epoch; None if there are no epochs."""
        return None if self.is_stream else self.size

    @classmethod
    def of(cls, result: Result) -> "Extent":
        return cls(result.data_size, result.steps_per_epoch, result.is_stream)


class Source:
    """The DataModule of a run and, after `setup`, its training loader, which repeats exactly.

    `prepare_data` and `setup` of a user's DataModule are called once, with the run's seed set.
    """

    def __init__(self, cfg: RunConfig) -> None:
        self.cfg = cfg
        self.datamodule = build_datamodule(cfg)
        self.loader: RepeatableLoader | KeptLoader | None = None  # a stranger's
        self.budget = Budget.of(cfg)

    @property
    def images(self) -> ImageDataModule | None:
        """The DataModule, if it is one of this project's."""
        return self.datamodule if isinstance(self.datamodule, ImageDataModule) else None

    @property
    def has_test(self) -> bool:
        """Whether test accuracy is measured; available after `setup`."""
        return self.images is not None and self.images.split.test is not None

    @property
    def extent(self) -> Extent:
        """How much data there is; available after `setup`."""
        if self.images is not None:
            size = self.images.train_size
            return Extent(size, -(-size // min(self.cfg.batch_size, size)))
        assert self.loader is not None
        if self.loader.steps_per_epoch is None:
            return Extent(self.cfg.batch_size, 1, is_stream=True)
        size = samples_of_epoch(self.loader) or self.loader.steps_per_epoch * self.cfg.batch_size
        return Extent(size, self.loader.steps_per_epoch)

    @property
    def largest_batch(self) -> int | None:
        """The number of samples that larger batches are cut to; None if a user's data may do
        otherwise.

        Available after `setup`.
        """
        if self.images is None or not is_classifier(self.cfg):
            return None
        own = type(self.images).train_dataloader is ImageDataModule.train_dataloader
        return self.images.train_size if own else None

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens per sample, if the data says so."""
        tokens = getattr(self.datamodule, "tokens_per_sample", None)
        return int(tokens) if tokens is not None else None

    @property
    def limits_of_restart(self) -> str | None:
        """What a resumed run depends on besides its seed, in words; None if nothing."""
        if not isinstance(self.loader, KeptLoader):
            return None
        dataset = type(self.loader.dataset).__name__
        what = f"the stream {dataset}"
        if self.loader.steps_per_epoch is not None:
            own = self.loader.loader
            batches, sampler = (getattr(own, each, None) for each in ("batch_sampler", "sampler"))
            found = sampler if type(batches) in (BatchSampler, type(None)) else batches
            what = f"the sampler {type(found).__name__}" if found is not None else what
        return f"{what} is kept as it is: resuming is exact if it yields the same again"

    def prepare(self) -> None:
        """Find the data or download it."""
        _call(self.datamodule, "prepare_data")

    def setup(self) -> None:
        if self.images is not None:
            self.images.setup("fit")
        elif self.loader is None:
            L.seed_everything(self.cfg.seed, verbose=False)
            self.datamodule.trainer = trainer_of_data(self.budget)
            _call(self.datamodule, "setup", "fit")
            self.loader = self._repeatable(_call(self.datamodule, "train_dataloader"))
            self.budget.is_stream = self.loader.steps_per_epoch is None
            self._hand_over()

    def _hand_over(self) -> None:
        """Make Lightning use what was already set up."""
        datamodule: Any = self.datamodule
        set_up = datamodule.setup
        datamodule.prepare_data = lambda: None
        datamodule.setup = lambda stage: None if stage == "fit" else set_up(stage)
        datamodule.train_dataloader = lambda: self.loader

    def _repeatable(self, loader: Any) -> RepeatableLoader | KeptLoader:
        name, size = type(self.datamodule).__name__, self.cfg.batch_size
        if isinstance(loader, CombinedLoader | dict | list | tuple):
            raise DataError(f"{name}.train_dataloader returns several loaders; one is needed")
        if not hasattr(loader, "__iter__"):
            raise DataError(f"{name}.train_dataloader returns {loader!r}; a loader is needed")
        own = getattr(loader, "batch_size", None)
        if own not in (None, size):
            reason = f"{name}.train_dataloader has batches of {own}; pass batch_size to it"
            raise ConfigError("batch_size", size, reason)
        slice_size = self.cfg.micro_batch_size
        if is_repeatable(loader):
            repeatable = RepeatableLoader(
                loader, self.cfg.seed, slice_size if isinstance(slice_size, int) else None
            )
            if repeatable.steps_per_epoch == 0:
                reason = f"{name} has {repeatable.samples} samples and drops the last batch"
                raise ConfigError("batch_size", size, f"{reason}, so none is left")
            return repeatable
        if slice_size is not None:
            reason = "needs a data set with a length and a plain order; allowed here: null"
            raise ConfigError("micro_batch_size", slice_size, reason)
        return KeptLoader(loader, self.cfg.seed, size)


def _call(datamodule: L.LightningDataModule, method: str, *arguments: str) -> Any:
    """Call one of its methods; anything that a user's method raises becomes one line."""
    try:
        return getattr(datamodule, method)(*arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(datamodule, ImageDataModule):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        where = f"{type(datamodule).__name__}.{method}"
        raise DataError(f"{where} failed: {reason}") from error
