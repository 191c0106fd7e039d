"""`lr_scaling=tuned`: a job of a sweep becomes one for each learning rate that is tried."""

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config.checks import check
from cbs_lightning.errors import ConfigError
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.sweep.job_loader import Job

SCALING, FACTORS, LR = "lr_scaling", "lr_tuning", "optimizer.lr"


def expanded(
    configs: dict[Job, DictConfig], compose: Callable[[Job], DictConfig]
) -> dict[Job, DictConfig]:
    """The jobs with their configurations, in which nothing is left to be tuned.

    The runs that it makes are plain ones with a learning rate of their own: that with the
    optimizer's own is one of the sweep's others where they have it too, and is there once.
    """
    if all(cfg.lr_scaling != Scaling.TUNED for cfg in configs.values()):
        return configs
    _check_one_rate([job for job, cfg in configs.items() if cfg.lr_scaling == Scaling.TUNED])
    found: dict[str, tuple[Job, DictConfig]] = {}
    for job, cfg in configs.items():
        jobs = {job: cfg} if cfg.lr_scaling != Scaling.TUNED else _tried(job, compose)
        for each, own in jobs.items():
            found.setdefault(_what_is_run(own), (each, own))
    return dict(found.values())


def _tried(job: Job, compose: Callable[[Job], DictConfig]) -> dict[Job, DictConfig]:
    plain = (*_without(job, SCALING), f"{SCALING}={Scaling.NONE}")
    cfg = compose(plain)
    check(cfg)
    rates = [_typed(cfg.optimizer.lr, factor) for factor in cfg.lr_tuning]
    jobs = [(*_without(plain, LR), f"{LR}={rate}") for rate in rates]
    return {each: compose(each) for each in jobs}


def _typed(lr: float, factor: float) -> str:
    """The product as a person would type it, or did, so that these are the same runs."""
    rate = f"{lr * factor:.12g}"
    return str(lr) if float(rate) == lr else rate


def _what_is_run(cfg: DictConfig) -> str:
    """All but which rates it was one of."""
    keys = [str(key) for key in cfg if key != FACTORS]
    return OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, keys), sort_keys=True)


def _check_one_rate(jobs: list[Job]) -> None:
    """Else a rate would be tuned several times over."""
    others = {_without(job, LR) for job in jobs}
    if len(others) < len(jobs):
        reason = f"tries multiples of {LR} itself, which cannot be swept as well"
        raise ConfigError(SCALING, Scaling.TUNED, reason)


def _without(job: Job, key: str) -> Job:
    return tuple(override for override in job if override.partition("=")[0] != key)
