"""Optimizers from packages that are not installed with this project."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from cbs_lightning.commands import install_command
from cbs_lightning.errors import ConfigError

# The packages, and this project's extras that install them.
EXTRAS = {"pytorch_optimizer": "optimizers", "schedulefree": "optimizers"}


def require_package(optimizer: Mapping[str, Any], name: str) -> None:
    """Raise `ConfigError` for an optimizer from an optional package that is not installed."""
    package = str(optimizer.get("_target_")).partition(".")[0]
    if package in EXTRAS and find_spec(package) is None:
        distribution, install = package.replace("_", "-"), install_command(EXTRAS[package])
        raise ConfigError("optimizer", name, f"needs the package {distribution}: {install}")
