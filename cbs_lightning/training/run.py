"""One run: its request is answered from what is stored, else by training."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from cbs_lightning.config.checks import check
from cbs_lightning.config.compose import config_hash
from cbs_lightning.console import duration, say
from cbs_lightning.data import ImageDataModule
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.files import remove_scratch, set_aside
from cbs_lightning.results import store
from cbs_lightning.results.locks import BusyError, locked
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, Status, answer, describe
from cbs_lightning.results.sfo_limit import most_sfo_of
from cbs_lightning.results.store import DamagedError, publish
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.sweep.gpus import own_gpu
from cbs_lightning.sweep.live.board import Phase, board_of, tell
from cbs_lightning.sweep.live.time_left import sweep_left
from cbs_lightning.training.build import check_model
from cbs_lightning.training.train import step_budget, train


def run(cfg: DictConfig) -> Result:
    """Answer the configuration's request.

    Raises what `check_run` and `train` raise, and `BusyError` where another process works on the
    run and the configuration does not wait for it.
    """
    data = check_run(cfg)
    directory, title = run_directory(cfg), run_title(cfg)
    with output_errors(Path(cfg.output_dir)):
        if (known := known_already(cfg)) is not None:
            return known
        if _stored_run(cfg, directory) is None:
            data.setup("fit")
            check_model(cfg, data)
        directory.mkdir(parents=True, exist_ok=True)
        stop_file = Path(cfg.sweep.stop_file) if cfg.sweep.stop_file else None
        with locked(directory, title, wait=cfg.sweep.wait, stop_file=stop_file):
            remove_scratch(directory)
            return _answer(cfg, data, directory, title)


def known_already(cfg: DictConfig) -> Result | None:
    """The stored result, where it answers this very request."""
    directory = run_directory(cfg)
    stored = _stored_run(cfg, directory)
    if stored is None or answer_from_store(cfg, stored) != stored.result:
        return None
    return _told_as_known(cfg, directory, stored.result)


def stored_run(cfg: DictConfig) -> Run | None:
    """The run as it is stored; None also where that is damaged, of which the run itself tells."""
    with suppress(UserError, OSError):
        return _stored_run(cfg, run_directory(cfg))
    return None


def publish_answer(cfg: DictConfig) -> None:
    """Store what the stored losses say to the request, unless another process works on the run."""
    directory = run_directory(cfg)
    with (
        suppress(BusyError),
        output_errors(Path(cfg.output_dir)),
        locked(directory, run_title(cfg), wait=False),
    ):
        stored = _stored_run(cfg, directory)
        known = answer_from_store(cfg, stored) if stored is not None else None
        if stored is not None and known is not None and known != stored.result:
            publish(directory, known)


def _answer(cfg: DictConfig, data: ImageDataModule, directory: Path, title: str) -> Result:
    """Answer the request in a directory that is this process's."""
    stored = _stored_run(cfg, directory, recover=True)
    known = answer_from_store(cfg, stored) if stored is not None else None
    if known is not None:
        publish(directory, known)
        return _told_as_known(cfg, directory, known)
    with own_gpu(cfg) as gpu:
        result = train(cfg, data, directory, title, stored, gpu)
    _tell_end(cfg, result)
    say(f"{title}: {describe(result)}{_where_or_how_long(cfg, directory)}")
    return result


def check_run(cfg: DictConfig) -> ImageDataModule:
    """Raise `UserError` unless the run can start; writes nothing but downloaded data."""
    check(cfg)
    return find_data(cfg)


def find_data(cfg: DictConfig) -> ImageDataModule:
    """The data of a configuration that was checked, downloaded where need be."""
    data: ImageDataModule = instantiate(
        cfg.data, data_dir=cfg.data_dir, batch_size=cfg.batch_size, seed=cfg.seed
    )
    data.prepare_data()
    return data


def run_directory(cfg: DictConfig) -> Path:
    return store.run_directory(
        Path(cfg.output_dir),
        cfg.study,
        cfg.names.variant,
        cfg.batch_size,
        cfg.seed,
        config_hash(cfg),
    )


def run_title(cfg: DictConfig) -> str:
    number = f"[{cfg.sweep.job}/{cfg.sweep.jobs}] " if cfg.sweep.jobs else ""
    seed = f" seed={cfg.seed}" if cfg.seed else ""
    return f"{number}{cfg.names.variant} b={cfg.batch_size}{seed}"


def answer_from_store(cfg: DictConfig, stored: Run) -> Result | None:
    """The request's answer where the stored losses hold it, else None.

    A run that was cut off where this request would have ended it goes on, to end in good order.
    One that cost more than a search allows is given up, whatever it ended by.
    """
    steps_per_epoch = stored.result.steps_per_epoch
    request = Request(
        cfg.stop.loss,
        RuleName(cfg.stop.rule),
        cfg.stop.window or stored.result.data_size,
        step_budget(cfg.stop, steps_per_epoch),
    )
    result = answer(stored.result, stored.trajectory, request)
    if result.status not in (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED):
        most_sfo = most_sfo_of(cfg)
        bound = most_sfo.read() if most_sfo is not None else None
        if bound is None or len(stored.trajectory) * result.effective_batch_size <= bound:
            return None
        return replace(result, status=Status.ABANDONED, ended=Status.ABANDONED)
    if stored.result.ended in UNFINISHED:
        end = request.max_steps or 0
        if result.steps is not None:  # noticed at the end of the epoch
            end = min(end, -(-result.steps // steps_per_epoch) * steps_per_epoch)
        if end >= len(stored.trajectory):
            return None
    return result


def _stored_run(cfg: DictConfig, directory: Path, *, recover: bool = False) -> Run | None:
    """The run as it is stored; to recover is to set a damaged file aside."""
    try:
        stored = store.read_run(directory)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        if recover:
            aside = set_aside(error.path)
            what = f"damaged ({error.reason}), kept as {aside.name}"
            say(f"{error.path}: {what}; the run is made again")
        return None
    if stored.result.config_hash != config_hash(cfg):
        raise UserError(f"{directory}: holds a run of another configuration; move it away")
    return stored


def _told_as_known(cfg: DictConfig, directory: Path, result: Result) -> Result:
    _tell_end(cfg, result, known=True)
    where = f"; {directory}" if not cfg.sweep.jobs else ""
    say(f"{run_title(cfg)}: {describe(result)}, known already{where}")
    return result


def _tell_end(cfg: DictConfig, result: Result, *, known: bool = False) -> None:
    tell(
        cfg,
        phase=Phase.FINISHED,
        status=result.status,
        known=known,
        steps=result.steps_answered,
        steps_per_epoch=result.steps_per_epoch,
        loss=result.loss,
    )


def _where_or_how_long(cfg: DictConfig, directory: Path) -> str:
    """A run of its own tells where it is; one of a sweep, how long that takes, if no table does."""
    if not cfg.sweep.jobs:
        return f"; {directory}"
    board = board_of(cfg)
    if board is not None and board.live:
        return ""
    so_far = f"; {cfg.sweep.part} {duration(time.time() - cfg.sweep.started)} so far"
    left = sweep_left(cfg)
    return f"{so_far}, {left}" if left else so_far
