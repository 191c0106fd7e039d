"""The probes of a run: whether they still have to be made, and the file they write."""

from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L

from cbs_lightning.callbacks.log_noise import write_events
from cbs_lightning.callbacks.probes.make_probe import ProbeMaker
from cbs_lightning.callbacks.probes.measure_noise import MeasureNoise
from cbs_lightning.callbacks.probes.measurement import ProbeSettings
from cbs_lightning.callbacks.probes.theorem import (
    FINAL_WEIGHTS,
    REFERENCE,
    KeepFinalWeights,
    MeasureTheorem,
)
from cbs_lightning.callbacks.stop_at_threshold import StopAtThreshold
from cbs_lightning.callbacks.stop_on_signal import StopOnSignal
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.files import write_atomically
from cbs_lightning.noise.branches import schedule_line, suggest_schedule
from cbs_lightning.noise.prediction import (
    at_threshold,
    cost_line,
    prediction_line,
    with_prediction,
)
from cbs_lightning.noise.record import FILE, NoiseRecord
from cbs_lightning.noise.theorem import theorem_lines, theorem_of
from cbs_lightning.optim.learning_rate import RateSchedule
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, answer


def probes_of(
    cfg: RunConfig,
    stop: StopAtThreshold,
    signals: StopOnSignal,
    rates: RateSchedule,
    directory: Path,
    title: str,
) -> MeasureNoise | None:
    """The callback that measures, if probes are asked for.

    The theorem is about the final weights; as long as they are not known, nothing is measured.
    """
    reference = directory / REFERENCE
    if not cfg.noise.probes or (cfg.noise.theorem and not reference.exists()):
        return None
    note, stops = partial(_note, title), signals.is_asked
    theorem = MeasureTheorem(reference) if cfg.noise.theorem else None
    maker = ProbeMaker(settings_of(cfg), rates, cfg.seed, cfg.compile, note, theorem, stops)
    return MeasureNoise(maker, stop, directory, stops)


def weights_keeper(cfg: RunConfig, directory: Path) -> list[L.Callback]:
    """For the theorem: a callback that keeps the final weights of a run, which is then trained
    again."""
    known = not cfg.noise.theorem or (directory / REFERENCE).exists()
    return [] if known else [KeepFinalWeights(directory / FINAL_WEIGHTS)]


def _note(title: str, text: str) -> None:
    print_line(f"{title}: {text}")


def read_record(directory: Path) -> NoiseRecord | None:
    """The stored probes; None also if the file is damaged, in which case they are made again."""
    with suppress(OSError, ValueError):
        return NoiseRecord.from_json((directory / FILE).read_bytes())
    return None


def are_missing(cfg: RunConfig, stored: Run, request: Request) -> bool:
    """Whether probes are asked for that the run does not have yet.

    Those on the way to a lower threshold tell of this one too. Where some could not be made, they
    may be now, if the run has gone on since then.
    """
    if not cfg.noise.probes:
        return False
    record = read_record(stored.directory)
    if record is None or record.threshold > request.threshold:
        return True
    if record.shortfall is not None and _steps_now(stored, request) > _steps_then(record):
        return True
    return not settings_of(cfg).are_met_by(record.settings)


def _steps_now(stored: Run, request: Request) -> int:
    """As far as the run is trained again for its probes."""
    found = answer(stored.result, stored.trajectory, request)
    if found.steps is not None:
        return found.steps
    return min(len(stored.trajectory), request.max_steps or len(stored.trajectory))


def _steps_then(record: NoiseRecord) -> float:
    if record.steps_run is not None:
        return record.steps_run
    return sum(each.steps for each in record.probes)  # of a file of an earlier version


def settings_of(cfg: RunConfig) -> ProbeSettings:
    return ProbeSettings(**asdict(cfg.noise))


def write_record(directory: Path, measured: MeasureNoise, result: Result) -> NoiseRecord | None:
    """Write `noise.json`; None for a run that will resume later, that began without probes, or that
    was told to stop in a probe of its last steps: those are still to be made."""
    if result.ended in UNFINISHED or measured.is_late or measured.has_deferred:
        return None
    record = with_prediction(measured.record(result))
    steps = result.steps or result.steps_run
    schedule = suggest_schedule(record.probes, result.effective_batch_size, steps)
    record = replace(record, schedule=schedule, theorem=_theorem(record, measured, result))
    write_atomically(directory / FILE, record.to_json().encode())
    if record.probes:
        write_events(directory, record.probes)
    return record


def _theorem(record: NoiseRecord, measured: MeasureNoise, result: Result) -> dict[str, Any] | None:
    found = measured.maker.theorem
    if found is None:
        return None
    assert result.lr is not None
    return theorem_of(
        result.optimizer, result.lr, result.hyperparameters, result.effective_batch_size,
        record.probes, found.suprema, found.inner,
    )  # fmt: skip


def summary_lines(directory: Path, threshold: float) -> list[str]:
    """Lines for the end of a run to this threshold."""
    record = read_record(directory)
    if record is None:
        return []
    lines = [prediction_line(at_threshold(record, threshold))]
    if record.probes:
        lines.append(cost_line(record))
    if record.shortfall is not None:
        lines.append(record.shortfall)
    whole = []  # what is of the run as a whole
    if (suggested := schedule_line(record.schedule, record.probes)) is not None:
        whole.append(suggested)
    if record.theorem is not None:
        whole += theorem_lines(record.theorem)
    return lines + [line + record.own_threshold(threshold) for line in whole]
