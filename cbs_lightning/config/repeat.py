"""A run's stored configuration, to be run again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from cbs_lightning import imports as frameworks
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.results.store import CONFIG

# Where things are, how they are shown and whom to trust is never somebody else's to say.
OWN = (
    "repeat", "trusted_packages", "output_dir", "data_dir", "progress", "tensorboard", "report",
    "jobs", "jobs_per_gpu", "sweep",
)  # fmt: skip
NAMES = ("data", "model", "optimizer", "experiment", "variant")


def repeated(
    cfg: DictConfig, names: dict[str, Any], groups: Sequence[str], overrides: Sequence[str]
) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration that `cfg.repeat` stores, and its names, under the command line's own.

    What the stored one does not say is as `cfg` has it, and so is what `overrides` override.
    """
    frameworks.load()  # only where it is needed, since it takes seconds
    from cbs_lightning.config.trust import check_targets

    stored = _read(cfg)
    check_targets(stored, cfg.trusted_packages)
    merged, merged_names = cfg.copy(), dict(stored.names)
    with open_dict(merged):
        for key in [key for key in stored if key in cfg and key not in OWN]:
            merged[key] = stored[key] if key in groups else _updated(cfg[key], stored[key])
        for override in OverridesParser.create().parse_overrides(list(overrides)):
            key = override.key_or_group
            if override.is_delete() or key == "experiment":
                raise UserError(f"{override.input_line}: cannot be combined with repeat")
            if key in groups:
                merged_names[key] = names[key]
            OmegaConf.update(merged, key, OmegaConf.select(cfg, key), merge=False, force_add=True)
    return merged, merged_names


def _read(cfg: DictConfig) -> DictConfig:
    allowed = "must be a run directory, or its config.yaml"
    if not isinstance(cfg.repeat, str):
        raise ConfigError("repeat", cfg.repeat, allowed)
    path = Path(cfg.repeat)
    try:
        path = path / CONFIG if path.is_dir() else path
        stored = OmegaConf.create(path.read_text())
    except OSError as error:
        raise ConfigError("repeat", cfg.repeat, f"{path}: {error.strerror}; {allowed}") from error
    except Exception as error:  # whatever garbled text makes yaml and omegaconf raise
        reason = " ".join(str(error).split())
        raise ConfigError("repeat", cfg.repeat, f"cannot be read ({reason}); {allowed}") from error
    values = OmegaConf.to_container(stored, resolve=False)
    # An interpolation can read variables of this machine, and make a target of a string.
    if any("${" in text for text in _texts(values)):
        raise ConfigError("repeat", cfg.repeat, "a stored configuration has no interpolations")
    names = values.get("names") if isinstance(values, dict) else None
    if not isinstance(names, dict) or any(name not in names for name in NAMES):
        raise ConfigError("repeat", cfg.repeat, f"is no run's configuration; {allowed}")
    assert isinstance(stored, DictConfig)
    return stored


def _texts(value: Any) -> Iterator[str]:
    """All keys and values that are text, however they were written."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    else:
        yield str(value)


def _updated(defaults: Any, stored: Any) -> Any:
    """A group of keys takes what is stored key by key, since it may have got new ones since."""
    if isinstance(defaults, DictConfig) and isinstance(stored, DictConfig):
        return OmegaConf.merge(defaults, stored)
    return stored
