"""A Trainer that tells a module the run's budget, and notes that it was asked.

Losses that depend on the budget, such as those of a schedule over `trainer.max_steps`, do not
answer for another one.
"""

import logging
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import ConfigError
from cbs_lightning.results.result import Result

UNNOTED = (
    "lightning.pytorch.",
    "lightning.fabric.",
    "cbs_lightning.",
)  # whose questions change no loss


@dataclass
class Budget:
    """What `stop.*` allows a run to spend."""

    max_epochs: int | None
    max_steps: int | None
    is_stream: bool = False  # whose epochs do not count
    was_read: bool = False  # by the user's code

    @classmethod
    def of(cls, cfg: RunConfig) -> "Budget":
        return cls(cfg.stop.max_epochs, cfg.stop.max_steps)

    @property
    def words(self) -> str:
        limits = {"max_epochs": self.max_epochs, "max_steps": self.max_steps}
        return ", ".join(f"stop.{k}={v}" for k, v in limits.items() if v is not None)

    @property
    def origin(self) -> dict[str, str]:
        """For a checkpoint: the budget, if its losses depend on it."""
        return {"budget": self.words} if self.was_read else {}

    def allows(self, result: Result) -> bool:
        """Whether its losses may be those of a run with this budget."""
        stop = result.configuration.get("stop", {})
        limits = stop.get("max_epochs"), stop.get("max_steps")
        return not result.reads_budget or limits == (self.max_epochs, self.max_steps)

    def epochs_for(self, reader: str) -> int:
        """Note that this module reads the epochs."""
        self.was_read = True
        why = f"{reader} reads trainer.max_epochs"
        if self.is_stream:
            why += ", and a stream has no epochs: read trainer.max_steps instead"
            raise ConfigError("stop.max_epochs", self.max_epochs, why)
        if self.max_epochs is None:
            raise ConfigError("stop.max_epochs", None, f"{why}; a number of epochs is needed")
        return self.max_epochs


class BudgetedTrainer(L.Trainer):
    """Ends at `max_steps` alone: Lightning miscounts epochs after some restarts."""

    def __init__(self, budget: Budget, max_steps: int, **settings: Any) -> None:
        self.budget = budget
        # Under SLURM, Lightning would look for checkpoints of its own, of whatever run.
        plugins = [*settings.pop("plugins", ()), LightningEnvironment()]
        super().__init__(max_epochs=-1, max_steps=max_steps, plugins=plugins, **settings)

    @property
    def max_epochs(self) -> int | None:
        reader = _reader()
        if reader is None:
            return self.fit_loop.max_epochs
        return self.budget.epochs_for(reader)

    @property
    def max_steps(self) -> int:
        self.budget.was_read |= _reader() is not None
        return self.fit_loop.max_steps

    @property
    def estimated_stepping_batches(self) -> int:
        self.budget.was_read |= _reader() is not None
        return self.fit_loop.max_steps


def trainer_of_data(budget: Budget) -> L.Trainer:
    """The Trainer of a DataModule until the run's own is built, which needs to know the data."""
    quieten()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a GPU is not used
        return BudgetedTrainer(
            budget,
            budget.max_steps or -1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


def quieten() -> None:
    """Silence what Lightning says about every Trainer."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Which has the table of a profiler printed.
    logging.getLogger("lightning.pytorch.profilers.profiler").setLevel(logging.INFO)
    for pointless in (
        ".*treespec.*", ".*`srun` command is available.*", ".*logging interval.*",
        ".*but have no `validation_step`.*",
    ):  # fmt: skip
        warnings.filterwarnings("ignore", module="lightning", message=pointless)
    # Lightning has torch ask NVIDIA's management library whether there is a GPU, and Adam asks at
    # every step: a fifth of a millisecond each, where the answer cannot change.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def _reader() -> str | None:
    """The module of the code that reads a property of the Trainer, if it is the user's."""
    name = str(sys._getframe(2).f_globals.get("__name__", ""))
    return None if name.startswith(UNNOTED) else name
