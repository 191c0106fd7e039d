"""What an experiment sweeps: `hydra.sweeper.grid` and `.params` of its YAML file.

Nothing here may take long to import.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from cbs_lightning.errors import ConfigError

GRID, PARAMS = "hydra.sweeper.grid", "hydra.sweeper.params"
EXAMPLE = "{optimizer: adam, batch_size: '4,8,16'}"

Row = dict[str, str]  # what each key is swept over, as it would be typed


def read_grid(grid: Any) -> list[Row]:
    """The rows of a grid. Raises `ConfigError` for anything that is not a grid."""
    plain = _plain(grid)
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        raise ConfigError(GRID, plain, f"must be a list of rows, such as [{EXAMPLE}]")
    return [_row(f"{GRID}[{number}]", row) for number, row in enumerate(plain)]


def read_params(params: Any) -> Row:
    """Values to sweep unless the command line has others."""
    return _row(PARAMS, _plain(params) or {})


def typed(row: Row) -> list[str]:
    """The row as arguments of the command line."""
    return [f"{key}={value}" for key, value in row.items()]


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _row(key: str, row: Any) -> Row:
    if not isinstance(row, Mapping):
        raise ConfigError(key, row, f"must be keys with their values, such as {EXAMPLE}")
    return {str(name): _text(f"{key}.{name}", name, value) for name, value in row.items()}


def _text(key: str, name: str, value: Any) -> str:
    """The value as it would be typed on the command line."""
    if isinstance(value, dict):
        inner = next(iter(value), "<key>")
        raise ConfigError(key, value, f"keys have dots here, such as {name}.{inner}: '1,2'")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
