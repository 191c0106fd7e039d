"""Flags of Lightning's Trainer: which are passed on, and which keys replace the others."""

from collections.abc import Callable
from typing import Any

from cbs_lightning.config.constraints import Flag, OneOf, Positive, Whole, is_number, one_of
from cbs_lightning.config.schema import Settings
from cbs_lightning.errors import ConfigError, nearest, require

GPUS = {"gpu": ("cuda", "mps"), "cuda": ("cuda",), "mps": ("mps",)}  # what each accelerator needs
ACCELERATORS = ("auto", "cpu", *GPUS)
PRECISIONS = ("32-true", "bf16-mixed")
PROFILERS = ("simple", "advanced", "pytorch")
CLIPPING = ("norm", "value")
PASSED_ON = (
    "accelerator", "devices", "precision", "deterministic", "benchmark", "profiler",
    "gradient_clip_val", "gradient_clip_algorithm", "detect_anomaly", "inference_mode",
    "log_every_n_steps", "check_val_every_n_epoch", "val_check_interval", "limit_val_batches",
)  # fmt: skip

_ONE_DEVICE = "a run has 1 device; a sweep uses several, one for each run (jobs, jobs_per_gpu)"
_ENDS = "a run ends at stop.loss, stop.max_epochs or stop.max_steps; set those instead"
_WHOLE_EPOCHS = "an epoch is all of the data; for a shorter run set stop.max_steps instead"
_GIVEN = "is set by the run itself"
INSTEAD = {
    "max_epochs": "set stop.max_epochs instead",
    "max_steps": "set stop.max_steps instead",
    "min_epochs": _ENDS,
    "min_steps": _ENDS,
    "max_time": _ENDS,
    "fast_dev_run": "set stop.max_steps to a few steps instead",
    "limit_train_batches": _WHOLE_EPOCHS,
    "overfit_batches": _WHOLE_EPOCHS,
    "limit_test_batches": "the test accuracy is of the whole test set",
    "limit_predict_batches": "a run predicts nothing",
    "accumulate_grad_batches": "a step is one batch of batch_size samples; "
    "set micro_batch_size to work it in slices instead",
    "logger": "choose logger=csv, logger=tensorboard, logger=wandb or logger=mlflow instead",
    "callbacks": "set callbacks.<name>._target_ instead",
    "strategy": _ONE_DEVICE,
    "num_nodes": _ONE_DEVICE,
    "sync_batchnorm": _ONE_DEVICE,
    "use_distributed_sampler": _ONE_DEVICE,
    "default_root_dir": "set output_dir instead",
    "enable_checkpointing": "set checkpoint.every_seconds and checkpoint.keep instead",
    "enable_progress_bar": "set progress.every_seconds instead",
    "enable_model_summary": "set callbacks.summary._target_="
    "lightning.pytorch.callbacks.ModelSummary instead",
    "enable_autolog_hparams": "every logger is told the run's configuration; "
    "choose logger=none instead",
    "num_sanity_val_steps": "there is no validation before the first step",
    "reload_dataloaders_every_n_epochs": "the order of the data follows from seed and epoch",
    "plugins": _GIVEN,
    "barebones": "it would leave out what counts the steps",
    "model_registry": "a run registers no model",
}


def check_trainer(trainer: Settings, has_gpu: Callable[[str], bool] | None) -> None:
    """Raise `ConfigError` for the first invalid flag.

    `has_gpu` says whether this machine has a GPU of the kind `cuda` or `mps`; None means that the
    run may be for another machine.
    """
    for key, value in trainer.items():
        if (reason := refusal(str(key))) is not None:
            raise ConfigError(f"trainer.{key}", value, reason)
    _check_device(trainer, has_gpu)
    OneOf(PRECISIONS).check("trainer.precision", trainer.get("precision"))
    profiler, allowed = trainer.get("profiler"), one_of(("null", *PROFILERS))
    require(profiler in (None, *PROFILERS), "trainer.profiler", profiler, allowed)
    benchmark = trainer.get("benchmark")
    valid = benchmark is None or isinstance(benchmark, bool)
    require(valid, "trainer.benchmark", benchmark, "must be true or false")
    deterministic = trainer.get("deterministic", False)
    valid = isinstance(deterministic, bool) or deterministic == "warn"
    require(valid, "trainer.deterministic", deterministic, "allowed: true, false, warn")
    for key in ("detect_anomaly", "inference_mode"):
        Flag().check(f"trainer.{key}", trainer.get(key, False))
    Whole(0).check("trainer.log_every_n_steps", trainer.get("log_every_n_steps", 0))
    _check_clipping(trainer)
    _check_validation(trainer)


def refusal(key: str) -> str | None:
    """Why there is no `trainer.<key>`, and what to set instead; None if there is one."""
    if key in PASSED_ON:
        return None
    if key in INSTEAD:
        return INSTEAD[key]
    meant = nearest(key, [*PASSED_ON, *INSTEAD])
    if meant is None:
        return f"no such key; {one_of(f'trainer.{each}' for each in PASSED_ON)}"
    allowed = INSTEAD.get(meant) or one_of(f"trainer.{each}" for each in PASSED_ON)
    return f"no such key; did you mean trainer.{meant}? {allowed}"


def steps_must_be_single(trainer: Settings) -> list[str]:
    """The flags that need every call of `training_step` to be one step."""
    keys = ("gradient_clip_val", "val_check_interval")
    return [f"trainer.{key}={trainer[key]}" for key in keys if trainer.get(key) is not None]


def _check_device(trainer: Settings, has_gpu: Callable[[str], bool] | None) -> None:
    accelerator = trainer.get("accelerator")
    OneOf(ACCELERATORS).check("trainer.accelerator", accelerator)
    needed = GPUS.get(str(accelerator), ())
    present = has_gpu is None or not needed or any(map(has_gpu, needed))
    require(present, "trainer.accelerator", accelerator, "there is none here; allowed: auto, cpu")
    devices = trainer.get("devices")
    require(devices == 1 and type(devices) is int, "trainer.devices", devices, _ONE_DEVICE)


def _check_clipping(trainer: Settings) -> None:
    clipped, how = trainer.get("gradient_clip_val"), trainer.get("gradient_clip_algorithm")
    if clipped is not None:
        Positive().check("trainer.gradient_clip_val", clipped)
    allowed = one_of(CLIPPING)
    require(how in (None, *CLIPPING), "trainer.gradient_clip_algorithm", how, allowed)
    needed = "needs trainer.gradient_clip_val as well"
    valid = clipped is not None or how in (None, "norm")
    require(valid, "trainer.gradient_clip_algorithm", how, needed)


def _check_validation(trainer: Settings) -> None:
    every, interval = trainer.get("check_val_every_n_epoch", 1), trainer.get("val_check_interval")
    limit = trainer.get("limit_val_batches")
    Whole(1, others=(None,)).check("trainer.check_val_every_n_epoch", every)
    allowed = "must be a whole number of steps >= 1, a share of an epoch above 0, or null"
    valid = interval is None or (_number_or_share(interval) and interval > 0)
    require(valid, "trainer.val_check_interval", interval, allowed)
    needed = "needs trainer.val_check_interval as a whole number of steps"
    valid = every is not None or type(interval) is int
    require(valid, "trainer.check_val_every_n_epoch", every, needed)
    allowed = "must be a whole number >= 0, a share from 0.0 to 1.0, or null"
    valid = limit is None or _number_or_share(limit)
    require(valid, "trainer.limit_val_batches", limit, allowed)


def _number_or_share(value: Any) -> bool:
    return is_number(value) and value >= 0 and (type(value) is int or value <= 1)
