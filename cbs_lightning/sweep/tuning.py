"""`lr_scaling=tuned`: a job of a sweep becomes one job per learning rate to try.

A grid runs all of them; a search races them at each batch size that it tries.
"""

from collections.abc import Callable
from dataclasses import replace

from cbs_lightning.config.checks import check
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import ConfigError
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.sweep.sweeper import Overrides, without

SCALING, FACTORS, LR = "lr_scaling", "lr_tuning", "optimizer.lr"


def expand(
    configs: dict[Overrides, RunConfig], compose: Callable[[Overrides], RunConfig]
) -> dict[Overrides, RunConfig]:
    """The jobs and their configurations, with nothing left to tune.

    The runs are ordinary ones with their own learning rates. The one with the optimizer's own rate
    may already be among the sweep's other jobs, and is run once.
    """
    if all(cfg.lr_scaling != Scaling.TUNED for cfg in configs.values()):
        return configs
    check_tuned(configs)
    found: dict[str, tuple[Overrides, RunConfig]] = {}
    for job, cfg in configs.items():
        jobs = {job: cfg} if cfg.lr_scaling != Scaling.TUNED else rates_of(job, compose)
        for each, own in jobs.items():
            found.setdefault(_what_is_run(own), (each, own))
    return dict(found.values())


def rates_of(
    job: Overrides, compose: Callable[[Overrides], RunConfig], *, here: bool = True
) -> dict[Overrides, RunConfig]:
    """The job with each learning rate to try, in the order of `lr_tuning`."""
    plain = (*without(job, SCALING), f"{SCALING}={Scaling.NONE}")
    cfg = compose(plain)
    check(cfg, here=here)
    rates = [_typed(cfg.optimizer["lr"], factor) for factor in cfg.lr_tuning]
    jobs = [(*without(plain, LR), f"{LR}={rate}") for rate in rates]
    return {each: compose(each) for each in jobs}


def _typed(lr: float, factor: float) -> str:
    """The product as a person would type it, so that it names the same run."""
    rate = f"{lr * factor:.12g}"
    return str(lr) if float(rate) == lr else rate


def _what_is_run(cfg: RunConfig) -> str:
    """Everything about a job except which set of rates it belongs to."""
    return repr(replace(cfg, lr_tuning=[]))


def check_tuned(configs: dict[Overrides, RunConfig]) -> None:
    """Raise `ConfigError` if something else also sets the rate: a sweep over it, or a rule."""
    tuned = {job: cfg for job, cfg in configs.items() if cfg.lr_scaling == Scaling.TUNED}
    others = {without(job, LR) for job in tuned}
    if len(others) < len(tuned):
        reason = f"tries multiples of {LR} itself, which cannot be swept as well"
        raise ConfigError(SCALING, Scaling.TUNED, reason)
    for cfg in tuned.values():
        cfg.rules.check(cfg.names.optimizer, cfg.optimizer)
