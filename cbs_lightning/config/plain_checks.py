"""Checks that import neither torch nor a class, so that a mistake is reported at once."""

from collections.abc import Iterable
from typing import Any

from cbs_lightning.config.constraints import Flag, Positive, Whole, is_fraction, is_number
from cbs_lightning.config.identity import CONSTANT, OWN
from cbs_lightning.config.schema import RunConfig, Settings
from cbs_lightning.config.trainer_flags import check_trainer
from cbs_lightning.errors import ConfigError, require
from cbs_lightning.models.modes import CUDA_GRAPHS
from cbs_lightning.noise.theorem import INSTEAD, OPTIMIZERS
from cbs_lightning.optim.groups import KEY
from cbs_lightning.optim.learning_rate import Scaling

SAMPLES, EPOCHS = "horizon_samples", "horizon_epochs"  # of a scheduler
OWN_SCHEDULES = "cbs_lightning.optim.schedules."


def check_plainly(cfg: RunConfig) -> None:
    """Raise `ConfigError` for the first value that no machine and no class would accept."""
    if cfg.names.optimizer != OWN:
        Positive().check("optimizer.lr", cfg.optimizer.get("lr"))
        check_optimizer_values("optimizer", cfg.optimizer)
    target = str(cfg.scheduler.get("_target_"))
    if target.startswith(OWN_SCHEDULES) and target != CONSTANT:
        check_horizon(cfg, needed=True)
    check_trainer(cfg.trainer, None)
    _check_compile(cfg)
    _check_noise(cfg)
    for key in ("normalize", "augment", "replacement"):
        Flag().check(f"data.{key}", cfg.data.get(key, False))


def check_optimizer_values(prefix: str, settings: Settings) -> None:
    in_range = "in [0, 1)"
    if "momentum" in settings:
        momentum = settings["momentum"]
        require(is_fraction(momentum), f"{prefix}.momentum", momentum, f"must be {in_range}")
    if "betas" in settings:
        betas = settings["betas"]
        valid = isinstance(betas, list) and len(betas) == 2 and all(map(is_fraction, betas))
        allowed = f"must be two numbers {in_range}, such as [0.9,0.999]"
        require(valid, f"{prefix}.betas", betas, allowed)
    for key in ("weight_decay", "eps"):
        if key in settings:
            value, allowed = settings[key], "must be a number >= 0"
            require(is_number(value) and value >= 0, f"{prefix}.{key}", value, allowed)
    for key in ("fused", "foreach", "amsgrad", "nesterov", "maximize", "decoupled_weight_decay"):
        value = settings.get(key)
        valid = value is None or isinstance(value, bool)
        require(valid, f"{prefix}.{key}", value, "must be true or false")


def check_tuning(typed: Iterable[str], configs: Iterable[RunConfig]) -> None:
    """Raise `ConfigError` if learning rates to try were typed, and no run tries any."""
    words = [word for word in typed if word.lstrip("+").startswith("lr_tuning=")]
    if words and all(cfg.lr_scaling is not Scaling.TUNED for cfg in configs):
        allowed = "has no effect without lr_scaling=tuned, in a sweep, with -m; leave it out"
        raise ConfigError("lr_tuning", words[-1].partition("=")[2], allowed)


def check_horizon(cfg: RunConfig, *, needed: bool) -> None:
    """Check the scheduler's horizon, in samples or in epochs."""
    samples, epochs = cfg.scheduler.get(SAMPLES), cfg.scheduler.get(EPOCHS)
    if samples is None and epochs is None:
        allowed = f"needs a horizon: set scheduler.{EPOCHS} or scheduler.{SAMPLES}"
        require(not needed, "scheduler", cfg.names.scheduler, allowed)
        return
    allowed = f"not beside scheduler.{SAMPLES}={samples}; set one of the two"
    require(samples is None or epochs is None, f"scheduler.{EPOCHS}", epochs, allowed)
    if samples is not None:
        Whole(1).check(f"scheduler.{SAMPLES}", samples)
    else:
        Positive().check(f"scheduler.{EPOCHS}", epochs)


def _check_compile(cfg: RunConfig) -> None:
    compiled: Any = cfg.compile
    allowed = "not with activation_checkpointing=true; allowed with it: null"
    require(not (compiled and cfg.activation_checkpointing), "compile", compiled, allowed)
    # Adding to a gradient that a CUDA graph wrote adds to what the next replay overwrites.
    allowed = "not with micro_batch_size; allowed with it: null, default"
    sliced = cfg.micro_batch_size is not None
    require(compiled != CUDA_GRAPHS or not sliced, "compile", compiled, allowed)


def _check_noise(cfg: RunConfig) -> None:
    noise = cfg.noise
    if not noise.probes:
        for key in ("branches", "theorem"):
            allowed = "needs probes: set noise.probes to how many; allowed without: false"
            require(not getattr(noise, key), f"noise.{key}", True, allowed)
        return
    # What a CUDA graph has recorded, a probe's batches of another size would replace.
    allowed = "not with compile=reduce-overhead; allowed with it: 0"
    require(cfg.compile != CUDA_GRAPHS, "noise.probes", noise.probes, allowed)
    allowed = "one is along the step, the others along noise; allowed: 0, or at least 2"
    require(noise.products != 1, "noise.products", noise.products, allowed)
    if noise.batch_size is not None:
        allowed = f"at most half of noise.samples={noise.samples}: two batches are needed"
        fits = 2 * noise.batch_size <= noise.samples
        require(fits, "noise.batch_size", noise.batch_size, allowed)
    if noise.theorem:
        _check_theorem(cfg)


def _check_theorem(cfg: RunConfig) -> None:
    """Theorem 3.1 covers three optimizers, with a constant learning rate."""
    key, name, names = "noise.theorem", cfg.names.optimizer, ", ".join(OPTIMIZERS)
    allowed = f"Theorem 3.1 is about other steps than those of optimizer={name}"
    if name in INSTEAD:
        other, why = INSTEAD[name]
        allowed += f" ({why}: try {other})"
    require(name in OPTIMIZERS, key, True, f"{allowed}; allowed: {names}")
    decay = cfg.optimizer.get("weight_decay", 0)
    require(not decay, key, True, f"it allows no weight decay: optimizer.weight_decay={decay}")
    require(KEY not in cfg.optimizer, key, True, "it allows no parameter groups: optimizer.groups")
    constant = cfg.names.scheduler == "constant" and not cfg.warmup_samples
    require(constant, key, True, "needs a constant learning rate: scheduler=constant, no warm-up")
