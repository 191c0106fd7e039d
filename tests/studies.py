"""Studies made up for tests: run directories with losses that cross 1.0 where they are told to."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cbs_lightning.callbacks import LogCurves, TrajectoryRecorder
from cbs_lightning.results import store
from cbs_lightning.results.hparams import write_hparams
from cbs_lightning.results.result import SCHEMA_VERSION, Request, Result, Run, Status, answer
from cbs_lightning.results.trajectory import RuleName, Trajectory

N = 1000


def make_run(
    study: Path,
    optimizer: str,
    batch_size: int,
    epochs: int,
    *,
    reached: bool = True,
    seed: int = 0,
    variant: str | None = None,
    seconds_per_step: float = 0.5,
    micro_batch_size: int | None = None,
    falling: bool = False,
    abandoned: bool = False,
    waited: float | None = 0.0,
    threads: int = 1,
    machine: str = "a machine, 2 cores, Linux 6",
) -> Result:
    """A run whose loss is 3 until it is 0.9 in epoch number `epochs`, or never.

    With `falling` it falls there from epoch to epoch, and goes on to half of that. A search gives
    an `abandoned` one up at the end of that epoch.
    """
    ended = Status.REACHED if reached else Status.EXHAUSTED
    if abandoned:
        reached, ended = False, Status.ABANDONED
    effective = min(batch_size, N)
    epoch = [effective] * (N // effective) + ([N % effective] if N % effective else [])
    size = np.array(epoch * epochs, np.int32)
    loss = np.full(len(size), 3.0, np.float32)
    if falling:
        size = np.array(epoch * 2 * epochs, np.int32)
        levels = 3.0 * (0.9 / 3.0) ** (np.arange(1, 2 * epochs + 1) / epochs)
        loss = np.repeat(levels if reached else levels**0.1 * 2, len(epoch)).astype(np.float32)
    elif reached:
        loss[-len(epoch) :] = 0.9
    trajectory = Trajectory(loss, size // 2, size)
    result = Result(
        schema_version=SCHEMA_VERSION,
        status=ended,
        ended=ended,
        study=study.name,
        variant=variant or optimizer,
        data="digits",
        model="resnet20",
        optimizer=optimizer,
        lr=1e-3,
        hyperparameters={"fused": True},
        batch_size=batch_size,
        effective_batch_size=effective,
        micro_batch_size=micro_batch_size,
        seed=seed,
        threshold=1.0,
        rule=RuleName.EPOCH,
        window=N,
        steps=None,
        sfo=None,
        samples=None,
        steps_run=len(size),
        epochs_run=len(size) / len(epoch),
        steps_per_epoch=len(epoch),
        data_size=N,
        loss=None,
        accuracy=None,
        test_accuracy=None,
        seconds=0.0,
        seconds_per_step=seconds_per_step,
        threads=threads,
        device="cpu",
        config_hash=hashlib.sha256(f"{variant}{optimizer}{batch_size}".encode()).hexdigest(),
        versions={"python": "3.11.0"},
        commit="0123abc",
        configuration={
            "batch_size": batch_size,
            "optimizer": {"lr": 1e-3},
            "stop": {"loss": 1.0, "rule": "epoch"},
        },
        machine=machine,
        waited=waited,
        trajectory_digest=trajectory.digest(),
    )
    result = answer(result, trajectory, Request(1.0, RuleName.EPOCH, N))
    directory = store.run_directory(
        study.parent, study.name, result.variant, batch_size, seed, result.config_hash
    )
    directory.mkdir(parents=True)
    (directory / store.CONFIG).write_text("batch_size: 1\n")
    store.write_trajectory(directory, trajectory)
    store.write_result(directory, result)
    return result


def rewrite(directory: Path, trajectory: Trajectory, **changed: Any) -> None:
    """The run as if it had had these losses."""
    result = replace(store.read_result(directory), **changed)
    result = replace(result, steps_run=len(trajectory), trajectory_digest=trajectory.digest())
    result = answer(result, trajectory, Request(result.threshold, result.rule, result.window))
    store.write_trajectory(directory, trajectory)
    store.write_result(directory, result)


def make_study(study: Path) -> None:
    """Adam's least SFO is at b = 8; sgd's at the smallest b, and it fails from b = 16 on."""
    for batch_size, epochs in ((4, 5), (8, 3), (16, 4), (32, 7)):
        make_run(study, "adam", batch_size, epochs)
    for batch_size, epochs in ((4, 6), (8, 9)):
        make_run(study, "sgd", batch_size, epochs)
    for batch_size in (16, 32):
        make_run(study, "sgd", batch_size, 10, reached=False)


def make_full_study(study: Path) -> None:
    """What figures can show: seeds, thresholds, unreached batch sizes, slices, a minimum inside."""
    for seed in range(3):
        for batch_size, epochs in ((4, 14), (8, 9), (16, 8), (32, 9), (64, 13), (128, 22)):
            time = {"seconds_per_step": 0.02 + 0.001 * batch_size}
            sliced = 32 if batch_size > 64 else None
            make_run(
                study, "adam", batch_size, epochs + seed * (1 + batch_size // 64), seed=seed,
                micro_batch_size=sliced, falling=True, **time,
            )  # fmt: skip
            missed = batch_size > 32  # within a budget of fewer steps than b = 32 took
            make_run(
                study, "sgd", batch_size, 30 if missed else 12 + batch_size, seed=seed,
                falling=True, reached=not missed, **time,
            )  # fmt: skip


def make_searched_study(study: Path) -> None:
    """As a search leaves it: b* between two runs, what cost more given up, one out of reach."""
    for batch_size, epochs in ((8, 9), (16, 8), (32, 10)):
        make_run(study, "adam", batch_size, epochs)
    for batch_size in (4, 128):
        make_run(study, "adam", batch_size, 13, abandoned=True)
    for batch_size, epochs in ((8, 20), (16, 25)):
        make_run(study, "sgd", batch_size, epochs)
    make_run(study, "sgd", 4, 31, abandoned=True)
    make_run(study, "sgd", 64, 40, reached=False)


def log_run(run: Run, points: int = 200, rates: tuple[float, ...] = (1e-3,)) -> None:
    """What training writes for TensorBoard; it is given the steps in as many parts as rates."""
    recorder = TrajectoryRecorder()
    curves = LogCurves(run.directory, recorder, points, run.result.effective_batch_size)
    groups = [{"lr": rates[0]}]
    trainer: Any = SimpleNamespace(optimizers=[SimpleNamespace(param_groups=groups)], global_step=0)
    curves.on_train_start(trainer)
    for part, rate in enumerate(rates, 1):
        groups[0]["lr"] = rate
        trainer.global_step = len(run.trajectory) * part // len(rates)
        so_far = vars(run.trajectory[: trainer.global_step])
        arrays = {name: torch.from_numpy(array.copy()) for name, array in so_far.items()}
        recorder.load_state_dict({"seconds": 0.0, "steps_timed": 0, **arrays})
        curves.on_train_batch_end(trainer)
    curves.on_train_end()
    write_hparams(run.directory, run.result)
