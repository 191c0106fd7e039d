"""Composes the configurations of a sweep's jobs, ten times as fast as Hydra does."""

import copy
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


class JobLoader(ConfigLoader):
    """Wraps Hydra's loader and composes each choice of options once.

    Jobs that choose the same option of every group differ only in values. Anything else, and
    anything that is an error, is left to Hydra.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        overrides = OverridesParser.create().parse_overrides(sweep_overrides)
        plain = all(map(_is_plain, overrides))
        cfg = self._compose(master_config, overrides) if plain else None
        if cfg is None:
            return self._loader.load_sweep_config(master_config, sweep_overrides)
        cfg.hydra.overrides.task = list(sweep_overrides)
        naming = cfg.hydra.job.config.override_dirname
        named = [each for each in overrides if each.key_or_group not in naming.exclude_keys]
        lines = sorted(str(each.input_line) for each in named)
        cfg.hydra.job.override_dirname = naming.item_sep.join(lines).replace("=", naming.kv_sep)
        return cfg

    def _compose(self, master: DictConfig, overrides: list[Override]) -> DictConfig | None:
        groups = master.hydra.runtime.choices
        options = tuple(str(each.input_line) for each in overrides if each.key_or_group in groups)
        if options not in self._composed:
            self._composed[options] = self._loader.load_sweep_config(master, list(options))
        cfg = copy.deepcopy(self._composed[options])
        values = [each for each in overrides if each.key_or_group not in groups]
        groups = cfg.hydra.runtime.choices  # an experiment may bring in others
        if any(each.key_or_group in groups for each in values):
            return None
        try:
            for each in values:
                OmegaConf.update(cfg, each.key_or_group, each.value(), merge=True)
        except OmegaConfBaseException:
            return None  # Hydra says what is wrong
        return cfg

    # What follows is Hydra's own.

    def load_configuration(self, *arguments: Any, **settings: Any) -> DictConfig:
        return self._loader.load_configuration(*arguments, **settings)

    def get_search_path(self) -> ConfigSearchPath:
        return self._loader.get_search_path()

    def get_sources(self) -> list[ConfigSource]:
        return self._loader.get_sources()

    def list_groups(self, parent_name: str) -> list[str]:
        return self._loader.list_groups(parent_name)

    def get_group_options(self, *arguments: Any, **settings: Any) -> list[str]:
        return self._loader.get_group_options(*arguments, **settings)

    def compute_defaults_list(self, *arguments: Any, **settings: Any) -> Any:
        return self._loader.compute_defaults_list(*arguments, **settings)


def _is_plain(override: Override) -> bool:
    """Whether the override is just key=value."""
    return (
        override.type is OverrideType.CHANGE
        and override.package is None
        and not override.is_hydra_override()
        and not override.is_sweep_override()
        and not isinstance(override.value(), dict)
    )
