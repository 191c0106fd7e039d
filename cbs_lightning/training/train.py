"""Training: builds a model and a Trainer from a configuration, trains, and writes a result."""

import multiprocessing
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from cbs_lightning.callbacks import (
    ALONE,
    CheckOptimizer,
    Job,
    StepwiseCheckpoint,
    StopOnSignal,
)
from cbs_lightning.callbacks.job import Gpu
from cbs_lightning.config.extensions import ENDS
from cbs_lightning.config.identity import OWN, flatten, run_directory, run_title
from cbs_lightning.config.schema import AUTO, RunConfig, recorded
from cbs_lightning.console import print_line
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import compile_net, is_of_compiler, uncompiled
from cbs_lightning.models.out_of_memory import is_out_of_memory
from cbs_lightning.results import provenance, store
from cbs_lightning.results.checkpoints import Checkpoint
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, Status
from cbs_lightning.signals import held_back, signal_of
from cbs_lightning.training.build import build_model, rate_schedule, schedule_lines
from cbs_lightning.training.checks import RefuseCallbacks, is_missing_scheduler
from cbs_lightning.training.choices import Choices, choose
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.loops import loop_line, reasons_for_general_loop
from cbs_lightning.training.outcome import Outcome, blank_result, write_config
from cbs_lightning.training.probes import probes_of, weights_keeper
from cbs_lightning.training.resources.allocator import freed_memory_kept
from cbs_lightning.training.resources.memory import room_for_freed_blocks
from cbs_lightning.training.resources.operations import operations_of_step
from cbs_lightning.training.resume import checkpoint_to_resume
from cbs_lightning.training.source import Source
from cbs_lightning.training.trainer import Watchers, close_loggers, make_trainer, watchers
from cbs_lightning.training.warnings import print_warnings, warnings_after, warnings_before


def train(
    cfg: RunConfig,
    source: Source,
    request: Request,
    stored: Run | None,
    job: Job = ALONE,
    gpu: Gpu | None = None,
) -> Result:
    """Train to the threshold or to the end of the budget, in a directory that this process has
    locked.

    There is a result however it ends; that of an unfinished or abandoned run does not replace a
    `stored` one that knows more. A signal raises `Interrupted` after the run was saved.
    """
    directory = run_directory(cfg)
    source.setup()
    general = reasons_for_general_loop(cfg)
    _set_loop(source, cfg, stepwise=bool(general))
    checkpoint = checkpoint_to_resume(cfg, source, directory, stepwise=bool(general))
    operations = partial(operations_of_step, cfg, source)
    choices = choose(cfg, checkpoint, stored, job.sharing, operations)
    _prepare_process(cfg.seed, choices.threads)
    blank = blank_result(cfg, request, source, choices.threads)
    outcome = Outcome(directory, request, stored, blank, source.budget)
    signals = StopOnSignal(job)
    with _failures_recorded(cfg, outcome, signals):
        watch = watchers(
            cfg, request, blank, outcome.recorder, signals, directory,
            save_last=cfg.checkpoint.keep or source.has_test, stepwise=bool(general),
        )  # fmt: skip
        title = job.title(run_title(cfg))
        _print_start(cfg, source, job, checkpoint, stored)
        print_warnings(title, warnings_before(cfg, request, source.extent))
        ended = _train(cfg, source, choices, outcome, watch, checkpoint, gpu)
    with held_back():
        result = outcome.finish(ended)
        outcome.finish_probes()
    print_warnings(title, warnings_after(request, outcome.recorder.trajectory))
    outcome.tidy(keep_checkpoint=cfg.checkpoint.keep)
    if signals.received:
        raise Interrupted(result, signals.received)
    return result


def _prepare_process(seed: int, threads: int) -> None:
    # A worker of a parallel sweep has joblib's way of starting processes, in which a DataLoader
    # cannot start workers of its own.
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method(None, force=True)
    torch.set_num_threads(threads)
    L.seed_everything(seed, verbose=False)
    # Where algorithms are deterministic, torch fills all memory that it takes, lest it be read
    # before it is written. Nothing here does that, and it takes about 5 % of small steps.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _train(
    cfg: RunConfig,
    source: Source,
    choices: Choices,
    outcome: Outcome,
    watch: Watchers,
    checkpoint: Checkpoint | None,
    gpu: Gpu | None,
) -> Status:
    """Train; return why training ended. The outcome holds everything else."""
    job, directory = watch.signals.job, outcome.directory
    title = job.title(run_title(cfg))
    number = gpu.number if gpu is not None else None
    max_steps = outcome.request.max_steps
    assert max_steps is not None
    slices, rates = _slices(source), rate_schedule(cfg, source.extent.sized)
    more = _more_callbacks(cfg, outcome)
    probes = outcome.probes = probes_of(cfg, watch.stop, watch.signals, rates, directory, title)
    trainer = make_trainer(
        cfg, max_steps, directory, title, watch, rates, number, slices, more, probes,
        budget=source.budget,
    )  # fmt: skip
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # else the first GPU, or that of the run before, is used
    model, slice_size = build_model(cfg, source, choices.micro_batch_size, device, job.sharing)
    if isinstance(model, Classifier):
        model.automatic_optimization = isinstance(watch.checkpoint, StepwiseCheckpoint)
    if slices > 1 and not model.automatic_optimization:
        reason = "under manual optimization the module itself decides what a step is; allowed: null"
        raise ConfigError("micro_batch_size", slice_size, reason)
    on_cpu = device.type == "cpu"
    memory_kept = _memory_kept(model, source, job.sharing) if on_cpu else nullcontext()
    _compile(cfg, model, outcome)
    device_name = provenance.device_name(device)
    if checkpoint is not None:
        threads = choices.threads
        moved = provenance.machine_of_resumed(checkpoint.origin, checkpoint.steps, threads)
        outcome.add(machine=moved)
    outcome.add(
        micro_batch_size=slice_size,
        device=device_name if gpu is None else f"{device_name}, {gpu.title}",
        configuration=recorded(cfg, threads=choices.threads, micro_batch_size=slice_size),
    )
    write_config(directory, outcome.result)
    watch.checkpoint.origin = _origin(outcome.result, device_name)
    watch.checkpoint.later_origin = lambda: source.budget.origin
    for line in schedule_lines(cfg, source.extent, max_steps):
        print_line(f"{title}: {line}")
    with memory_kept:
        resume = checkpoint.path if checkpoint is not None else None
        trainer.fit(model, datamodule=source.datamodule, ckpt_path=resume, weights_only=True)
    ended = watch.stop.status or _why_ended(watch, trainer, max_steps)
    tested = source.has_test and isinstance(model, Classifier)
    if tested and ended in (Status.REACHED, Status.EXHAUSTED):
        outcome.add(test_accuracy_at_end=_test(cfg, trainer, model, source))
    close_loggers(trainer)
    return ended


def _why_ended(watch: Watchers, trainer: L.Trainer, max_steps: int) -> Status:
    if watch.signals.received:
        return Status.INTERRUPTED
    if trainer.global_step < max_steps:
        raise UserError(
            f"training stopped after {trainer.global_step} of {max_steps} steps: there was no "
            f"batch, or a callback or the module set trainer.should_stop, but {ENDS}"
        )
    return Status.EXHAUSTED


def _more_callbacks(cfg: RunConfig, outcome: Outcome) -> list[L.Callback]:
    own = cfg.names.optimizer == OWN
    check = CheckOptimizer((lambda found: outcome.add(**found._asdict())) if own else None)
    return [RefuseCallbacks(), check, *weights_keeper(cfg, outcome.directory)]


def _compile(cfg: RunConfig, model: L.LightningModule, outcome: Outcome) -> None:
    """Compile the net if that is asked for; compilation does not count as training time."""
    if cfg.compile is not None:
        assert isinstance(model, Classifier)
        deterministic = bool(cfg.trainer.get("deterministic"))
        took = outcome.recorder.leave_out
        compile_net(model, cfg.compile, deterministic=deterministic, took=took)


def _memory_kept(
    model: L.LightningModule, source: Source, sharing: int
) -> AbstractContextManager[None]:
    """Keep memory that steps free for the next ones, including large blocks if memory allows."""
    room, images = False, source.images
    if images is not None and isinstance(model, Classifier):
        batch_size = min(images.batch_size, images.train_size)
        with torch.random.fork_rng(devices=[]), suppress(Exception):  # a net not to be measured
            room = room_for_freed_blocks(model, images.image_shape, batch_size, sharing)
    return freed_memory_kept(large_blocks=room)


def _set_loop(source: Source, cfg: RunConfig, *, stepwise: bool) -> None:
    """Set how the images are handed over: in the way that the chosen loop needs."""
    if source.images is None or not stepwise:
        return
    slice_size = cfg.micro_batch_size
    if slice_size == AUTO:
        reason = "needs the fast loop; allowed here: null or a number"
        raise ConfigError("micro_batch_size", slice_size, reason)
    source.images.chunked, source.images.slice_size = False, slice_size


def _slices(source: Source) -> int:
    """The number of parts in which a batch is handed over."""
    if source.loader is not None:
        return source.loader.slices
    assert source.images is not None
    size, batch = source.images.slice_size, min(source.cfg.batch_size, source.extent.size)
    return 1 if source.images.chunked or size is None else -(-batch // min(size, batch))


def _origin(result: Result, device_name: str) -> dict[str, Any]:
    """What the losses were made with; a checkpoint records it."""
    return {
        "config_hash": result.config_hash,
        "threads": result.threads,
        "micro_batch_size": result.micro_batch_size,
        "device": device_name,
        "machine": result.machine,
        "processor": provenance.processor(),
        **result.versions,
    }


def _test(cfg: RunConfig, trainer: L.Trainer, model: L.LightningModule, source: Source) -> float:
    with uncompiled(cfg.compile):
        (tested,) = trainer.test(model, datamodule=source.datamodule, verbose=False)
    return tested["test_accuracy"]


@contextmanager
def _failures_recorded(cfg: RunConfig, outcome: Outcome, signals: StopOnSignal) -> Iterator[None]:
    """Record a failure in the result, and raise it as a message that says what to do."""
    try:
        yield
    except ConfigError:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning turns the first into the second
        result = outcome.finish_badly(Status.INTERRUPTED, error)
        raise Interrupted(result, signals.received or signal_of(error)) from error
    except Exception as error:
        outcome.finish_badly(Status.FAILED, error)
        if is_out_of_memory(error):
            advice = _memory_advice(cfg, signals.job)
            raise UserError(f"batch_size={cfg.batch_size}: {advice}") from error
        if isinstance(error, MisconfigurationException):
            raise UserError(" ".join(str(error).split())) from error
        if cfg.names.optimizer != OWN and is_missing_scheduler(error):
            reason = "replaces the module's scheduler too, which it steps itself"
            raise ConfigError(
                "optimizer", cfg.names.optimizer, f"{reason}; allowed: own"
            ) from error
        if cfg.compile is not None and is_of_compiler(error):
            where = outcome.directory / store.ERROR
            reason = f"the net cannot be compiled here, see {where}; allowed: null"
            raise ConfigError("compile", cfg.compile, reason) from error
        raise


def _print_start(
    cfg: RunConfig,
    source: Source,
    job: Job,
    checkpoint: Checkpoint | None,
    stored: Run | None,
) -> None:
    title = job.title(run_title(cfg))
    finished = stored is not None and stored.result.ended not in UNFINISHED
    why = "the stored losses end before an answer; " if finished else ""
    if checkpoint is not None:
        print_line(f"{title}: {why}resuming from {checkpoint.path}")
    elif finished:
        advice = "" if cfg.checkpoint.keep else " (checkpoint.keep=true keeps it)"
        print_line(f"{title}: {why}there is no checkpoint{advice}, so training starts again")
    if settings := _settings_in_words(cfg, source.extent.size):
        print_line(f"{title}: {settings}")
    if not job.in_sweep and (line := loop_line(cfg)):  # a sweep says it once
        print_line(f"{title}: {line}")
    if limits := source.limits_of_restart:
        print_line(f"{title}: {limits}")


def _settings_in_words(cfg: RunConfig, data_size: int) -> str:
    """The optimizer's settings if they differ from those given; otherwise nothing."""
    given, scaled = flatten(cfg.optimizer), flatten(cfg.optimizer_settings(data_size))
    rules = {
        "lr_scaling": cfg.lr_scaling,
        "scaling_rule": cfg.scaling_rule,
        "weight_decay_scaling": cfg.weight_decay_scaling,
    }
    set_rules = ", ".join(f"{key}={rule}" for key, rule in rules.items() if rule != "none")
    moved = [key for key in given if scaled[key] != given[key]]
    words = []
    if set_rules:
        here, there = (
            ", ".join(f"{_said(key)} {_number(settings[key])}" for key in moved)
            for settings in (scaled, given)
        )
        words.append(f"{here or 'settings as given'} by {set_rules}")
        words += [f"at b = {cfg.lr_reference_batch_size} {there}"] if there else []
    if cfg.warmup_samples:
        words.append(f"linear warm-up over {cfg.warmup_samples:,} samples")
    return "; ".join(words)


def _said(key: str) -> str:
    group, _, name = key.rpartition(".")
    words = "learning rate" if name == "lr" else name.replace("_", " ")
    return f"{words} of {group}" if group else words


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"{value:g}"


def _memory_advice(cfg: RunConfig, job: Job) -> str:
    """What a user can still do if memory is short."""
    automatic = cfg.micro_batch_size is None
    slices = "micro_batch_size=auto" if automatic else "a smaller number as micro_batch_size"
    ways = [f"set {slices} (with BatchNorm that changes the losses)"]
    if not cfg.activation_checkpointing and cfg.compile is None:
        ways.append("set activation_checkpointing=true (that does not)")
    if job.sharing > 1:
        ways.append("run fewer jobs at a time (jobs=1)")
    return f"out of memory; {', or '.join(ways)}"
