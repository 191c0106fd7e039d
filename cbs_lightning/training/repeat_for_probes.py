"""Probes for a finished run: it is trained once more, in a folder of its own directory."""

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from cbs_lightning.callbacks import Job
from cbs_lightning.callbacks.job import Gpu
from cbs_lightning.callbacks.log_noise import write_events
from cbs_lightning.callbacks.probes.theorem import FINAL_WEIGHTS, REFERENCE
from cbs_lightning.config.identity import config_hash, run_directory, run_title
from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.files import inside, write_atomically
from cbs_lightning.noise.record import FILE
from cbs_lightning.results import store
from cbs_lightning.results.result import UNFINISHED, Request, Run
from cbs_lightning.results.trajectory import Trajectory
from cbs_lightning.training.probes import read_record, settings_of
from cbs_lightning.training.source import Source
from cbs_lightning.training.train import train

# Without what was measured in another run than was asked for.
NOTHING: dict[str, Any] = {
    "probes": [], "critical_batch": None, "interval": None, "estimator": None,
    "b_simple": None, "b_simple_interval": None, "estimators": {}, "theorem": None,
}  # fmt: skip
FOLDER = "probes"  # until they are made; a run that was cut off goes on from there
ASKED = "asked.json"  # which they are


def repeat_for_probes(
    cfg: RunConfig, request: Request, stored: Run, job: Job, gpu: Gpu | None
) -> None:
    """Write `noise.json` to the run's directory, with probes only if the losses are identical.

    A signal raises `Interrupted`; the next call resumes from there.
    """
    directory, title = run_directory(cfg), job.title(run_title(cfg))
    print_line(f"{title}: trained once more for its probes, with the same losses")
    scratch = inside(directory, FOLDER)
    _begin(scratch, cfg, request)
    again = _as_it_was(cfg, stored, scratch)
    source = Source(again)
    source.prepare()
    folder = run_directory(again)
    folder.mkdir(parents=True, exist_ok=True)
    if cfg.noise.theorem and not (folder / REFERENCE).exists():
        if not (directory / FINAL_WEIGHTS).exists():  # a first time, for the weights alone
            if train(again, source, request, None, job, gpu).ended in UNFINISHED:
                return
            (folder / FINAL_WEIGHTS).rename(directory / FINAL_WEIGHTS)
        shutil.copyfile(directory / FINAL_WEIGHTS, folder / REFERENCE)
    result = train(again, source, request, None, job, gpu)
    if result.ended in UNFINISHED:
        return
    repeated, record = store.read_run(folder), read_record(folder)
    assert record is not None
    record = replace(record, config_hash=config_hash(cfg), variant=cfg.names.variant)
    if (step := first_difference(stored.trajectory, repeated.trajectory)) is not None:
        reason = f"trained once more, the losses differ from step {step} on: another machine?"
        steps_run = len(stored.trajectory)  # not to be repeated again
        record = replace(record, **NOTHING, reason=reason, steps_run=steps_run)
    write_atomically(directory / FILE, record.to_json().encode())
    write_events(directory, record.probes)
    shutil.rmtree(scratch)
    (directory / FINAL_WEIGHTS).unlink(missing_ok=True)


def _begin(scratch: Path, cfg: RunConfig, request: Request) -> None:
    """Remove what is left of a repeat for other probes: it could not go on to these."""
    asked = {"settings": asdict(settings_of(cfg)), "threshold": request.threshold,
             "rule": request.rule.value, "window": request.window}  # fmt: skip
    text = json.dumps(asked).encode()
    with suppress(FileNotFoundError):
        if (scratch / ASKED).read_bytes() == text:
            return
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    write_atomically(scratch / ASKED, text)


def first_difference(one: Trajectory, other: Trajectory) -> int | None:
    """The first step, counted from 1, whose losses differ in any bit; None if none does, as far as
    both go."""
    steps = min(len(one), len(other))
    bits = [each.loss[:steps].astype("<f4").view(np.int32) for each in (one, other)]
    found = np.flatnonzero(bits[0] != bits[1])
    return int(found[0]) + 1 if len(found) else None


def _as_it_was(cfg: RunConfig, stored: Run, scratch: Path) -> RunConfig:
    """The configuration with the run's automatic choices, and without checkpoints or report."""
    slices = cfg.micro_batch_size
    return replace(
        cfg,
        output_dir=str(scratch),
        threads=stored.result.threads,
        micro_batch_size=stored.result.micro_batch_size if slices == AUTO else slices,
        checkpoint=replace(cfg.checkpoint, keep=False),
        logger={},
    )
