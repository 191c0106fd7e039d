"""Reads a run's `config.yaml`, which may be damaged or come from somebody else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf

from cbs_lightning.config.schema import Settings
from cbs_lightning.errors import ConfigError
from cbs_lightning.results.store import CONFIG

LARGEST = 2**16  # bytes; a run's has about a thousand
DEEPEST = 20  # mappings and lists inside each other
ALLOWED = "must be a run directory, or its config.yaml"
NAMES = ("data", "model", "optimizer", "experiment", "variant")


def read_stored(repeat: Any) -> tuple[Path, Settings]:
    """The file that the key `repeat` names, and what it says: plain values, with all `NAMES`.

    Nothing is built, and nothing of this machine is put in. Raises `ConfigError` for a file that
    no run writes.
    """
    if not isinstance(repeat, str):
        raise ConfigError("repeat", repeat, ALLOWED)
    path = Path(repeat)
    try:
        path = path / CONFIG if path.is_dir() else path
        stored = _parsed(_text(path))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and Path(repeat).is_dir()
        reason = f"has no {CONFIG}" if missing else error.strerror
        raise ConfigError("repeat", repeat, f"{reason}; {ALLOWED}") from error
    except Exception as error:  # whatever garbled text makes yaml and omegaconf raise
        reason = " ".join(str(error).split())
        raise ConfigError("repeat", repeat, f"cannot be read ({reason}); {ALLOWED}") from error
    # An interpolation can read variables of this machine, and make a target of a string.
    if any("${" in text for text in _texts(stored)):
        raise ConfigError("repeat", repeat, "a stored configuration may not have interpolations")
    names = stored.get("names") if isinstance(stored, dict) else None
    if not isinstance(names, dict) or any(name not in names for name in NAMES):
        raise ConfigError("repeat", repeat, f"is not a run's configuration; {ALLOWED}")
    return path, cast(Settings, stored)


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("is no file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
    return content.decode()


def _parsed(text: str) -> Any:
    """Refuse, before anything is built, whatever YAML can do beyond plain values."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError("a stored configuration may not have anchors and aliases")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"a stored configuration may not have tags, such as {event.tag}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels")
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    if "???" in _texts(values):
        raise ValueError("a value is missing (???)")
    return values


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
