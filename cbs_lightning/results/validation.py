"""Checks what was read from a run directory: types, ranges, and losses that give the answer.

A run directory may come from somebody else, or be garbled in a way that its checksums do not show.
Every function here raises ValueError, with a reason in plain words, for what no run can have
written.
"""

import math
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results.result import UNFINISHED, Request, Result, Status, answer
from cbs_lightning.results.trajectory import Trajectory

LARGEST = 2**63 - 1  # that arrays and event files hold
LONGEST_NAME = 255  # characters, as a folder's
DEEPEST = 32  # levels of a configuration
MOST_THREADS = 4096
# The least that each whole number can be.
WHOLE = {
    "schema_version": 1, "batch_size": 1, "effective_batch_size": 1, "micro_batch_size": 1,
    "seed": 0, "window": 1, "steps": 1, "sfo": 1, "samples": 1, "steps_run": 0,
    "steps_per_epoch": 1, "data_size": 1, "threads": 0, "tokens": 1, "tokens_per_sample": 1,
}  # fmt: skip
POSITIVE = ("lr", "threshold")
NOT_NEGATIVE = ("epochs_run", "seconds", "seconds_per_step")
FRACTIONS = ("accuracy", "test_accuracy", "test_accuracy_at_end", "waited")
NAMES = ("study", "variant", "data", "model", "optimizer", "device", "config_hash")
TOLERANCE = 1e-6  # relative, of a loss that is computed again


def check_result(result: Result) -> None:
    """Check that a run could have written this result, as far as the result alone shows."""
    for name, kind in get_type_hints(Result).items():
        _check_type(name, getattr(result, name), kind)
    for name, least in WHOLE.items():
        _check_range(name, getattr(result, name), least, LARGEST)
    for name in POSITIVE:
        _check_range(name, getattr(result, name), math.ulp(0.0))
    for name in NOT_NEGATIVE:
        _check_range(name, getattr(result, name), 0.0)
    for name in FRACTIONS:
        _check_range(name, getattr(result, name), 0.0, 1.0)
    _check_range("loss", result.loss, -math.inf)
    _check_range("threads", result.threads, 0, MOST_THREADS)
    for name in NAMES:
        check_name(name, getattr(result, name))
    if result.losses_from is not None:
        check_name("losses_from", result.losses_from)
    for name in ("hyperparameters", "versions", "configuration", "commit", "machine"):
        _check_text(name, getattr(result, name))
    Scaling(result.lr_scaling)
    _check_lr(result)
    _check_seed(result)
    _check_counts(result)


def _check_lr(result: Result) -> None:
    """Only an optimizer that was configured without a learning rate may have none."""
    settings = result.configuration.get("optimizer")
    given = settings.get("lr") if isinstance(settings, dict) else None
    if result.lr is None and given is not None:
        raise ValueError(f"lr is None, with optimizer.lr = {_shown(given)}")


def _check_seed(result: Result) -> None:
    """Only a run that was configured without a seed may have none."""
    given = result.configuration.get("seed")
    if result.seed is None and given is not None:
        raise ValueError(f"seed is None, with seed = {_shown(given)}")


def _check_type(name: str, value: Any, kind: Any) -> None:
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    kinds = tuple(get_origin(each) or each for each in kinds)
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name} is {_shown(value)}")


def _check_range(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Check a number; whether None is allowed is up to the type."""
    if value is not None and not (least <= value <= most and math.isfinite(value)):
        raise ValueError(f"{name} is {_shown(value)}")


def check_name(name: str, value: str) -> None:
    """Check a name, which appears in lines, legends and file names."""
    if not (0 < len(value) <= LONGEST_NAME and value.isprintable()):
        raise ValueError(f"{name} is {_shown(value)}")


def _check_text(name: str, value: Any, depth: int = 0) -> None:
    """Check that everything inside can be written to a file again."""
    if depth > DEEPEST:
        raise ValueError(f"{name} is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(name, key, depth + 1)
            _check_text(name, item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_text(name, item, depth + 1)
    elif isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
        raise ValueError(f"{name} has {_shown(value)}")


def _is_unicode(text: str) -> bool:
    """Whether there are no halves of characters, which JSON can also contain."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_counts(result: Result) -> None:
    """Check numbers that follow from each other."""
    b, n = result.batch_size, result.data_size
    if result.effective_batch_size != min(b, n):
        raise ValueError(
            f"effective_batch_size is {result.effective_batch_size}, with b = {b} and n = {n}"
        )
    if result.steps_run * result.effective_batch_size > LARGEST:
        raise ValueError(f"steps_run is {result.steps_run}")
    reached = result.status is Status.REACHED
    if any((value is not None) != reached for value in (result.steps, result.sfo, result.samples)):
        raise ValueError(f"steps, sfo and samples do not go with status {result.status}")
    if result.status in (*UNFINISHED, Status.ABANDONED) and result.ended is not result.status:
        raise ValueError(f"status is {result.status}, but training ended as {result.ended}")
    if result.steps is not None and result.steps > result.steps_run:
        raise ValueError(f"steps is {result.steps}, of {result.steps_run} that were run")
    if result.steps is not None and result.sfo != result.steps * result.effective_batch_size:
        raise ValueError(f"sfo is {result.sfo}, which is not steps times b")
    if result.seconds_per_step:
        answered = result.seconds / result.seconds_per_step
        if not answered <= result.steps_run + 0.5:
            raise ValueError(f"seconds is {result.seconds}, more than its steps took")


def check_trajectory(trajectory: Trajectory) -> None:
    """Only the last loss may be infinite or NaN; `correct` may be -1 throughout, if not known."""
    loss, correct, size = trajectory.loss, trajectory.correct, trajectory.size
    if (size <= 0).any():
        raise ValueError(f"a batch of {size.min()} samples")
    known = (correct != -1).any()
    if known and ((correct < 0) | (correct > size)).any():
        raise ValueError(
            "a batch with fewer than 0 correct predictions, or more than it has samples"
        )
    if not np.isfinite(loss[:-1]).all():
        raise ValueError("a loss that is not finite, and more after it")


def check_answer(result: Result, trajectory: Trajectory) -> None:
    """The losses must be those of the result, and give its answer."""
    if result.trajectory_digest not in (None, trajectory.digest()):
        raise ValueError("not the losses of this result")
    budget = result.steps_answered if result.steps is None else None  # K may need a look ahead
    request = Request(result.threshold, result.rule, result.window, budget)
    found = answer(result, trajectory, request)
    # So many steps are the whole budget of this request, whatever ended the run there.
    status = Status.EXHAUSTED if result.status is Status.ABANDONED else result.status
    same = result.status in UNFINISHED or (
        (found.status, found.steps, found.samples) == (status, result.steps, result.samples)
    )
    same_loss = _is_close(found.loss, result.loss)
    known = (trajectory.correct != -1).any()
    same_accuracy = not known or _is_close(found.accuracy, result.accuracy)
    if not (same and same_loss and same_accuracy):
        raise ValueError("losses that do not give the answer of this result")


def _is_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(value: Any) -> str:
    """The value in a few printable characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
