"""A Hydra sweeper: a search for the critical batch size.

Hydra also imports this for single runs, so nothing here may take long to import.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from cbs_lightning.imports import load_frameworks
from cbs_lightning.results.result import Result
from cbs_lightning.search.settings import parse_settings
from cbs_lightning.sweep.sweeper import JobSweeper


class CriticalBatchSweeper(JobSweeper):
    """Runs as many jobs as it takes to find b* for each combination of their other keys.

    If neither the command line nor `grid` names batch sizes, the settings give the range.
    """

    def __init__(
        self,
        grid: Sequence[DictConfig] = (),
        params: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(grid, params)
        self.settings = settings

    def sweep(self, arguments: list[str]) -> list[Result | None]:
        settings = parse_settings(**self.settings)
        configs = self.configs(arguments)
        # Only now, so that a mistake that Hydra finds is reported at once.
        load_frameworks()
        from cbs_lightning.sweep.search_sweep import SearchSweep

        search = SearchSweep(self.hydra_context, self.task_function, self.config)
        return search.search(configs, settings, self.config_of)
