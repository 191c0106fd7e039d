"""One run: its request is answered from what is stored, else by training."""

import time
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from cbs_lightning import results
from cbs_lightning.checks import check
from cbs_lightning.config import config_hash
from cbs_lightning.data import ImageDataModule
from cbs_lightning.results import Request, Result, Run, Status
from cbs_lightning.tensorboard import publish
from cbs_lightning.training import step_budget, train
from cbs_lightning.trajectory import RuleName
from cbs_lightning.wording import describe, duration


def run(cfg: DictConfig) -> Result:
    """Answer the configuration's request. Raises what `check_run` and `train` raise."""
    data = check_run(cfg)
    directory = run_directory(cfg)
    title = run_title(cfg)
    stored = _stored_run(directory)
    if stored is not None:
        known = answer_from_store(cfg, stored)
        if known is not None:
            if known != stored.result:
                publish(directory, known)
            print(f"{title}: {describe(known)}, known already", flush=True)
            return known
        if stored.result.ended not in results.UNFINISHED:
            print(f"{title}: the stored losses end too soon to tell; training anew", flush=True)
    result = train(cfg, data, directory, title, stored)
    print(f"{title}: {describe(result)}; {_where_or_how_long(cfg, directory)}", flush=True)
    return result


def check_run(cfg: DictConfig) -> ImageDataModule:
    """Raise `UserError` unless the run can start; writes nothing but downloaded data."""
    check(cfg)
    data: ImageDataModule = instantiate(
        cfg.data, data_dir=cfg.data_dir, batch_size=cfg.batch_size, seed=cfg.seed
    )
    data.prepare_data()
    return data


def run_directory(cfg: DictConfig) -> Path:
    return results.run_directory(
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
    """The request's answer where the stored losses hold it, else None."""
    request = Request(
        cfg.stop.loss,
        RuleName(cfg.stop.rule),
        cfg.stop.window or stored.result.data_size,
        step_budget(cfg.stop, stored.result.steps_per_epoch),
    )
    result = results.answer(stored.result, stored.trajectory, request)
    answered = result.status in (Status.REACHED, Status.EXHAUSTED, Status.DIVERGED)
    return result if answered else None


def _stored_run(directory: Path) -> Run | None:
    try:
        return results.read_run(directory)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        print(f"{directory}: cannot be read ({error}); training it anew", flush=True)
        return None


def _where_or_how_long(cfg: DictConfig, directory: Path) -> str:
    """A run of its own tells where it is; one of a sweep, how long the sweep has taken."""
    if not cfg.sweep.jobs:
        return str(directory)
    return f"sweep {duration(time.time() - cfg.sweep.started)} so far"
