"""A run's stored configuration, to be run again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config.schema import Settings
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.imports import load_frameworks
from cbs_lightning.results.store import CONFIG

# Where things are, how they are shown and whom to trust is never somebody else's to say.
OWN = (
    "repeat", "trusted_packages", "output_dir", "data_dir", "progress", "tensorboard", "report",
    "jobs", "jobs_per_gpu",
)  # fmt: skip
NAMES = ("data", "model", "optimizer", "experiment", "variant")


def repeated(
    values: Settings, names: dict[str, Any], groups: Sequence[str], overrides: Sequence[str]
) -> tuple[Settings, dict[str, Any]]:
    """What the run directory `repeat` stores, and its names, under the command line's own.

    What the stored one does not say is as in `values`, and so is what `overrides` override.
    """
    load_frameworks()  # only where it is needed, since it takes seconds
    from cbs_lightning.config.trust import check_targets

    stored = _read(values["repeat"])
    check_targets(stored, values["trusted_packages"])
    merged = OmegaConf.create(values)
    merged_names = {name: stored["names"][name] for name in NAMES}
    for key in [key for key in stored if key in values and key not in OWN]:
        merged[key] = stored[key] if key in groups else _updated(merged[key], stored[key])
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if override.is_delete() or key == "experiment":
            raise UserError(f"{override.input_line}: cannot be combined with repeat")
        if key in groups:
            merged_names[key] = names[key]
        if key.partition(".")[0] in values:
            own = OmegaConf.select(OmegaConf.create(values), key)
            OmegaConf.update(merged, key, own, merge=False, force_add=True)
    return cast(Settings, OmegaConf.to_container(merged)), merged_names


def _read(repeat: Any) -> Settings:
    allowed = "must be a run directory, or its config.yaml"
    if not isinstance(repeat, str):
        raise ConfigError("repeat", repeat, allowed)
    path = Path(repeat)
    try:
        path = path / CONFIG if path.is_dir() else path
        stored = OmegaConf.to_container(OmegaConf.create(path.read_text()), resolve=False)
    except OSError as error:
        raise ConfigError("repeat", repeat, f"{path}: {error.strerror}; {allowed}") from error
    except Exception as error:  # whatever garbled text makes yaml and omegaconf raise
        reason = " ".join(str(error).split())
        raise ConfigError("repeat", repeat, f"cannot be read ({reason}); {allowed}") from error
    # An interpolation can read variables of this machine, and make a target of a string.
    if any("${" in text for text in _texts(stored)):
        raise ConfigError("repeat", repeat, "a stored configuration has no interpolations")
    names = stored.get("names") if isinstance(stored, dict) else None
    if not isinstance(names, dict) or any(name not in names for name in NAMES):
        raise ConfigError("repeat", repeat, f"is no run's configuration; {allowed}")
    return cast(Settings, stored)


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
    if isinstance(defaults, DictConfig) and isinstance(stored, dict):
        return OmegaConf.merge(defaults, stored)
    return stored
