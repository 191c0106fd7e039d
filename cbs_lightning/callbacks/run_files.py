"""Writes the run directory of a run in any Trainer."""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import OmegaConf
from torch.nn.parameter import is_lazy

from cbs_lightning.callbacks.loaders import data_size
from cbs_lightning.callbacks.optimizer_settings import (
    OptimizerSettings,
    plain_values,
    schedules_of,
)
from cbs_lightning.files import write_atomically
from cbs_lightning.results import provenance, store
from cbs_lightning.results.result import (
    SCHEMA_VERSION,
    UNFINISHED,
    Request,
    Result,
    Status,
    answer,
    seeds_in_words,
)

if TYPE_CHECKING:
    from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold

# What tells runs apart now, and did not always.
LATER_KEYS = (
    "data_size", "accumulate_grad_batches", "precision", "gradient_clip_algorithm", "schedulers",
)  # fmt: skip


class RunFiles:
    """Writes the result, the losses and a description of the run to `directory`.

    The name of the folder above is the study. `variant` is by default the optimizer's name, and
    `seed` that of `seed_everything`, or None without one.
    """

    def __init__(self, directory: Path, variant: str | None, seed: int | None) -> None:
        self.directory = directory
        self.variant = variant
        self.seed = seed
        self._blank: Result | None = None  # until the directory is known to be this run's
        self._schedulers: list[dict[str, Any]] = []

    def note_schedulers(self, trainer: L.Trainer) -> None:
        """Call it at the start, before their states are restored from a checkpoint."""
        self._blank, self._schedulers = None, schedules_of(trainer)

    def begin(self, trainer: L.Trainer, module: L.LightningModule, stop: "StopAtThreshold") -> None:
        """Raises if the directory holds another run."""
        blank = self._describe(trainer, module, stop)
        with suppress(store.DamagedError, FileNotFoundError):
            stored = store.read_result(self.directory)
            if stored.config_hash not in (blank.config_hash, _earlier_hash(blank)):
                own, other = blank.configuration, stored.configuration
                differing = ", ".join(key for key in own if own[key] != other.get(key, own[key]))
                raise MisconfigurationException(
                    f"directory={str(self.directory)!r} holds another run ({stored.variant}, "
                    f"b = {stored.batch_size}, {seeds_in_words([stored.seed])}), which differs in "
                    f"{differing}; take another, or move it away"
                )
        self.directory.mkdir(parents=True, exist_ok=True)
        text = OmegaConf.to_yaml(OmegaConf.create(blank.configuration))
        write_atomically(self.directory / store.CONFIG, text.encode())
        self._blank = blank

    def finish(self, stop: "StopAtThreshold") -> None:
        """Write everything, the result last."""
        if self._blank is None or stop.status is None:
            return
        trajectory = stop.recorder.trajectory
        steps_run = len(trajectory)
        result = replace(
            self._blank,
            ended=stop.status,
            steps_run=steps_run,
            epochs_run=steps_run / self._blank.steps_per_epoch,
            seconds_per_step=stop.recorder.seconds_per_step,
            waited=stop.recorder.waited,
        )
        budget = steps_run if stop.status is Status.EXHAUSTED else None
        request = Request(stop.threshold, stop.rule.name, stop.rule.window, budget)
        result = answer(result, trajectory, request)
        if stop.status in UNFINISHED:
            result = replace(result, status=stop.status, steps=None, sfo=None, samples=None)
        store.write_trajectory(self.directory, trajectory)
        store.publish(self.directory, result)

    def _describe(
        self, trainer: L.Trainer, module: L.LightningModule, stop: "StopAtThreshold"
    ) -> Result:
        """A result with no steps."""
        assert stop.batch_size is not None and stop.effective_batch_size is not None
        optimizer = trainer.optimizers[0]
        name = type(optimizer).__name__.lower()
        lr, settings = OptimizerSettings.of(optimizer)
        seed = self.seed if self.seed is not None else _global_seed()
        data = _data(trainer)
        identity: dict[str, Any] = {
            "data": type(data).__name__,
            "model": type(module).__name__,
            "optimizer": {"name": name, "lr": lr, **settings},
            "variant": self.variant or name,
            "batch_size": stop.batch_size,
            "seed": seed,
            **_details(trainer, module, data),
            "schedulers": self._schedulers,
        }
        return Result(
            schema_version=SCHEMA_VERSION,
            status=Status.FAILED,
            ended=Status.FAILED,
            study=self.directory.resolve().parent.name,
            variant=identity["variant"],
            data=identity["data"],
            model=identity["model"],
            optimizer=name,
            lr=lr,
            hyperparameters=settings,
            batch_size=stop.batch_size,
            effective_batch_size=stop.effective_batch_size,
            micro_batch_size=None,
            seed=seed,
            threshold=stop.threshold,
            rule=stop.rule.name,
            window=stop.rule.window,
            steps=None,
            sfo=None,
            samples=None,
            steps_run=0,
            epochs_run=0.0,
            steps_per_epoch=stop.rule.steps_per_epoch,
            data_size=identity["data_size"] or stop.rule.steps_per_epoch * stop.batch_size,
            loss=None,
            accuracy=None,
            test_accuracy=None,
            seconds=0.0,
            seconds_per_step=None,
            threads=torch.get_num_threads(),
            device=provenance.device_name(trainer.strategy.root_device),
            config_hash=_hash(identity),
            versions=provenance.versions(),
            commit=provenance.commit(),
            configuration=identity,
            machine=provenance.machine(),
            tokens_per_sample=getattr(data, "tokens_per_sample", None),
        )


def _global_seed() -> int | None:
    """What Lightning's `seed_everything` was given; None if it was not called."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    return int(seed) if seed else None


def _hash(identity: dict[str, Any]) -> str:
    # Unseeded runs count as seed 0 here: their directories are older than the distinction.
    text = json.dumps(identity | {"seed": identity["seed"] or 0}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _earlier_hash(blank: Result) -> str:
    """That of the same run in a directory from before there were the later keys."""
    earlier = {k: v for k, v in blank.configuration.items() if k not in LATER_KEYS}
    return _hash(earlier | {"batch_size": blank.effective_batch_size})


def _details(trainer: L.Trainer, module: L.LightningModule, data: Any) -> dict[str, Any]:
    """What tells runs of the same classes apart, as far as a Trainer knows."""
    clipped, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    found: dict[str, Any] = {
        "parameters": sum(each.numel() for each in module.parameters() if not is_lazy(each)),
        "hyperparameters": plain_values(module.hparams),
        "gradient_clip_val": clipped,
        "gradient_clip_algorithm": str(getattr(how, "value", how or "norm")) if clipped else None,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "precision": trainer.precision,
        "data_size": data_size(trainer.train_dataloader),
    }
    if (fingerprint := getattr(data, "fingerprint", None)) is not None:
        found["fingerprint"] = str(fingerprint)
    return found


def _data(trainer: L.Trainer) -> Any:
    """The DataModule; without one the data set, or the loader itself."""
    loader: Any = trainer.train_dataloader
    datamodule = getattr(trainer, "datamodule", None)
    return datamodule if datamodule is not None else getattr(loader, "dataset", loader)
