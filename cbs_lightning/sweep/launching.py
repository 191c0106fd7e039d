"""How a sweep is launched: by the launcher the user chose, or else by the key `jobs`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config.grammar import in_quotes
from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.errors import ConfigError
from cbs_lightning.sweep.concurrency import Concurrency, automatic, gpus_of
from cbs_lightning.sweep.slurm import queue as slurm
from cbs_lightning.sweep.sweeper import BASIC
from cbs_lightning.training.resources.threads import cores

WIDTHS = ("n_jobs", "array_parallelism")  # what launchers call it
SLURM = "hydra_plugins.cbs_slurm_launcher.SlurmLauncher"
SUBMITIT_SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
ONE_BY_ONE = ("BasicLauncher", "LocalLauncher")  # Hydra's own and submitit's without a cluster


def concurrency_of(config: DictConfig, jobs: Sequence[RunConfig]) -> Concurrency:
    """How many jobs of a sweep run at a time; `config` is the sweep's, including Hydra's part."""
    for key in ("jobs", "jobs_per_gpu", "answer_within"):
        values = list(dict.fromkeys(str(getattr(job, key)) for job in jobs))
        if len(values) > 1:
            raise ConfigError(key, ",".join(values), "a sweep takes one value of this key")
    _check_paths(config, jobs)
    asked = jobs[0].jobs
    if _names_launcher(config):
        _check_slurm(config.hydra, len(jobs))
        found = _as_launcher_says(config.hydra, asked)
    else:
        found = automatic(jobs) if asked == AUTO else Concurrency(asked, f"jobs={asked}")
    local = "n_jobs" in config.hydra.launcher or not _names_launcher(config)
    return replace(
        found,
        runs=min(found.runs, len(jobs)),
        gpus=gpus_of(jobs) if local else 0,
        on_cluster=is_on_cluster(config),
    )


def _check_paths(config: DictConfig, jobs: Sequence[RunConfig]) -> None:
    """Refuse several values of a path: the comma was meant to be part of it."""
    overrides = OmegaConf.select(config, "hydra.overrides.task", default=[])
    for key in ("output_dir", "data_dir"):
        typed = [word for word in overrides if word.startswith(f"{key}=")]
        if typed and len({getattr(job, key) for job in jobs}) > 1:
            value = typed[-1].partition("=")[2]
            one = f"to pass a comma, quote it: {in_quotes(key, value)}"
            raise ConfigError(key, value, f"a sweep takes one value of this key; {one}")


def is_on_cluster(config: DictConfig) -> bool:
    """Whether the launcher is one of submitit's, which runs jobs on a cluster."""
    return "submitit_folder" in config.hydra.launcher


def with_launcher(config: DictConfig, runs: int, scratch: Path | None) -> DictConfig:
    """The configuration with a launcher that runs this many jobs at a time.

    The launcher has no idle workers, because a signal to the whole process group would kill them.
    joblib writes to the sweep's own directory `scratch`, unless the user chose another place.
    """
    config = config.copy()
    if (key := _width_key(config.hydra)) is not None:
        config.hydra.launcher[key] = runs
    elif runs > 1:
        config.hydra.launcher = OmegaConf.structured(JobLibLauncherConf(n_jobs=runs))
    if scratch is not None and config.hydra.launcher.get("temp_folder", "") is None:
        config.hydra.launcher.temp_folder = str(scratch).replace("${", r"\${")
    return config


def _names_launcher(config: DictConfig) -> bool:
    """Whether a launcher was chosen. Hydra's basic one counts only if it was typed."""
    typed = any(override.startswith("hydra/launcher=") for override in config.hydra.overrides.hydra)
    return typed or bool(config.hydra.runtime.choices["hydra/launcher"] != BASIC)


def _check_slurm(hydra: DictConfig, jobs: int) -> None:
    name, target = hydra.runtime.choices["hydra/launcher"], hydra.launcher.get("_target_")
    if target == SLURM:
        slurm.check(name, hydra.launcher, jobs)
    elif target == SUBMITIT_SLURM:
        slurm.check_programs(name)


def _as_launcher_says(hydra: DictConfig, asked: int | str) -> Concurrency:
    name = hydra.runtime.choices["hydra/launcher"]
    if (key := _width_key(hydra)) is None:
        if asked not in (AUTO, 1):
            reason = f"hydra/launcher={name} has settings of its own; allowed with it: auto"
            raise ConfigError("jobs", asked, reason)
        alone = str(hydra.launcher.get("_target_")).endswith(ONE_BY_ONE)
        return Concurrency(1, f"hydra/launcher={name}" if alone else f"in each process of {name}")
    width, width_key = hydra.launcher[key], f"hydra.launcher.{key}"
    if not isinstance(width, int) or width == 0:
        raise ConfigError(width_key, width, "must be a whole number, not 0")
    runs = width if width > 0 else max(1, cores() + 1 + width)
    if asked in (AUTO, runs):
        return Concurrency(runs, f"{width_key}={width}")
    assert isinstance(asked, int)
    if any(override.lstrip("+").startswith(f"{width_key}=") for override in hydra.overrides.hydra):
        reason = f"{width_key}={width} says otherwise; set one of the two"
        raise ConfigError("jobs", asked, reason)
    return Concurrency(asked, f"jobs={asked}")


def _width_key(hydra: DictConfig) -> str | None:
    return next((key for key in WIDTHS if key in hydra.launcher), None)
