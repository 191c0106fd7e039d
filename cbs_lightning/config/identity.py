"""What distinguishes runs: the hash of all that affects their losses, and a readable label."""

import hashlib
import inspect
import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cbs_lightning.config.schema import RunConfig, Settings
from cbs_lightning.optim.groups import KEY
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.optim.scaling import DecayScaling, ScalingRule
from cbs_lightning.results import store

# What decides a run's losses. Everything else of the trainer's settings does too, but these:
LOSS_KEYS = (
    "data", "model", "optimizer", "batch_size", "micro_batch_size", "compile", "seed",
    "lr_scaling", "scaling_rule", "weight_decay_scaling", "lr_reference_batch_size",
    "warmup_samples",
)  # fmt: skip
# Keys that there have not always been, with what runs from before had; first an optimizer's.
LATER_SETTINGS = {"optimizer.decoupled_weight_decay": False}
LATER_KEYS = {
    **LATER_SETTINGS,
    "compile": None, "lr_scaling": Scaling.NONE, "scaling_rule": ScalingRule.NONE,
    "weight_decay_scaling": DecayScaling.NONE, "warmup_samples": 0,
    "trainer.gradient_clip_val": None, "trainer.gradient_clip_algorithm": "norm",
    "trainer.check_val_every_n_epoch": 1, "trainer.val_check_interval": None,
    "trainer.limit_val_batches": None,
}  # fmt: skip
NEUTRAL_TRAINER_KEYS = (
    "accelerator", "devices", "profiler", "log_every_n_steps", "detect_anomaly", "inference_mode",
)  # fmt: skip
SHARES = ("val_check_interval", "limit_val_batches")  # 1.0 is all of them, as null; 1 is one
CONSTANT = "cbs_lightning.optim.schedules.Constant"  # as runs have it that name no scheduler
NEUTRAL = "neutral"  # of a callback: it decides no loss
OWN = "own"  # the optimizer that a module configures itself
# Whose budget is part of the run. A budget read elsewhere than in the class is noticed in training.
SCHEDULING = re.compile("max_steps|max_epochs|estimated_stepping_batches|lr_scheduler")
FRAMEWORKS = ("lightning", "torch", "builtins", "abc", "typing")  # packages
NAMED_IN_LABEL = ("data", "model", "scheduler")  # where the study usually has another option
NOT_IN_LABEL = ("batch_size", "seed")  # a curve runs over the one, its points over the other


def config_hash(cfg: RunConfig) -> str:
    """A hash that is the same for configurations with the same losses, whatever ends their runs."""
    values = identity(cfg)
    if not cfg.rules.any:
        del values["lr_reference_batch_size"]
    for key, before in LATER_KEYS.items():
        if key in values and values[key] == before:
            del values[key]
    if (data := _fingerprint(cfg)) is not None:
        values["data.fingerprint"] = data
    return hashlib.sha256(canonical(values).encode()).hexdigest()[:16]


def _fingerprint(cfg: RunConfig) -> str | None:
    from cbs_lightning.config.datamodule import fingerprint  # Lightning takes long to import

    return fingerprint(cfg)


def canonical(value: Any) -> str:
    """Plain values as text; 1 and 1.0 are the same setting, "1" and "1.0" are not."""
    return json.dumps(_whole(value), sort_keys=True, default=str)


def _whole(value: Any) -> Any:
    """The same with whole numbers as integers."""
    match value:
        case Mapping():
            return {key: _whole(each) for key, each in value.items()}
        case list() | tuple():
            return [_whole(each) for each in value]
        case float() if value.is_integer() and abs(value) < 1e16:  # larger ones are 1e+16
            return int(value)
    return value


def identity(cfg: RunConfig) -> dict[str, Any]:
    """Everything that affects the losses, by dotted key."""
    trainer = {
        key: None if key in SHARES and _is_all(value) else value
        for key, value in cfg.trainer.items()
        if key not in NEUTRAL_TRAINER_KEYS
    }
    scheduler = cfg.scheduler if cfg.scheduler.get("_target_") != CONSTANT else {}
    others = {"scheduler": scheduler, "callbacks": _callbacks(cfg), "trainer": trainer}
    if cfg.names.optimizer == OWN and _may_schedule_by_budget(cfg.model["_target_"]):
        others["stop"] = {"max_epochs": cfg.stop.max_epochs, "max_steps": cfg.stop.max_steps}
    return flatten({key: getattr(cfg, key) for key in LOSS_KEYS} | others)


def _is_all(share: Any) -> bool:
    return isinstance(share, float) and share == 1


@cache
def _may_schedule_by_budget(target: str) -> bool:
    """Whether a module's code deals with schedules or with the length of training."""
    from hydra.utils import get_class

    try:
        bases = get_class(target).__mro__
        own = [each for each in bases if each.__module__.partition(".")[0] not in FRAMEWORKS]
        return any(SCHEDULING.search(inspect.getsource(each)) for each in own)
    except (ImportError, OSError, TypeError):
        return True


def _callbacks(cfg: RunConfig) -> dict[str, Settings]:
    """The callbacks that may affect losses."""
    return {
        name: {k: v for k, v in settings.items() if k != NEUTRAL}
        for name, settings in cfg.callbacks.items()
        if not settings.get(NEUTRAL)
    }


def variant_label(cfg: RunConfig, usual: RunConfig) -> str:
    """What distinguishes a run within its study, besides batch size and seed.

    The optimizer's name, those of data, model and scheduler if the study usually has others, and
    everything else that affects the losses and differs from `usual`: the study's own experiment or
    the plain defaults, with the run's data, model and scheduler at their own defaults.
    """
    label = [cfg.names.optimizer]
    left_out = list(NOT_IN_LABEL)
    if not cfg.rules.any:
        left_out.append("lr_reference_batch_size")
    for group in NAMED_IN_LABEL:
        if getattr(usual.names, group) != (name := getattr(cfg.names, group)):
            label.append(name)
    usual_values, values = identity(usual), identity(cfg)
    keys = list(dict.fromkeys([*values, *usual_values]))
    ends = Counter(map(_name, keys))
    absent = object()
    for key in keys:
        if key in left_out:
            continue
        before = LATER_SETTINGS.get(key, absent)
        if values.get(key, before) != usual_values.get(key, before):
            label.append(_word(key, values, usual_values, alone=ends[_name(key)] == 1))
    return " ".join(label)


def _word(
    key: str, values: Mapping[str, Any], usual_values: Mapping[str, Any], *, alone: bool
) -> str:
    """The label's word for a key with an unusual value; `alone`: use only its last name."""
    group, _, last = key.rpartition(".")
    added = group.removeprefix("callbacks.")
    if last == "_target_" and added != group and (key in values) != (key in usual_values):
        return added if key in values else f"{added}=none"
    # Else data.width and model.width would be one thing.
    name = _name(key) if alone or last.startswith("_") else key
    return f"{name}={_short(values[key])}" if key in values else f"{name}=default"


def hyperparameters(cfg: RunConfig, data_size: int) -> dict[str, Any]:
    """The optimizer's settings at the run's batch size, without the learning rate."""
    settings = flatten(cfg.optimizer_settings(data_size))
    return {k: v for k, v in settings.items() if k != "lr" and not k.startswith("_")}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _name(key: str) -> str:
    """A key as shown in a label: its last part and, in a parameter group, the name of the group."""
    group, _, name = key.rpartition(".")
    return f"{group.rpartition('.')[2]}.{name}" if f".{KEY}." in key else name


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def run_directory(cfg: RunConfig) -> Path:
    return store.run_directory(
        Path(cfg.output_dir),
        cfg.study,
        cfg.names.variant,
        cfg.batch_size,
        cfg.seed,
        config_hash(cfg),
    )


def run_title(cfg: RunConfig) -> str:
    seed = f" seed={cfg.seed}" if cfg.seed else ""
    return f"{cfg.names.variant} b={cfg.batch_size}{seed}"
