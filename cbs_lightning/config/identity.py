"""What tells runs apart: the hash of all that decides their losses, and a label for people."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results import store

# What decides a run's losses. Everything else of the trainer's settings does too, but these:
LOSS_KEYS = (
    "data", "model", "optimizer", "batch_size", "micro_batch_size", "compile", "seed",
    "lr_scaling", "lr_reference_batch_size", "warmup_samples",
)  # fmt: skip
# Keys that there have not always been, with what runs from before had.
LATER_KEYS = {"compile": None, "lr_scaling": Scaling.NONE, "warmup_samples": 0}
NEUTRAL_TRAINER_KEYS = ("accelerator", "devices", "profiler")
NOT_IN_LABEL = ("batch_size", "seed")  # a curve runs over the one, its points over the other


def config_hash(cfg: RunConfig) -> str:
    """The same for configurations whose losses are the same, whatever ends their runs."""
    values = identity(cfg)
    if values["lr_scaling"] == Scaling.NONE:
        del values["lr_reference_batch_size"]
    for key, before in LATER_KEYS.items():
        if values[key] == before:
            del values[key]
    return hashlib.sha256(canonical(values).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    """Plain values as text; 1 and 1.0 are one setting."""
    return re.sub(r"(?<=\d)\.0\b", "", json.dumps(value, sort_keys=True, default=str))


def identity(cfg: RunConfig) -> dict[str, Any]:
    """All that decides the losses, by the dotted key."""
    trainer = {k: v for k, v in cfg.trainer.items() if k not in NEUTRAL_TRAINER_KEYS}
    return flatten({key: getattr(cfg, key) for key in LOSS_KEYS} | {"trainer": trainer})


def variant_label(cfg: RunConfig, usual: RunConfig) -> str:
    """What distinguishes a run of its study beyond batch size and seed.

    The optimizer's name, and whatever else decides the losses and is not as in `usual`, which is
    the study's own experiment, or the plain defaults.
    """
    label = [cfg.names.optimizer]
    left_out = list(NOT_IN_LABEL)
    if cfg.lr_scaling is Scaling.NONE:
        left_out.append("lr_reference_batch_size")
    for group in ("data", "model"):
        if getattr(usual.names, group) != (name := getattr(cfg.names, group)):
            label.append(name)
            left_out.append(f"{group}.")
    usual_values, values = identity(usual), identity(cfg)
    for key in dict.fromkeys([*values, *usual_values]):
        if key in left_out or key.startswith(tuple(each for each in left_out if "." in each)):
            continue
        name = key.rpartition(".")[2]
        if key not in values:
            label.append(f"{name}=default")
        elif key not in usual_values or usual_values[key] != values[key]:
            label.append(f"{name}={_short(values[key])}")
    return " ".join(label)


def hyperparameters(cfg: RunConfig) -> dict[str, Any]:
    """The optimizer's settings but its learning rate."""
    return {k: v for k, v in cfg.optimizer.items() if k != "lr" and not k.startswith("_")}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


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
