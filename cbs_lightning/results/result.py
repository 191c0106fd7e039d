"""A run's result: the answer to a request, read off the recorded losses."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from cbs_lightning.console import count_of, duration
from cbs_lightning.results.trajectory import (
    Reading,
    Readings,
    Rule,
    RuleName,
    Trajectory,
    last_reading,
)

SCHEMA_VERSION = 1
MOVED = "; from step "  # in `machine`, between where a run began and where it was resumed


class Status(StrEnum):
    """Why a run ended.

    Example:
        >>> from cbs_lightning import Status
        >>> Status("reached") is Status.REACHED
        True
    """

    REACHED = "reached"
    EXHAUSTED = "exhausted"  # the budget was used up
    DIVERGED = "diverged"  # a loss was not finite
    ABANDONED = "abandoned"  # a search gave up on it
    INTERRUPTED = "interrupted"
    FAILED = "failed"


UNFINISHED = (Status.FAILED, Status.INTERRUPTED)  # training goes on with the same command


@dataclass(frozen=True)
class Result:
    """The content of `result.json`: what was run, and its answer to the latest request.

    `steps` (K), `sfo` and `samples` are None unless the threshold was reached. `loss`, `accuracy`
    and `seconds` are those at step K, or at the end if the threshold was not reached; `seconds`
    counts training only, at the run's mean speed. `test_accuracy_at_end` belongs to the final
    weights; `test_accuracy` is the same number if these are the weights at step K, and None if not.
    Accuracies are fractions. `status` answers the request; `ended` says why training ended.

    Example:
        >>> from cbs_lightning.analysis.example import example_results
        >>> result = example_results()[0]
        >>> result.status.value, result.batch_size, result.steps, result.sfo
        ('reached', 4, 1800, 7200)
    """

    schema_version: int
    status: Status | None  # None only in a summary: the losses end before an answer
    ended: Status
    study: str
    variant: str
    data: str
    model: str
    optimizer: str
    lr: float | None  # None: the optimizer has none
    hyperparameters: dict[str, Any]
    batch_size: int
    effective_batch_size: int
    micro_batch_size: int | None
    seed: int | None  # None: a run in a Trainer of one's own that set none
    threshold: float
    rule: RuleName
    window: int
    steps: int | None
    sfo: int | None
    samples: int | None
    steps_run: int
    epochs_run: float
    steps_per_epoch: int
    data_size: int
    loss: float | None
    accuracy: float | None
    test_accuracy: float | None
    seconds: float
    seconds_per_step: float | None
    threads: int
    device: str
    config_hash: str
    versions: dict[str, str]
    commit: str | None = None  # of this project's code; with a + where it was changed since
    configuration: dict[str, Any] = field(default_factory=dict)  # all of it, resolved
    machine: str | None = None
    trajectory_digest: str | None = None  # of the `steps_run` steps that this result is made of
    test_accuracy_at_end: float | None = None  # of the final weights
    tokens_per_sample: int | None = None  # of data that says so, such as text
    tokens: int | None = None  # of the `samples`
    is_stream: bool = False  # the data has no length: an epoch is one step
    waited: float | None = None  # share of the training time without a core, since others had it
    losses_from: str | None = None  # run directory beside this one that the losses were copied from
    reads_budget: bool = False  # the losses are those of this budget alone: the module reads it

    @property
    def sliced(self) -> bool:
        """Whether batches were processed in slices, whose statistics BatchNorm then saw."""
        slice_size = self.micro_batch_size
        return slice_size is not None and slice_size < self.effective_batch_size

    @property
    def moved(self) -> bool:
        """Whether it was resumed on another machine or with other threads, going by `machine`."""
        return MOVED in (self.machine or "")

    @property
    def lr_scaling(self) -> str:
        """The rule that gave `lr`; "none" for runs from before there were rules."""
        return str(self.configuration.get("lr_scaling", "none"))

    @property
    def has_keys(self) -> bool:
        """Whether it was run with this project's keys, as far as is known, not in a Trainer of
        somebody's own."""
        return not self.configuration or isinstance(self.configuration.get("stop"), dict)

    @property
    def budget_key(self) -> str:
        """The key whose value ends the run first, `max_epochs` or `max_steps`; "": not known."""
        stop = self.configuration.get("stop")
        given = stop if isinstance(stop, dict) else {}
        epochs, steps = given.get("max_epochs"), given.get("max_steps")
        if not isinstance(steps, int):
            return "max_epochs" if isinstance(epochs, int) else ""
        later = not isinstance(epochs, int) or steps <= epochs * self.steps_per_epoch
        return "max_steps" if later else "max_epochs"

    @property
    def budget(self) -> str:
        """What the run was allowed to spend, in words; "" if its configuration does not say."""
        stop = self.configuration.get("stop")
        given = stop if isinstance(stop, dict) else {}
        limits = [(given.get("max_epochs"), "epoch"), (given.get("max_steps"), "step")]
        return " or ".join(count_of(n, unit) for n, unit in limits if isinstance(n, int))

    @property
    def rounded_to(self) -> int:
        """The steps that K is a multiple of: rule `epoch` looks at the loss once an epoch."""
        return self.steps_per_epoch if self.rule is RuleName.EPOCH else 1

    @property
    def first_reading(self) -> int:
        """The first step at which the rule gives a loss."""
        if self.rule is RuleName.EPOCH:
            return self.steps_per_epoch
        return self._read_by.window_steps(self.effective_batch_size) - self.steps_ahead

    @property
    def steps_ahead(self) -> int:
        """How many steps after K the rule looks at."""
        return self._read_by.steps_ahead(self.effective_batch_size)

    @property
    def _read_by(self) -> Rule:
        return Rule(self.rule, self.steps_per_epoch, self.window)

    @property
    def steps_answered(self) -> int:
        """How many steps the answer covers: a longer run may answer for a smaller budget."""
        if self.steps is not None or not self.seconds_per_step:
            return self.steps or self.steps_run
        return round(self.seconds / self.seconds_per_step)

    @property
    def steps_exceeded(self) -> int:
        """K, or the number of steps that K exceeds if the threshold was not reached."""
        ahead = self.steps_ahead if self.steps is None else 0
        return max(self.steps_answered - ahead, 0)

    @property
    def sfo_exceeded(self) -> int:
        """The cost of those steps."""
        return self.steps_exceeded * self.effective_batch_size


def seed_order(seed: int | None) -> tuple[bool, int]:
    """What sorts seeds, runs without one last."""
    return seed is None, seed or 0


def seeds_in_words(seeds: Iterable[int | None]) -> str:
    """How runs were seeded, in a word or two.

    >>> seeds_in_words([0]), seeds_in_words([0, 1, 2]), seeds_in_words([None])
    ('seed 0', '3 seeds', 'unseeded')
    """
    found = set(seeds)
    known = found - {None}
    some = f"seed {next(iter(known))}" if len(known) == 1 else count_of(len(known), "seed")
    parts = [*([some] if known else []), *(["unseeded"] if None in found else [])]
    return " and ".join(parts) or "no run finished"


def seeds_of_cells(seeded: Iterable[tuple[Hashable, int | None]]) -> str:
    """How cells were seeded, given the cell and the seed of every run.

    >>> seeds_of_cells([(4, 0), (4, 1), (4, 2), (8, 0)])  # some have fewer
    '1 to 3 seeds'
    """
    pairs = set(seeded)
    numbers = Counter(cell for cell, _ in pairs).values()
    words = seeds_in_words(seed for _, seed in pairs)
    fewer = len(set(numbers)) > 1 and words == f"{max(numbers)} seeds"
    return f"{min(numbers)} to {words}" if fewer else words


@dataclass(frozen=True)
class Request:
    """A question to a run: at which step did its loss reach this threshold?

    Args:
        threshold: the loss to reach.
        rule: how the loss is read from the steps: `epoch`, `window` or `middle`.
        window: number of samples that `window` and `middle` average over.
        max_steps: the budget in steps; None: the run's own.

    Example:
        >>> from cbs_lightning import Request
        >>> Request(threshold=0.1, rule="window", window=50_000).max_steps is None
        True
    """

    threshold: float
    rule: RuleName
    window: int
    max_steps: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", RuleName(self.rule))

    def describe(self) -> str:
        return f"loss <= {self.threshold:g} by {_rule_in_words(self)}"


def tell_apart(requests: Iterable[Request]) -> dict[Request, str]:
    """What distinguishes each of several requests from the others, in words; "" if there is one.

    >>> asked = [Request(0.1, "window", 450), Request(0.2, "window", 450)]
    >>> list(tell_apart(asked).values())
    ['loss <= 0.1', 'loss <= 0.2']
    """
    found = dict.fromkeys(requests, "")
    ways = {_rule_in_words(request) for request in found}
    thresholds = {request.threshold for request in found}
    for request in found:
        parts = [f"loss <= {request.threshold:g}"] if len(thresholds) > 1 else []
        parts += [_rule_in_words(request)] if len(ways) > 1 else []
        found[request] = ", ".join(parts)
    return found


def _rule_in_words(request: Request) -> str:
    over = "" if request.rule is RuleName.EPOCH else f" over {count_of(request.window, 'sample')}"
    return f"rule {request.rule}{over}"


@dataclass(frozen=True)
class Run:
    """A run that was read from its directory: its result and its loss at every step.

    Example:
        >>> from cbs_lightning import Run, answer, Request
        >>> def steps_to(run: Run, loss: float) -> int | None:
        ...     request = Request(loss, run.result.rule, run.result.window)
        ...     return answer(run.result, run.trajectory, request).steps
    """

    directory: Path
    result: Result
    trajectory: Trajectory


def answer(result: Result, trajectory: Trajectory, request: Request) -> Result:
    """Answer a request from the recorded losses of a run, without training.

    Args:
        result: the run's result.
        trajectory: its losses.
        request: the threshold, rule and budget to answer for.

    Returns:
        The result with the new answer. Its status is `reached` if the losses reach the threshold.
        Otherwise it says why not, or is None if the recorded losses end too soon to tell.

    Example:
        >>> import numpy as np
        >>> from cbs_lightning import Request, answer
        >>> from cbs_lightning.analysis.example import example_results
        >>> from cbs_lightning.results.trajectory import Trajectory
        >>> losses = np.array([2, 1, 0.5, 0.2], np.float32)
        >>> sizes = np.full(4, 64, np.int32)
        >>> trajectory = Trajectory(losses, correct=sizes, size=sizes)
        >>> run = example_results()[4]  # b = 64
        >>> found = answer(run, trajectory, Request(0.5, "window", window=64))
        >>> found.steps, found.sfo
        (3, 192)
    """
    rule = Rule(request.rule, result.steps_per_epoch, request.window)
    return _answer(result, Readings.of(trajectory[: request.max_steps], rule), request)


def answers(run: Run, rule: RuleName, window: int, thresholds: Iterable[float]) -> list[Result]:
    """Like `answer`, for every threshold, within the run's own budget."""
    read = Readings.of(run.trajectory, Rule(rule, run.result.steps_per_epoch, window))
    return [_answer(run.result, read, Request(each, rule, window)) for each in thresholds]


def _answer(result: Result, read: Readings, request: Request) -> Result:
    asked = replace(result, threshold=request.threshold, rule=request.rule, window=request.window)
    crossing = read.first_crossing(request.threshold)
    if crossing is not None:
        return _at(asked, crossing, Status.REACHED, end=crossing.steps)
    within = read.trajectory
    status = _why_not(result.ended, within, request.max_steps)
    return _at(asked, last_reading(within, read.rule), status, end=len(within))


def _why_not(ended: Status, within: Trajectory, max_steps: int | None) -> Status | None:
    if within.first_non_finite() is not None:
        return Status.DIVERGED
    if max_steps is not None and len(within) == max_steps:
        return Status.EXHAUSTED
    if ended is Status.REACHED or (ended is Status.EXHAUSTED and max_steps is not None):
        return None  # it stopped at another threshold, or its budget was smaller
    return ended


def _at(result: Result, reading: Reading | None, status: Status | None, end: int) -> Result:
    """The result as of step `end`."""
    reached = reading if status is Status.REACHED else None
    tested = result.test_accuracy_at_end
    if tested is None:  # as of runs of old, which had one for both
        tested = result.test_accuracy
    return replace(
        result,
        status=status,
        steps=reached.steps if reached else None,
        sfo=reached.steps * result.effective_batch_size if reached else None,
        samples=reached.samples if reached else None,
        tokens=_times(reached.samples, result.tokens_per_sample) if reached else None,
        loss=_finite(reading.loss) if reading else None,
        accuracy=reading.accuracy if reading else None,
        test_accuracy=tested if reached and end == result.steps_run else None,
        test_accuracy_at_end=tested,
        seconds=(result.seconds_per_step or 0.0) * end,
    )


def _times(samples: int, tokens: int | None) -> int | None:
    return samples * tokens if tokens is not None else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def describe(result: Result) -> str:
    """The finding of a run, in half a line."""
    if result.status is Status.REACHED and result.steps is not None:
        steps = count_of(result.steps, "step")
        found = f"reached {result.threshold:g} after {steps}, SFO {result.sfo:,}"
    else:
        end = result.steps_answered
        how = "budget used up" if result.status is Status.EXHAUSTED else result.status
        sfo = f", SFO {result.sfo_exceeded:,}" if result.status is Status.ABANDONED else ""
        early = result.rule is RuleName.EPOCH and end < result.steps_per_epoch
        before = ", before the first epoch ended" if early else ""
        loss = f"loss {result.loss:.3g}, " if result.loss is not None else ""
        found = f"{how} after {count_of(end, 'step')}{sfo}{before}; {loss}"
        found += f"threshold {result.threshold:g}"
    return f"{found}, {duration(result.seconds)}"
