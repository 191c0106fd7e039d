"""Training: a configuration becomes a model and a trainer, and leaves a result."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import lightning as L
import torch
from omegaconf import OmegaConf

from cbs_lightning.callbacks import ALONE, Job, StopOnSignal
from cbs_lightning.callbacks.job import Gpu
from cbs_lightning.config.identity import run_directory, run_title
from cbs_lightning.config.schema import RunConfig, recorded
from cbs_lightning.console import print_line
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import ConfigError, UserError
from cbs_lightning.files import write_atomically
from cbs_lightning.models import Classifier
from cbs_lightning.models.compilation import compile_net, is_of_compiler, uncompiled
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results import provenance, store
from cbs_lightning.results.checkpoints import Checkpoint
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, Status
from cbs_lightning.signals import held_back, signal_of
from cbs_lightning.training.allocator import freed_memory_kept
from cbs_lightning.training.build import build_model, learning_rate
from cbs_lightning.training.choices import Choices, choose
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.memory import is_out_of_memory
from cbs_lightning.training.operations import operations_of_step
from cbs_lightning.training.outcome import Outcome, blank_result
from cbs_lightning.training.resume import checkpoint_to_resume
from cbs_lightning.training.trainer import Watchers, make_trainer, watchers


def train(
    cfg: RunConfig,
    data: ImageDataModule,
    request: Request,
    stored: Run | None,
    job: Job = ALONE,
    gpu: Gpu | None = None,
) -> Result:
    """Train to the threshold or to the end of the budget, in a directory that is this process's.

    However it ends there is a result; one of an unfinished or abandoned run does not replace a
    `stored` one that knows more. A signal ends in `Interrupted`, after the run was saved.
    """
    directory = run_directory(cfg)
    data.setup("fit")
    checkpoint = checkpoint_to_resume(cfg, data, directory)
    operations = partial(operations_of_step, cfg, data)
    choices = choose(cfg, checkpoint, stored, job.sharing, operations)
    _prepare_process(cfg.seed, choices.threads)
    blank = blank_result(cfg, request, data.train_size, choices.threads)
    outcome = Outcome(directory, request, stored, blank)
    signals = StopOnSignal(job)
    with _failures_recorded(cfg, outcome, signals):
        watch = watchers(
            cfg, request, blank, outcome.recorder, signals, directory,
            save_last=cfg.checkpoint.keep or data.split.test is not None,
        )  # fmt: skip
        ended = _train(cfg, data, choices, outcome, watch, checkpoint, gpu)
    with held_back():
        result = outcome.finish(ended)
    outcome.tidy(keep_checkpoint=cfg.checkpoint.keep)
    if signals.received:
        raise Interrupted(result, signals.received)
    return result


def _prepare_process(seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    L.seed_everything(seed, verbose=False)
    # Where algorithms are deterministic, torch fills all memory that it takes, lest it be read
    # before it is written. Nothing here does that, and it takes about 5 % of small steps.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _train(
    cfg: RunConfig,
    data: ImageDataModule,
    choices: Choices,
    outcome: Outcome,
    watch: Watchers,
    checkpoint: Checkpoint | None,
    gpu: Gpu | None,
) -> Status:
    """Why training ended; the outcome has what else was found."""
    job, directory = watch.signals.job, outcome.directory
    title = job.title(run_title(cfg))
    number = gpu.number if gpu is not None else None
    max_steps = outcome.request.max_steps
    assert max_steps is not None
    trainer = make_trainer(cfg, max_steps, directory, title, watch, number)
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # else the first GPU, or that of the run before, is used
    model = build_model(cfg, data, choices.micro_batch_size, device, job.sharing)
    if cfg.compile is not None:
        deterministic = bool(cfg.trainer.get("deterministic"))
        took = outcome.recorder.leave_out
        compile_net(model, cfg.compile, deterministic=deterministic, took=took)
    device_name = provenance.device_name(device)
    outcome.add(
        micro_batch_size=model.micro_batch_size,
        device=device_name if gpu is None else f"{device_name}, {gpu.title}",
        configuration=recorded(
            cfg, threads=choices.threads, micro_batch_size=model.micro_batch_size
        ),
    )
    text = OmegaConf.to_yaml(OmegaConf.create(outcome.result.configuration))
    write_atomically(directory / store.CONFIG, text.encode())
    watch.checkpoint.origin = _origin(outcome.result, device_name)
    _print_start(cfg, data, title, checkpoint, outcome.stored)
    with freed_memory_kept() if device.type == "cpu" else nullcontext():
        resume = checkpoint.path if checkpoint is not None else None
        trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
    ended = watch.stop.status or (
        Status.INTERRUPTED if watch.signals.received else Status.EXHAUSTED
    )
    if ended in (Status.REACHED, Status.EXHAUSTED) and data.split.test is not None:
        outcome.add(test_accuracy=_test(cfg, trainer, model, data))
    return ended


def _origin(result: Result, device_name: str) -> dict[str, Any]:
    """What the losses are made with: a checkpoint keeps it."""
    return {
        "config_hash": result.config_hash,
        "threads": result.threads,
        "micro_batch_size": result.micro_batch_size,
        "device": device_name,
        **result.versions,
    }


def _test(cfg: RunConfig, trainer: L.Trainer, model: Classifier, data: ImageDataModule) -> float:
    with uncompiled(cfg.compile):
        (tested,) = trainer.test(model, datamodule=data, verbose=False)
    return tested["test_accuracy"]


@contextmanager
def _failures_recorded(cfg: RunConfig, outcome: Outcome, signals: StopOnSignal) -> Iterator[None]:
    """What goes wrong inside leaves a result, and is raised as what a user can do about it."""
    try:
        yield
    except ConfigError:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning turns the first into the second
        result = outcome.finish_badly(Status.INTERRUPTED)
        raise Interrupted(result, signals.received or signal_of(error)) from error
    except Exception as error:
        outcome.finish_badly(Status.FAILED)
        if is_out_of_memory(error):
            advice = _memory_advice(cfg, signals.job)
            raise UserError(f"batch_size={cfg.batch_size}: {advice}") from error
        if cfg.compile is not None and is_of_compiler(error):
            where = outcome.directory / store.ERROR
            reason = f"the net cannot be compiled here, see {where}; allowed: null"
            raise ConfigError("compile", cfg.compile, reason) from error
        raise


def _print_start(
    cfg: RunConfig,
    data: ImageDataModule,
    title: str,
    checkpoint: Checkpoint | None,
    stored: Run | None,
) -> None:
    finished = stored is not None and stored.result.ended not in UNFINISHED
    why = "the stored losses end too soon to tell; " if finished else ""
    if checkpoint is not None:
        print_line(f"{title}: {why}goes on from {checkpoint.path}")
    elif finished:
        advice = "" if cfg.checkpoint.keep else " (checkpoint.keep=true keeps it)"
        print_line(f"{title}: {why}there is no checkpoint{advice}, so it is trained anew")
    if rate := _rate_in_words(cfg, data.train_size):
        print_line(f"{title}: {rate}")


def _rate_in_words(cfg: RunConfig, data_size: int) -> str:
    """The learning rate where it is not simply the optimizer's, else nothing."""
    words = []
    if cfg.lr_scaling is not Scaling.NONE:
        given = f"{cfg.optimizer['lr']:g} at b = {cfg.lr_reference_batch_size}"
        lr = learning_rate(cfg, data_size)
        words.append(f"learning rate {lr:g} by lr_scaling={cfg.lr_scaling}, {given}")
    if cfg.warmup_samples:
        words.append(f"learning rate rises over {cfg.warmup_samples:,} samples")
    return "; ".join(words)


def _memory_advice(cfg: RunConfig, job: Job) -> str:
    """What a user can still do about a want of memory."""
    automatic = cfg.micro_batch_size is None
    slices = "micro_batch_size=auto" if automatic else "a smaller number as micro_batch_size"
    ways = [f"set {slices} (with BatchNorm that changes the losses)"]
    if not cfg.activation_checkpointing and cfg.compile is None:
        ways.append("set activation_checkpointing=true (that does not)")
    if job.sharing > 1:
        ways.append("run fewer jobs at a time (jobs=1)")
    return f"out of memory; {', or '.join(ways)}"
