"""The configurations of a sweep's jobs, in a fraction of the time that Hydra takes for each."""

import copy
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig


class JobLoader(ConfigLoaderImpl):
    """Composes what jobs have in common once: jobs with the same options of all groups differ in
    values alone. What is more than options and values is left to Hydra.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        overrides = OverridesParser.create().parse_overrides(sweep_overrides)
        if not all(map(_is_plain, overrides)):
            return super().load_sweep_config(master_config, sweep_overrides)
        groups = master_config.hydra.runtime.choices
        options = tuple(str(o.input_line) for o in overrides if o.key_or_group in groups)
        values = [o for o in overrides if o.key_or_group not in groups]
        if options not in self._composed:
            self._composed[options] = super().load_sweep_config(master_config, list(options))
        cfg = copy.deepcopy(self._composed[options])
        groups = cfg.hydra.runtime.choices  # an experiment may bring in others
        if any(o.key_or_group in groups for o in values):
            return super().load_sweep_config(master_config, sweep_overrides)
        self._apply_overrides_to_config(values, cfg)
        cfg.hydra.overrides.task = list(sweep_overrides)
        naming = cfg.hydra.job.config.override_dirname
        cfg.hydra.job.override_dirname = get_overrides_dirname(
            overrides, naming.exclude_keys, naming.item_sep, naming.kv_sep
        )
        return cfg


def _is_plain(override: Override) -> bool:
    """Whether it is key=value."""
    return (
        override.type is OverrideType.CHANGE
        and override.package is None
        and not override.is_hydra_override()
        and not override.is_sweep_override()
        and not isinstance(override.value(), dict)
    )
