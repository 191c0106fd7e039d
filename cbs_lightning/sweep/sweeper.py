"""What this project's Hydra sweepers share: which jobs a command line and a grid make.

Nothing here may take long to import.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from cbs_lightning.config.composition import complete
from cbs_lightning.config.plain_checks import check_tuning
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import count_of, print_line
from cbs_lightning.errors import UserError, check_writable
from cbs_lightning.optim.packages import require_package
from cbs_lightning.sweep.grid import read_grid, read_params, typed
from cbs_lightning.sweep.job_loader import JobLoader

MANY_JOBS = 200  # whose checks take some seconds
BASIC = "basic"  # Hydra's own launcher, which runs one job after the other

Overrides = tuple[str, ...]  # of one job
Values = dict[str, list[str]]  # what a key is swept over, as key=value


class JobSweeper(Sweeper):
    """Its jobs are the product of what the command line sweeps with each row of `grid`.

    Values on the command line replace the grid's. Everything else comes from the grid rows with
    those values, or from all rows if there are none. `params` are values that the command line
    replaces.
    """

    def __init__(
        self, grid: Sequence[DictConfig] = (), params: Mapping[str, Any] | None = None
    ) -> None:
        self.grid = grid
        self.params = params

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config_loader = JobLoader(hydra_context.config_loader)
        self.config: DictConfig = config
        self.hydra_context: HydraContext = HydraContext(self.config_loader, hydra_context.callbacks)
        self.task_function = task_function

    def jobs(self, arguments: list[str]) -> list[Overrides]:
        parser = OverridesParser.create(config_loader=self.config_loader)
        command = _values(parser.parse_overrides(arguments))
        for key, values in _values(parser.parse_overrides(typed(read_params(self.params)))).items():
            command.setdefault(key, values)
        if len(experiments := command.get("experiment", ())) > 1:
            raise UserError(f"{' '.join(experiments)}: one experiment per sweep")
        rows = [_values(parser.parse_overrides(typed(row))) for row in read_grid(self.grid)]
        return cells(rows, command)

    def configs(self, arguments: list[str]) -> dict[Overrides, RunConfig]:
        """The jobs with their configurations.

        Raises `UserError` if an optimizer's package is missing, a directory cannot be written, or
        learning rates were typed that nothing tries.
        """
        jobs = self.jobs(arguments)
        if len(jobs) >= MANY_JOBS:
            print_line(f"checking {count_of(len(jobs), 'job')}")
        typed = (each.partition("=") for job in jobs for each in job)
        for name in dict.fromkeys(value for key, _, value in typed if key == "optimizer"):
            if (settings := self.config_loader.option("optimizer", name)) is not None:
                require_package(settings, name)
        configs = {job: self.config_of(job) for job in jobs}
        check_tuning(arguments, configs.values())
        for output_dir in {cfg.output_dir for cfg in configs.values()}:
            check_writable(Path(output_dir))
        return configs

    def config_of(self, overrides: Overrides) -> RunConfig:
        return complete(*self.config_loader.load_run_config(self.config, list(overrides)))


def cells(rows: list[Values], command: Values) -> list[Overrides]:
    """The jobs that the rows of a grid and the command line make together, without repetitions."""
    named = [key for key in command if any(key in row for row in rows)]
    others = [values for key, values in command.items() if key not in named]
    jobs: list[Overrides] = []
    for choice in itertools.product(*(command[key] for key in named)):
        picked = dict(zip(named, choice, strict=True))
        having = [r for r in rows if all(v in r.get(key, [v]) for key, v in picked.items())]
        for row in having or rows or [{}]:
            rest = [values for key, values in row.items() if key not in picked]
            jobs += [(*choice, *job) for job in itertools.product(*rest, *others)]
    return list(dict.fromkeys(jobs))


def _values(overrides: Iterable[Override]) -> Values:
    """Each override's key as typed, with the `key=value` strings that it stands for."""
    values: Values = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values[key]:
                raise UserError(f"{override.input_line}: has no values")
        else:
            raise UserError(f"{override.input_line}: a grid needs a list of values or a range")
    return values


def without(overrides: Overrides, *keys: str) -> Overrides:
    return tuple(each for each in overrides if each.partition("=")[0].lstrip("+") not in keys)
