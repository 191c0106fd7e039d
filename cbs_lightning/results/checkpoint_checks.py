"""Checks that a checkpoint contains everything a run needs to resume exactly.

Lightning accepts a checkpoint that lacks its optimizer's state, its callbacks' states or its
counters, and then trains on with other losses.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from cbs_lightning.results.trajectory import Trajectory
from cbs_lightning.results.trajectory_file import TYPES
from cbs_lightning.results.validation import MOST_THREADS, check_name, check_trajectory

ENDS, STARTS, ALL = ("ready", "completed"), ("started",), ("processed",)
OLDEST_LIGHTNING = Version("2")


@dataclass(frozen=True)
class Expected:
    """What a checkpoint has to fit: a newly built model, and its optimizer after one step."""

    state_dict: dict[str, Tensor]
    optimizer: Optimizer
    settings: list[dict[str, Any]]  # a group: what the step left as it was
    steps_per_epoch: int
    steps_per_chunk: int


def check_checkpoint(values: Any, config_hash: str, expected: Expected) -> None:
    """Raise ValueError, or whatever garbled values lead to, unless the run can resume from it."""
    steps = _entry(values, "global_step", kind=int)
    if steps < 1:
        raise ValueError(f"global_step is {steps}")
    _check_origin(values, config_hash)
    _check_tensors("state_dict", _entry(values, "state_dict"), expected.state_dict)
    _check_optimizer(_entry(values, "optimizer_states", kind=list), expected)
    _check_callbacks(values, steps)
    _check_loops(_entry(values, "loops", "fit_loop"), steps, expected)
    if _entry(values, "lr_schedulers", kind=list):
        raise ValueError("lr_schedulers of a run that has none")
    if Version(_entry(values, "pytorch-lightning_version", kind=str)) < OLDEST_LIGHTNING:
        raise ValueError("of a Lightning that there was not")


def check_general_checkpoint(values: Any, config_hash: str, tensors: dict[str, Tensor]) -> None:
    """Like `check_checkpoint` for any module, as far as anything is known about it.

    `tensors` are the state of a newly built module; a module may add to them when it trains.
    """
    steps = _entry(values, "global_step", kind=int)
    if steps < 1:
        raise ValueError(f"global_step is {steps}")
    _check_origin(values, config_hash)
    found = _entry(values, "state_dict")
    known = {key: value for key, value in tensors.items() if not is_lazy(value)}
    _check_tensors("state_dict", {key: found[key] for key in known}, known)
    if len(_entry(values, "optimizer_states", kind=list)) != 1:
        raise ValueError("optimizer_states of more or fewer optimizers than 1")
    callbacks = _entry(values, "callbacks")
    _check_recorder(_entry(callbacks, "TrajectoryRecorder"), steps)
    _check_random_states(_entry(callbacks, "TimedCheckpoint"))
    _entry(values, "loops", "fit_loop")


def _entry(values: Any, *path: str, kind: type[Any] = dict) -> Any:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            raise ValueError(f"no {'.'.join(path)}")
        values = values[key]
    if not isinstance(values, kind) or (isinstance(values, bool) and kind is int):
        raise ValueError(f"{'.'.join(path)} is a {type(values).__name__}")
    return values


def _check_origin(values: Any, config_hash: str) -> None:
    origin = _entry(values, "callbacks", "TimedCheckpoint", "origin")
    if origin.get("config_hash") != config_hash:
        raise ValueError("of another configuration")
    rest = dict(origin)
    threads, slice_size = rest.pop("threads"), rest.pop("micro_batch_size")
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise ValueError("origin.threads is no number of threads")
    if slice_size is not None and (type(slice_size) is not int or slice_size < 1):
        raise ValueError("origin.micro_batch_size is no number of samples")
    for name, value in rest.items():
        if not isinstance(value, str):
            raise ValueError("origin has something that is no text")
        check_name(f"origin.{name}", value)


def _check_tensors(name: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Names, shapes and types must be the same; values that are not tensors must be of the same
    kind."""
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        raise ValueError(f"{name} has other entries than this model's")
    for key, value in wanted.items():
        own = found[key]
        if _form(own) != _form(value):
            raise ValueError(f"{name}.{key} is not of this model's shape and type")


def _form(value: Any) -> tuple[Any, ...]:
    """The value in one form: 1 and 1.0 are the same setting, and so are lists and tuples."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.layout, value.device.type
    if isinstance(value, list | tuple):
        return (list, len(value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (float if number else type(value),)


def _check_optimizer(found: list[Any], expected: Expected) -> None:
    """The settings must be this run's, and each parameter must have the state of a trained one."""
    if len(found) != 1 or not isinstance(found[0], dict):
        raise ValueError(f"optimizer_states of {len(found)} optimizers, not of 1")
    wanted = expected.optimizer.state_dict()
    state = _entry(found[0], "state")
    if state.keys() != wanted["state"].keys():
        raise ValueError("optimizer_states of other parameters than this model's")
    for number, own in wanted["state"].items():
        _check_tensors(f"optimizer_states.{number}", state[number], own)
    groups = _entry(found[0], "param_groups", kind=list)
    if not _is_same([g["params"] for g in groups], [g["params"] for g in wanted["param_groups"]]):
        raise ValueError("optimizer_states with other groups than this optimizer's")
    # Which fills in the settings that a later torch has added.
    expected.optimizer.load_state_dict({"state": {}, "param_groups": groups})
    filled = expected.optimizer.state_dict()["param_groups"]
    expected.optimizer.load_state_dict(wanted)
    for own, usual, constant in zip(filled, wanted["param_groups"], expected.settings, strict=True):
        _check_tensors("optimizer_states.param_groups", own, usual)
        if not _is_same({name: own[name] for name in constant}, constant):
            raise ValueError("optimizer_states with other settings than this run's")


def _check_callbacks(values: Any, steps: int) -> None:
    callbacks = _entry(values, "callbacks")
    _check_recorder(_entry(callbacks, "TrajectoryRecorder"), steps)
    _check_random_states(_entry(callbacks, "TimedCheckpoint"))
    rates = _entry(callbacks, "LogCurves", "rates", kind=list)
    since = [step for step, _ in rates]
    valid = all(type(step) is int and 0 <= step <= steps for step in since)
    valid = valid and all(type(rate) is float and 0 <= rate < math.inf for _, rate in rates)
    if not valid or since[:1] != [0] or since != sorted(since):
        raise ValueError("LogCurves.rates are no learning rates from the first step on")
    if values["optimizer_states"][0]["param_groups"][0]["lr"] != rates[-1][1]:
        raise ValueError("optimizer_states with another learning rate than was noted last")


def _check_random_states(state: dict[str, Any]) -> None:
    random = _entry(state, "cpu", kind=Tensor)
    _check_tensors("TimedCheckpoint", {"cpu": random}, {"cpu": torch.get_rng_state()})
    torch.Generator().set_state(random)  # which refuses what is none
    for own in _entry(state, "cuda", kind=list):
        if not isinstance(own, Tensor) or own.dtype != torch.uint8 or own.ndim != 1:
            raise ValueError("TimedCheckpoint.cuda has something that is no random state")


def _check_recorder(state: dict[str, Any], steps: int) -> None:
    """There must be a loss for every step so far, or up to one that is not finite."""
    arrays = {name: _entry(state, name, kind=Tensor) for name in TYPES}
    for name, dtype in TYPES.items():
        tensor = arrays[name]
        # Not contiguous, it may be of one number that is shown a billion times.
        if tensor.ndim != 1 or not tensor.is_contiguous() or len(tensor) > steps:
            raise ValueError(f"TrajectoryRecorder.{name} is not of {steps} steps")
        if tensor.numpy().dtype != dtype:
            raise ValueError(f"TrajectoryRecorder.{name} is {tensor.dtype}")
    if state.keys() - {"waited"} != {"seconds", "steps_timed", *TYPES}:
        raise ValueError("TrajectoryRecorder has other entries")
    trajectory = Trajectory(**{name: tensor.numpy() for name, tensor in arrays.items()})
    lengths = {len(array) for array in vars(trajectory).values()}
    diverged = len(trajectory) > 0 and not np.isfinite(trajectory.loss[-1])
    if lengths != {steps} and not (diverged and len(lengths) == 1):
        raise ValueError(f"TrajectoryRecorder is not of {steps} steps")
    check_trajectory(trajectory)
    seconds, timed = _entry(state, "seconds", kind=float), _entry(state, "steps_timed", kind=int)
    if not (0 <= seconds < math.inf and timed == steps):
        raise ValueError("TrajectoryRecorder has no time of its steps")
    waited = state.get("waited", math.nan)  # which means that it is not known
    if type(waited) is not float or not (math.isnan(waited) or 0 <= waited < math.inf):
        raise ValueError("TrajectoryRecorder.waited is no time")


def _check_loops(found: dict[str, Any], steps: int, expected: Expected) -> None:
    """Lightning's counters and the loader's place must follow from the steps.

    The number of epochs is not checked: Lightning miscounts it after some restarts, and nothing
    depends on it.
    """
    epochs, within = divmod(steps, expected.steps_per_epoch)
    place, rest = divmod(within, expected.steps_per_chunk)
    if rest:
        raise ValueError(f"global_step is {steps}, inside a chunk")
    for name, value in _loops(steps, epochs, place, expected).items():
        if not _is_same(found.get(name), value):
            raise ValueError(f"loops.fit_loop.{name} is not that of step {steps}")
    for name in ("total", "current"):
        counts = _entry(found, "epoch_progress", name)
        if counts.keys() != {*ENDS, *STARTS, *ALL} or not all(
            type(count) is int and 0 <= count <= epochs + 1 for count in counts.values()
        ):
            raise ValueError("loops.fit_loop.epoch_progress has other counts")


def _loops(steps: int, epochs: int, place: int, expected: Expected) -> dict[str, Any]:
    """The state of Lightning's loops when a chunk has been trained but not yet counted."""
    chunks_per_epoch = -(-expected.steps_per_epoch // expected.steps_per_chunk)
    chunks, of_epoch = epochs * chunks_per_epoch + place, place or chunks_per_epoch
    none = {"total": dict.fromkeys(ENDS, 0), "current": dict.fromkeys(ENDS, 0)}
    made = {"total": dict.fromkeys(ENDS, steps), "current": dict.fromkeys(ENDS, steps)}
    zeroed = {name: dict.fromkeys((*ENDS, *STARTS), 0) for name in none}
    validated = {name: dict.fromkeys((*ENDS, *STARTS, *ALL), 0) for name in none}
    return {
        "state_dict": {"combined_loader": [{"epoch": epochs, "position": place}]},
        "epoch_loop.state_dict": {"_batches_that_stepped": chunks - 1},
        "epoch_loop.batch_progress": {
            "total": dict.fromkeys((*ENDS, *STARTS, *ALL), chunks) | {"completed": chunks - 1},
            "current": dict.fromkeys((*ENDS, *STARTS, *ALL), of_epoch)
            | {"completed": of_epoch - 1},
            "is_last_batch": place == 0,
        },
        "epoch_loop.scheduler_progress": none,
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {"step": none, "zero_grad": zeroed}
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": made,
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": validated | {"is_last_batch": False},
    }


def _is_same(found: Any, wanted: Any) -> bool:
    """Like `==`, but a list may be a tuple, and a tensor is never equal to a number."""
    if isinstance(wanted, dict):
        same_keys = isinstance(found, dict) and found.keys() == wanted.keys()
        return same_keys and all(_is_same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        same_length = isinstance(found, list | tuple) and len(found) == len(wanted)
        return same_length and all(map(_is_same, found, wanted))
    plain = isinstance(found, bool | int | float | str | None)
    return plain and isinstance(found, bool) == isinstance(wanted, bool) and found == wanted
