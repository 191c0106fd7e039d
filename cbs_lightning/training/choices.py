"""Automatic choices: made once for a run, stored, and kept when it goes on."""

from collections.abc import Callable

from omegaconf import DictConfig

from cbs_lightning.config.schema import AUTO
from cbs_lightning.results.checkpoints import Checkpoint
from cbs_lightning.results.result import Run
from cbs_lightning.training.threads import fair_share, useful


def resolve(
    cfg: DictConfig,
    checkpoint: Checkpoint | None,
    stored: Run | None,
    operations_of_step: Callable[[], float],
) -> None:
    """Set the threads, and `micro_batch_size: auto` where the run has made its first steps.

    Sums depend on both, so a run goes on with what its losses so far were made with.
    """
    threads: int | None = None
    slice_size: int | str | None = AUTO
    if checkpoint is not None:
        threads, slice_size = (checkpoint.origin[key] for key in ("threads", "micro_batch_size"))
    elif stored is not None and stored.result.steps_run:
        threads, slice_size = stored.result.threads, stored.result.micro_batch_size
    if cfg.threads is None:
        share = fair_share(at_a_time_here(cfg.sweep))
        cfg.threads = threads or (useful(share, operations_of_step()) if share > 1 else 1)
    if cfg.micro_batch_size == AUTO:
        cfg.micro_batch_size = slice_size


def at_a_time_here(sweep: DictConfig) -> int:
    """How many of a sweep's jobs share a machine's cores and memory."""
    return 1 if sweep.elsewhere else sweep.workers or 1
