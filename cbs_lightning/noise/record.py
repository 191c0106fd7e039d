"""What the probes of a run measured: `noise.json` in its directory."""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

FILE = "noise.json"
SCHEMA_VERSION = 1

CLIPPED = 0.9  # share of a gradient that clipping leaves, below which its steps are others
GRADIENTS_OF_PRODUCT = 5  # that a product with the Hessian takes as long as
PASSES_OF_GRADIENT = 3  # a gradient goes forward once and back at twice that cost

Interval = tuple[float, float]


@dataclass(frozen=True)
class Probe:
    """One probe: gradients of independent batches at the weights after step `step`.

    G is the mean gradient, Σ the covariance of a single sample's, P the optimizer's metric and η
    its learning rate, so that a step is θ - ηPg; H is the Hessian. A step with a batch of b samples
    lowers the loss by a - c/b in the mean. Names that begin with `metric_` are of P^½ g. `None` is
    what was not or cannot be measured.
    """

    step: int  # updates made before it
    samples: int  # seen before it
    loss: float  # of the latest samples, as training saw them
    steps: float  # of the run that it stands for
    gradient_norm2: float | None = None  # |G|²; unbiased, so it may be negative
    gradient_norm2_se: float | None = None
    noise_trace: float | None = None  # tr Σ
    noise_trace_se: float | None = None
    b_simple: float | None = None  # tr Σ / |G|²; None: |G|² is not above 0
    b_simple_interval: Interval | None = None  # 90 %
    l1_noise_scale: float | None = None  # (sum of deviations / ‖G‖₁)²
    metric_gradient_norm2: float | None = None  # GᵀPG
    metric_gradient_norm2_se: float | None = None
    metric_noise_trace: float | None = None  # tr PΣ, as preconditioned_noise_trace
    metric_b_simple: float | None = None
    metric_b_simple_interval: Interval | None = None
    metric_l1_noise_scale: float | None = None
    preconditioned_noise_trace: float | None = None  # tr PΣ
    lr: float | None = None  # of the next step
    clipping: float | None = (
        None  # the share of a gradient that clipping leaves; None: there is none
    )
    eta: float | None = None  # η: the learning rate that momentum makes of it in the long run
    a_trial: float | None = None  # by trial steps
    a_trial_se: float | None = None
    c_trial: float | None = None
    c_trial_se: float | None = None
    a_hvp: float | None = None  # by Hessian-vector products
    a_hvp_se: float | None = None
    c_hvp: float | None = None
    c_hvp_se: float | None = None
    a_own: float | None = None  # by the optimizer's own steps, with its momentum
    a_own_se: float | None = None
    c_own: float | None = None
    c_own_se: float | None = None
    own_noise: float | None = None  # η tr PΣ by its own steps, where there is no P as well
    batch_size: int | None = None  # samples of each of the probe's batches
    batches: int | None = None  # that gradients were taken of
    # Of branches at several batch sizes: level = L∞ + N/b, decrease per step = a - c/b.
    branches: list[dict[str, Any]] = field(default_factory=list)
    level_limit: float | None = None  # L∞
    noise_level: float | None = None  # N
    a_branches: float | None = None
    a_branches_se: float | None = None
    c_branches: float | None = None
    c_branches_se: float | None = None
    local_critical_batch: float | None = None  # 2c/a
    local_critical_batch_interval: Interval | None = None  # 90 %
    local_critical_batch_reason: str | None = None  # why there is none

    @property
    def is_clipped(self) -> bool:
        return self.clipping is not None and self.clipping < CLIPPED

    @property
    def step_noise(self) -> float | None:
        """η tr PΣ, by the optimizer's metric or, where it has none, by its own steps."""
        if self.eta is None or self.preconditioned_noise_trace is None:
            return self.own_noise
        return self.eta * self.preconditioned_noise_trace


@dataclass(frozen=True)
class Cost:
    """What the probes of a run took."""

    gradients: int = 0  # of single samples, as SFO counts them
    forward_passes: int = 0  # of single samples, without a gradient
    seconds: float = 0.0
    share_of_run: float | None = None  # of the seconds that its training took
    hessian_products: int = 0  # of single samples
    updates: int = 0  # of the optimizer, applied and undone to see its own steps
    # That an update counts as: a batch of the run where an update's work is not known; None: one,
    # which is the order of what Adam and its relatives do for each weight.
    gradients_of_update: int | None = None

    @property
    def in_gradients(self) -> int:
        """All of it, as gradients of single samples that take as long."""
        products = GRADIENTS_OF_PRODUCT * self.hessian_products
        updates = (self.gradients_of_update or 1) * self.updates
        return round(self.gradients + self.forward_passes / PASSES_OF_GRADIENT + products + updates)


@dataclass(frozen=True)
class Estimate:
    """What one estimator makes of the probes."""

    critical_batch: float | None
    interval: Interval | None = None
    reason: str | None = None  # why there is none


@dataclass(frozen=True)
class NoiseRecord:
    """All that is known from the probes of one run."""

    config_hash: str
    variant: str
    optimizer: str
    lr: float | None
    batch_size: int  # samples per step of the run, at most those that there are
    seed: int
    threshold: float
    rule: str
    probes: list[Probe]
    cost: Cost = Cost()
    critical_batch: float | None = None  # the prediction
    interval: Interval | None = None
    reason: str | None = None  # why there is none
    estimator: str | None = None
    b_simple: float | None = None
    b_simple_interval: Interval | None = None
    estimators: dict[str, Estimate] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # of the probes, as asked for
    notes: list[str] = field(default_factory=list)  # what to know of the measurement
    shortfall: str | None = None  # why there are fewer probes than were asked for
    steps_run: int | None = None  # updates of the run when they were made; None: not known
    micro_batch_size: int | None = None  # samples of the slices that the run works in; None: whole
    schedule: dict[str, int] | None = None  # samples: batch size, as branches suggest it
    theorem: dict[str, Any] | None = None
    schema_version: int = SCHEMA_VERSION

    def own_threshold(self, asked: float) -> str:
        """The end of a line on what the run to another threshold than `asked` has."""
        return "" if self.threshold == asked else f" (of the run to {self.threshold:g})"

    def to_json(self) -> str:
        return json.dumps(_plain(asdict(self)), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "NoiseRecord":
        """Raise ValueError where the text is not that of a record."""
        try:
            values = json.loads(text)
            if values["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version is {values['schema_version']}")
            values = _known(cls, values)
            values["probes"] = [Probe(**_known(Probe, each)) for each in values["probes"]]
            for probe in values["probes"]:
                _check_numbers(probe)
            values["cost"] = Cost(**_known(Cost, values.get("cost", {})))
            estimators = values.get("estimators", {}).items()
            values["estimators"] = {
                name: Estimate(**_known(Estimate, each)) for name, each in estimators
            }
            record = cls(**values)
            _check_numbers(record)
            return record
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_numbers(value: Any) -> None:
    """Whatever is said to be a number, or a pair of them, must be that."""
    for name, kind in get_type_hints(type(value)).items():
        found, kinds = getattr(value, name), get_args(kind) or (kind,)
        if found is None and NoneType in kinds:
            continue
        if Interval in kinds:
            right = all(map(_is_number, found))
        else:
            right = not {int, float} & set(kinds) or _is_number(found)
        if not right:
            raise ValueError(f"{name} is {found!r}"[:80])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those that the class has; intervals are tuples, and infinite where their ends are open."""
    names = {each.name for each in fields(kind)}
    known = {key: value for key, value in values.items() if key in names}
    for key, value in known.items():
        if key.endswith("interval") and value is not None:
            low, high = value
            known[key] = (0.0 if low is None else low, math.inf if high is None else high)
    return known


def _plain(value: Any) -> Any:
    """JSON has no infinities: the open end of an interval is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
