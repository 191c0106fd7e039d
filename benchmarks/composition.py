"""Composing the configurations of a sweep's jobs: `JobLoader` against Hydra's own loader."""

import time
from itertools import product

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig

from benchmarks.outcome import Spread, Table
from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.sweep.job_loader import JobLoader

OPTIMIZERS = ("sgd", "momentum", "adam")
BATCH_SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SWEEPS = {
    "experiment=digits": [
        ["experiment=digits", f"optimizer={optimizer}", f"batch_size={batch_size}"]
        for optimizer, batch_size in product(OPTIMIZERS, BATCH_SIZES)
    ],
    "seed=range(100)": [[f"seed={seed}"] for seed in range(100)],
    "seed=range(500)": [[f"seed={seed}"] for seed in range(500)],
}


def measure(jobs: list[list[str]]) -> dict[str, list[float]]:
    """Processor seconds of each job; the loaders take turns."""
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        hydra = GlobalHydra.instance().config_loader()
        master = hydra.load_configuration("config", [], RunMode.MULTIRUN)
        loaders = {"JobLoader": JobLoader(hydra), "Hydra": hydra}
        found: dict[str, list[float]] = {name: [] for name in loaders}
        for job in jobs:
            for name, loader in loaders.items():
                found[name].append(_seconds(loader, master, job))
    return found


def _seconds(loader: ConfigLoader, master: DictConfig, job: list[str]) -> float:
    started = time.process_time()
    loader.load_sweep_config(master, job)
    return time.process_time() - started


def compare() -> tuple[dict[str, dict[str, list[float]]], Table]:
    """The seconds of every job by sweep and loader, and a table of them."""
    found = {name: measure(jobs) for name, jobs in SWEEPS.items()}
    rows = [
        [
            f"{name}, {len(SWEEPS[name])} jobs",
            *(str(Spread.of(1000 * each for each in times[loader])) for loader in times),
            *(f"{sum(times[loader]):.2f}" for loader in times),
            f"{sum(times['Hydra']) / sum(times['JobLoader']):.1f}",
        ]
        for name, times in found.items()
    ]
    columns = ["", "JobLoader, ms a job", "Hydra, ms a job", "JobLoader, s", "Hydra, s", "ratio"]
    return found, Table("Composing a sweep's jobs; a sweep does it twice", columns, rows)
