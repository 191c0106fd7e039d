"""Automatic choices, made once per run, stored, and kept when it resumes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.results.checkpoints import Checkpoint
from cbs_lightning.results.result import Run
from cbs_lightning.training.resources.threads import fair_share, useful


@dataclass(frozen=True)
class Choices:
    """What a run uses where its configuration leaves the choice open."""

    threads: int
    micro_batch_size: int | Literal["auto"] | None  # auto: for the model to choose


def choose(
    cfg: RunConfig,
    checkpoint: Checkpoint | None,
    stored: Run | None,
    sharing: int,
    operations_of_step: Callable[[], float],
) -> Choices:
    """The number of threads, and the slice that `micro_batch_size: auto` chose at the start of the
    run.

    Both change the rounding of sums, so a resumed run keeps what its losses were made with.
    `sharing` runs at a time share this machine's cores.
    """
    threads: int | None = None
    slice_size: int | Literal["auto"] | None = AUTO
    if checkpoint is not None:
        threads, slice_size = (checkpoint.origin[key] for key in ("threads", "micro_batch_size"))
    elif stored is not None and stored.result.steps_run:
        threads, slice_size = stored.result.threads, stored.result.micro_batch_size
    if cfg.threads is not None:
        threads = cfg.threads
    elif not threads:
        share = fair_share(sharing)
        threads = useful(share, operations_of_step()) if share > 1 else 1
    return Choices(threads, slice_size if cfg.micro_batch_size == AUTO else cfg.micro_batch_size)
