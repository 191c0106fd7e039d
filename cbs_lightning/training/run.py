"""One run: answered from its stored losses if possible, otherwise by training."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cbs_lightning.callbacks import ALONE, Job
from cbs_lightning.config.checks import check, device_type
from cbs_lightning.config.identity import config_hash, run_directory, run_title
from cbs_lightning.config.plain_checks import EPOCHS, SAMPLES
from cbs_lightning.config.same_computation import computation_hash, runs_of_same_computation
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import print_line
from cbs_lightning.errors import ConfigError, UserError, output_errors
from cbs_lightning.files import LinkError, remove_scratch, set_aside
from cbs_lightning.results import store
from cbs_lightning.results.locks import BusyError, locked
from cbs_lightning.results.result import (
    UNFINISHED,
    Request,
    Result,
    Run,
    Status,
    answer,
    describe,
)
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.training.budgeted_trainer import Budget
from cbs_lightning.training.build import check_model
from cbs_lightning.training.loops import is_classifier
from cbs_lightning.training.outcome import as_own, fill_from
from cbs_lightning.training.probes import are_missing, summary_lines
from cbs_lightning.training.repeat_for_probes import repeat_for_probes
from cbs_lightning.training.source import Extent, Source
from cbs_lightning.training.train import train
from cbs_lightning.training.warnings import print_warnings, warnings_after, warnings_before


def run(cfg: RunConfig, job: Job = ALONE) -> Result:
    """Train to the threshold, or answer from the stored losses of an earlier run.

    Args:
        cfg: the configuration, from `compose`.
        job: the sweep's side of the run; a run on its own needs none.

    Returns:
        The result, which is also written to the run's directory.

    Raises:
        UserError: something that you can fix, such as a wrong setting or a full disk.
        Interrupted: a signal arrived. The run was saved, and the same call resumes it.
        BusyError: another process is working on the run, and the job does not wait for it.

    Example:
        >>> import tempfile
        >>> from cbs_lightning import compose, run
        >>> outputs = tempfile.mkdtemp()
        >>> cfg = compose(["batch_size=32", "stop.max_steps=2", f"output_dir={outputs}"])
        >>> run(cfg).steps_run  # doctest: +ELLIPSIS
        adam b=32: budget used up after 2 steps, ...
        2
    """
    source = check_run(cfg)
    directory = run_directory(cfg)
    with output_errors(Path(cfg.output_dir)):
        stored = _read_stored(cfg)
        if stored is None:
            source.setup()
            check_model(cfg, source)
        request = request_for(cfg, source.extent if stored is None else Extent.of(stored.result))
        answered = stored is not None and _is_answer(stored, request, job.sfo_limit)
        if stored is not None and answered and not are_missing(cfg, stored, request):
            return _finished_already(cfg, request, stored, job)
        directory.mkdir(parents=True, exist_ok=True)
        title = job.title(run_title(cfg))
        with locked(directory, title, wait=job.waits, gives_up=job.stop_requested):
            remove_scratch(directory)
            return _answer(cfg, source, request, job)


def _answer(cfg: RunConfig, source: Source, request: Request, job: Job) -> Result:
    """Answer the request, in a directory that this process has locked."""
    directory = run_directory(cfg)
    stored = _read_stored(cfg, recover=True)
    known = answer_from_store(stored, request, job.sfo_limit) if stored is not None else None
    if stored is not None and known is not None:
        store.publish(directory, known)
        _make_probes(cfg, request, job)
        anew = known != stored.result
        return _finished_already(cfg, request, replace(stored, result=known), job, anew=anew)
    if (copied := _copy_losses(cfg, source, request, stored, job)) is not None:
        return copied
    with job.gpu(device_type(cfg.trainer["accelerator"])) as gpu:
        result = train(cfg, source, request, stored, job, gpu)
    _make_probes(cfg, request, job)
    job.finished(result)
    where = job.times() if job.in_sweep else f"; {directory}"
    print_line(f"{job.title(run_title(cfg))}: {describe(result)}{where}")
    _print_prediction(cfg, job)
    return result


def _make_probes(cfg: RunConfig, request: Request, job: Job) -> None:
    """Make the probes that a finished run lacks, by training it once more."""
    if not cfg.noise.probes:
        return
    stored = store.read_run(run_directory(cfg))
    if stored.result.ended not in UNFINISHED and are_missing(cfg, stored, request):
        with job.gpu(device_type(cfg.trainer["accelerator"])) as gpu:
            repeat_for_probes(cfg, request, stored, job, gpu)


def _print_prediction(cfg: RunConfig, job: Job) -> None:
    for line in summary_lines(run_directory(cfg), cfg.stop.loss) if cfg.noise.probes else ():
        print_line(f"{job.title(run_title(cfg))}: {line}")


def _copy_losses(
    cfg: RunConfig, source: Source, request: Request, stored: Run | None, job: Job
) -> Result | None:
    """Copy the answer from a run of the same computation, if there is one."""
    if _wants_more_than_losses(cfg):
        return None
    source.setup()
    for other in runs_of_same_computation(cfg, source.largest_batch):
        if not source.budget.allows(other.result):
            continue
        own = as_own(cfg, source, request, other)
        found = answer_from_store(own, request, job.sfo_limit)
        if found is None or (stored and len(stored.trajectory) > len(own.trajectory)):
            continue
        fill_from(other.directory, replace(own, result=found))
        job.finished(found, already=True)
        where = f"copied from {other.directory.name}, the same computation"
        print_line(f"{job.title(run_title(cfg))}: {describe(found)}; {where}")
        return found
    return None


def _wants_more_than_losses(cfg: RunConfig) -> bool:
    """Whether training does or writes something that cannot be copied."""
    profiler = cfg.trainer.get("profiler")
    measured = cfg.noise.probes
    return bool(cfg.checkpoint.keep or cfg.callbacks or cfg.logger or profiler or measured)


def computation(cfg: RunConfig) -> str | None:
    """What runs of the same computation have in common; None if this one cannot be copied."""
    if _wants_more_than_losses(cfg):
        return None
    if not is_classifier(cfg):
        return computation_hash(cfg, None)  # without a stranger's data, which may take long to read
    source = find_data(cfg)
    source.setup()
    return computation_hash(cfg, source.largest_batch)


def known_already(cfg: RunConfig, job: Job = ALONE, *, quiet: bool = False) -> Result | None:
    """The stored result if it answers this very request; prints a line unless `quiet`."""
    stored = _read_stored(cfg)
    if stored is None:
        return None
    request = request_for(cfg, Extent.of(stored.result))
    if not _is_answer(stored, request, job.sfo_limit):
        return None
    if are_missing(cfg, stored, request):
        return None
    return stored.result if quiet else _finished_already(cfg, request, stored, job)


def stored_run(cfg: RunConfig) -> Run | None:
    """The stored run; None also if it is damaged, which the run itself will report."""
    with suppress(UserError, OSError):
        return _read_stored(cfg)
    return None


def publish_answer(cfg: RunConfig, sfo_limit: SfoLimit | None) -> None:
    """Store the answer that the stored losses give to the request.

    Does nothing if another process has locked the run, or if its directory is a link.
    """
    directory = run_directory(cfg)
    with (
        suppress(BusyError, LinkError),
        output_errors(Path(cfg.output_dir)),
        locked(directory, run_title(cfg), wait=False),
    ):
        stored = _read_stored(cfg)
        if stored is not None:
            request = request_for(cfg, Extent.of(stored.result))
            known = answer_from_store(stored, request, sfo_limit)
            if known is not None and known != stored.result:
                store.publish(directory, known)


def check_run(cfg: RunConfig) -> Source:
    """Raise `UserError` unless the run can start; writes nothing except downloaded data."""
    check(cfg)
    return find_data(cfg)


def find_data(cfg: RunConfig) -> Source:
    """The data of a checked configuration, downloaded if necessary."""
    source = Source(cfg)
    source.prepare()
    return source


def request_for(cfg: RunConfig, extent: Extent) -> Request:
    """What the configuration asks of a run on this much data."""
    stop = cfg.stop
    if extent.is_stream:
        _check_stream(cfg)
    epochs = None
    if stop.max_epochs is not None and not extent.is_stream:
        epochs = stop.max_epochs * extent.steps_per_epoch
    budget = min(steps for steps in (epochs, stop.max_steps) if steps is not None)
    return Request(stop.loss, stop.rule, stop.window or extent.size, budget)


def _check_stream(cfg: RunConfig) -> None:
    """Refuse what counts in epochs if the data has no length."""
    stop, why = cfg.stop, f"{cfg.names.data} is a stream without a length"
    if stop.rule is RuleName.EPOCH:
        raise ConfigError("stop.rule", stop.rule, f"{why}; allowed: window, middle")
    if stop.window is None:
        raise ConfigError("stop.window", None, f"{why}; a number of samples is needed")
    if stop.max_steps is None:
        raise ConfigError("stop.max_steps", None, f"{why}; a number of steps is needed")
    if (epochs := cfg.scheduler.get(EPOCHS)) is not None:
        raise ConfigError(f"scheduler.{EPOCHS}", epochs, f"{why}; set scheduler.{SAMPLES}")


def answer_from_store(stored: Run, request: Request, sfo_limit: SfoLimit | None) -> Result | None:
    """The answer to the request if the stored losses contain it, otherwise None.

    A run that was cut off just where this request would have ended it is resumed, so that it ends
    properly. One that cost more than a search allows is abandoned, whatever ended it.
    """
    result = answer(stored.result, stored.trajectory, request)
    if result.status not in (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED):
        return sfo_limit.abandoned(result) if sfo_limit is not None else None
    if stored.result.ended in UNFINISHED:
        end = request.max_steps or 0
        if result.steps is not None:
            end = min(end, result.steps + result.steps_ahead)
        if end >= len(stored.trajectory):
            return None
    return result


def _is_answer(stored: Run, request: Request, sfo_limit: SfoLimit | None) -> bool:
    return answer_from_store(stored, request, sfo_limit) == stored.result


def _read_stored(cfg: RunConfig, *, recover: bool = False) -> Run | None:
    """The stored run; with `recover`, a damaged file is set aside.

    None also if its losses are those of another budget.
    """
    directory = run_directory(cfg)
    try:
        stored = store.read_run(directory)
    except FileNotFoundError:
        return None
    except store.DamagedError as error:
        if recover:
            aside = set_aside(error.path)
            what = f"damaged ({error.reason}), kept as {aside.name}"
            print_line(f"{error.path}: {what}; the run starts again")
        return None
    if stored.result.config_hash != config_hash(cfg):
        raise UserError(f"{directory}: holds a run of another configuration; move it away")
    if not Budget.of(cfg).allows(stored.result):
        if recover:
            of = f"its module reads the budget, which was {stored.result.budget}"
            print_line(f"{run_title(cfg)}: {of}; training starts again")
        return None
    return stored


def _finished_already(
    cfg: RunConfig, request: Request, found: Run, job: Job, *, anew: bool = False
) -> Result:
    """Report a result without training; `anew`: it was read off the stored losses just now."""
    result, title = found.result, job.title(run_title(cfg))
    job.finished(result, already=True)
    where = "" if job.in_sweep else f"; {run_directory(cfg)}"
    cut_off = result.ended in UNFINISHED
    how = "answered from the stored losses" if anew or cut_off else "already finished"
    print_line(f"{title}: {describe(result)}, {how}{where}")
    print_warnings(title, warnings_before(cfg, request, Extent.of(result)))
    print_warnings(title, warnings_after(request, found.trajectory))
    _print_prediction(cfg, job)
    return result
