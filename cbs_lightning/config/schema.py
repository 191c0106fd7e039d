"""Every key of a run, with its type, its unit and what is allowed for it.

`conf/config.yaml` has the defaults. A composed configuration becomes a `RunConfig` once, by `read`;
everything downstream takes that.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cbs_lightning.config.constraints import (
    Constraint,
    Factors,
    Flag,
    FolderName,
    Members,
    OneOf,
    OptionName,
    PackageNames,
    PathName,
    Positive,
    TextLine,
    Whole,
)
from cbs_lightning.errors import ConfigError, did_you_mean, require
from cbs_lightning.models.modes import MODES
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.optim.scaling import BatchSizeRules, DecayScaling, ScalingRule
from cbs_lightning.results.trajectory import RuleName

AUTO: Literal["auto"] = "auto"
Settings = dict[str, Any]  # of a group that is instantiated: its `_target_` and its arguments

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class StopConfig:
    """When a run ends. This does not affect the losses, so it is not part of the run's hash."""

    loss: Annotated[float, Positive()]  # the threshold
    rule: Annotated[RuleName, OneOf(RuleName)]  # how the loss is read off the steps
    window: Annotated[int | None, Whole(1, others=(None,))]  # samples; None: the data set's size
    max_epochs: Annotated[int | None, Whole(1, others=(None,))]  # epochs; None: no such budget
    max_steps: Annotated[int | None, Whole(1, others=(None,))]  # steps; None: no such budget
    look_every: Annotated[int | None, Whole(1, others=(None,))] = None  # steps, on a GPU


@dataclass(frozen=True)
class CheckpointConfig:
    every_seconds: Annotated[float, Positive()]  # seconds of training between two checkpoints
    keep: Annotated[bool, Flag()]  # the last one, when the run is finished


@dataclass(frozen=True)
class TensorBoardConfig:
    points: Annotated[int, Whole(2)]  # points of a run's curve, at most


@dataclass(frozen=True)
class ProgressConfig:
    every_seconds: Annotated[float, Positive()]  # seconds between two lines


@dataclass(frozen=True)
class NoiseConfig:
    """What is measured during training. It does not affect the losses, so it is not hashed."""

    probes: Annotated[int, Whole(0, 10_000)] = 0  # probes of a run; 0: none
    samples: Annotated[int, Whole(4)] = 2048  # samples of a probe, over which gradients are taken
    batch_size: Annotated[  # samples of each of its batches; None: the run's, at most a quarter
        int | None, Whole(1, others=(None,))
    ] = None
    curvature: Annotated[bool, Flag()] = True  # a and c too
    trials: Annotated[int, Whole(0)] = 4  # pairs of trial steps of a probe
    products: Annotated[int, Whole(0)] = 3  # Hessian-vector products of a probe
    branches: Annotated[bool, Flag()] = False
    branch_steps: Annotated[int, Whole(8, 100_000)] = 40  # steps of each branch
    branch_factors: Annotated[list[float], Factors(1024)] = field(  # times b: their batch sizes
        default_factory=lambda: [0.5, 1, 2, 4]
    )
    branch_repeats: Annotated[int, Whole(1, 1000)] = 2  # branches of each batch size
    theorem: Annotated[bool, Flag()] = False


@dataclass(frozen=True)
class Names:
    """The chosen option of each group, and the resulting variant of the run."""

    data: Annotated[str, OptionName()]
    model: Annotated[str, OptionName()]
    optimizer: Annotated[str, OptionName()]
    experiment: Annotated[str | None, OptionName(others=(None,))]
    variant: Annotated[str, TextLine()] = ""
    scheduler: Annotated[str, OptionName()] = "constant"  # runs from before there were any have it


@dataclass(frozen=True)
class RunConfig:
    """The complete configuration of a run: what `compose` returns and `run` takes.

    `data`, `model`, `optimizer`, `scheduler` and `trainer` hold the class and arguments of one
    object each; `callbacks` and `logger` those of any number of objects, by name.

    Example:
        >>> from dataclasses import replace
        >>> from cbs_lightning import compose
        >>> cfg = replace(compose([]), batch_size=128)
        >>> cfg.batch_size, cfg.optimizer["lr"], cfg.stop.loss
        (128, 0.001, 0.1)
    """

    data: Settings
    model: Settings
    optimizer: Settings
    scheduler: Settings
    callbacks: Annotated[Settings, Members()]
    logger: Annotated[Settings, Members()]
    trainer: Settings
    batch_size: Annotated[int, Whole(1)]  # samples per step
    micro_batch_size: Annotated[  # samples per slice of a batch; None: not sliced
        int | Literal["auto"] | None, Whole(1, others=(None, AUTO))
    ]
    activation_checkpointing: Annotated[bool, Flag()]
    compile: Annotated[str | None, OneOf((None, *MODES))]  # torch.compile's mode
    seed: Annotated[int, Whole(0, 2**32 - 1)]
    lr_scaling: Annotated[Scaling, OneOf(Scaling)]
    scaling_rule: Annotated[ScalingRule, OneOf(ScalingRule)]
    weight_decay_scaling: Annotated[DecayScaling, OneOf(DecayScaling)]
    lr_reference_batch_size: Annotated[int, Whole(1)]  # samples; there settings are as given
    lr_tuning: Annotated[list[float], Factors()]  # times optimizer.lr
    warmup_samples: Annotated[int, Whole(0)]  # samples of linear warm-up
    stop: StopConfig
    study: Annotated[str, FolderName()]
    output_dir: Annotated[str, PathName()]
    data_dir: Annotated[str, PathName()]
    threads: Annotated[int | None, Whole(1, 2**15, others=(None,))]  # CPU threads; None: automatic
    jobs: Annotated[int | Literal["auto"], Whole(1, others=(AUTO,))]  # runs at a time
    jobs_per_gpu: Annotated[int, Whole(1)]  # runs at a time on each GPU
    repeat: str | None  # the run directory that this configuration was read from
    trusted_packages: Annotated[list[str], PackageNames()]
    checkpoint: CheckpointConfig
    tensorboard: TensorBoardConfig
    report: Annotated[bool, Flag()]
    answer_within: Annotated[float, Positive()]  # of the least SFO, more, for the answer's range
    progress: ProgressConfig
    names: Names
    noise: NoiseConfig = NoiseConfig()

    @property
    def rules(self) -> BatchSizeRules:
        """What of the optimizer's settings moves with the batch size."""
        return BatchSizeRules(
            self.lr_scaling,
            self.scaling_rule,
            self.weight_decay_scaling,
            self.lr_reference_batch_size,
        )

    def optimizer_settings(self, data_size: int) -> Settings:
        """The optimizer's, as they are at the effective batch size."""
        return self.rules.scaled(self.optimizer, self.batch_size, data_size)


# A run does not depend on them.
NOT_RECORDED = ("answer_within", "jobs", "jobs_per_gpu", "repeat", "logger", "noise")


def recorded(cfg: RunConfig, **resolved: Any) -> dict[str, Any]:
    """What `config.yaml` and `result.json` keep of it: plain values, with those that were
    resolved in the place of automatic ones."""
    values = {key: value for key, value in asdict(cfg).items() if key not in NOT_RECORDED}
    plain: dict[str, Any] = _plain(values | resolved)
    return plain


def read(schema: type[Schema], values: Any, prefix: str = "", **given: Any) -> Schema:
    """The mapping as an object of the schema, whose fields it must have, but those `given` and
    those with a default.

    Raises `ConfigError` for the first key that is not one, is missing, or has a value it may not.
    """
    if not isinstance(values, Mapping):
        group = prefix.rstrip(".")
        raise ConfigError(group, values, _group(group))
    hints = get_type_hints(schema, include_extras=True)
    known = {field.name: field for field in fields(schema) if field.name not in given}  # type: ignore[arg-type]
    names = list(known)
    for key in values:
        if key not in names:
            raise ConfigError(f"{prefix}{key}", values[key], _no_such(str(key), prefix, names))
    for name in sorted(set(names) - set(values)):
        if known[name].default is MISSING:
            raise ConfigError(f"{prefix}{name}", MISSING, "is needed and cannot be removed")
    found = {
        name: _value(hints[name], f"{prefix}{name}", values[name])
        for name in names
        if name in values
    }
    return schema(**found, **given)


def _value(hint: Any, key: str, value: Any) -> Any:
    kind, *constraints = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if is_dataclass(kind) and isinstance(kind, type):
        return read(kind, value, f"{key}.")
    if kind == Settings:
        require(isinstance(value, dict), key, value, _group(key))
    for constraint in constraints:
        assert isinstance(constraint, Constraint)
        constraint.check(key, value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _no_such(key: str, prefix: str, names: list[str]) -> str:
    meant = did_you_mean(key, names, f"{prefix}{{}}")
    return f"no such key; {meant}allowed: {', '.join(prefix + name for name in sorted(names))}"


def _group(key: str) -> str:
    return f"must be a group of keys, such as {key}.<key>=<value>"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
