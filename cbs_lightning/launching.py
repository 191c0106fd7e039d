"""How a sweep is launched: by the user's launcher as that says, else by the key `jobs`."""

from collections.abc import Sequence
from dataclasses import replace

from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.choices import AUTO
from cbs_lightning.errors import ConfigError
from cbs_lightning.jobs import AtATime, automatic, gpus_of
from cbs_lightning.threads import cores

N_JOBS = "hydra.launcher.n_jobs"
BASIC = "basic"  # Hydra's own, which runs one job after the other


def chosen(config: DictConfig, jobs: Sequence[DictConfig]) -> AtATime:
    """How many of a sweep's jobs run at a time; `config` is the sweep's own, with Hydra's part."""
    for key in ("jobs", "jobs_per_gpu"):
        values = list(dict.fromkeys(str(job[key]) for job in jobs))
        if len(values) > 1:
            raise ConfigError(key, ",".join(values), "a sweep has one value of it")
    asked = jobs[0].jobs
    if _names_launcher(config):
        found = _as_launcher_says(config.hydra, asked)
    else:
        found = automatic(jobs) if asked == AUTO else AtATime(asked, f"jobs={asked}")
    found = replace(found, runs=min(found.runs, len(jobs)))
    local = "n_jobs" in config.hydra.launcher or not _names_launcher(config)
    return replace(found, gpus=gpus_of(jobs)) if local else found


def with_launcher(config: DictConfig, runs: int) -> DictConfig:
    """The configuration with a launcher of so many runs at a time.

    It has no idle workers, which a signal to all of a group would kill.
    """
    config = config.copy()
    if "n_jobs" in config.hydra.launcher:
        config.hydra.launcher.n_jobs = runs
    elif runs > 1:
        config.hydra.launcher = OmegaConf.structured(JobLibLauncherConf(n_jobs=runs))
    return config


def _names_launcher(config: DictConfig) -> bool:
    """Hydra's basic one is nobody's choice unless it was typed."""
    typed = any(override.startswith("hydra/launcher=") for override in config.hydra.overrides.hydra)
    return typed or bool(config.hydra.runtime.choices["hydra/launcher"] != BASIC)


def _as_launcher_says(hydra: DictConfig, asked: int | str) -> AtATime:
    name = hydra.runtime.choices["hydra/launcher"]
    if "n_jobs" not in hydra.launcher:
        if asked not in (AUTO, 1):
            reason = f"hydra/launcher={name} has settings of its own; allowed with it: auto"
            raise ConfigError("jobs", asked, reason)
        return AtATime(
            1, f"hydra/launcher={BASIC}" if name == BASIC else f"in each process of {name}"
        )
    n_jobs = hydra.launcher.n_jobs
    if not isinstance(n_jobs, int) or n_jobs == 0:
        raise ConfigError(N_JOBS, n_jobs, "must be a whole number, not 0")
    runs = n_jobs if n_jobs > 0 else max(1, cores() + 1 + n_jobs)
    if asked in (AUTO, runs):
        return AtATime(runs, f"{N_JOBS}={n_jobs}")
    assert isinstance(asked, int)
    if any(override.lstrip("+").startswith(f"{N_JOBS}=") for override in hydra.overrides.hydra):
        raise ConfigError("jobs", asked, f"{N_JOBS}={n_jobs} says otherwise; set one of the two")
    return AtATime(asked, f"jobs={asked}")
