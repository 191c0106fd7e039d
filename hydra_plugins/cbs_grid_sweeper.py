"""A Hydra sweeper: a grid of rows.

Hydra also imports this for single runs, so nothing here may take long to import.
"""

from cbs_lightning.imports import load_frameworks
from cbs_lightning.results.result import Result
from cbs_lightning.sweep.sweeper import JobSweeper


class GridSweeper(JobSweeper):
    """Runs all jobs."""

    def sweep(self, arguments: list[str]) -> list[Result | None]:
        configs = self.configs(arguments)
        # Only now, so that a mistake that Hydra finds is reported at once.
        load_frameworks()
        from cbs_lightning.sweep.sweep import Sweep
        from cbs_lightning.sweep.tuning import expand

        configs = expand(configs, self.config_of)
        return Sweep(self.hydra_context, self.task_function, self.config).run(configs)
