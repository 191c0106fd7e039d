"""How many runs of a sweep train at a time, if the user does not say.

Several runs with one core each finish sooner than one after the other with all cores. The number of
threads changes the last bits of the losses, so the same sweep on the same machine always gets the
same number, whatever is free or finished at the moment.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import torch

from cbs_lightning.config.checks import device_type
from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.console import count_of
from cbs_lightning.models import Classifier
from cbs_lightning.sweep.gpus import visible_gpus
from cbs_lightning.training.build import bare_model
from cbs_lightning.training.loops import is_classifier
from cbs_lightning.training.resources.memory import USABLE, growth_of_training_step, peak_of_batch
from cbs_lightning.training.resources.system_memory import total_memory
from cbs_lightning.training.resources.threads import cores, fair_share
from cbs_lightning.training.run import check_run
from cbs_lightning.training.source import Source

PROCESS = 600 * 2**20  # bytes of a process with its libraries
COMPILER = 600 * 2**20  # of those that it starts to compile a net
COPIES = 4  # of the weights, at most: themselves, and what an optimizer keeps


@dataclass(frozen=True)
class Concurrency:
    """How many runs train at a time and why, and how many GPUs a local sweep uses."""

    runs: int
    why: str
    gpus: int = 0
    on_cluster: bool = False  # as jobs of one

    def __str__(self) -> str:
        return f"{self.runs} at a time ({self.why}{self._spread()})"

    def _spread(self) -> str:
        if min(self.gpus, self.runs) < 2:
            return ""
        used, most = min(self.gpus, self.runs), -(-self.runs // self.gpus)
        each = f"{'up to ' if self.runs % used else ''}{count_of(most, 'job')} each"
        return f"{': ' if self.why else ''}{used} GPUs, {each}"


@dataclass(frozen=True)
class Need:
    """Bytes of a process with its data (the sweep's own has them too), and of its training."""

    process: float
    training: float


def automatic(configs: Sequence[RunConfig]) -> Concurrency:
    """As many runs as there are cores and memory for; on GPUs, `jobs_per_gpu` on each."""
    devices = {device_type(cfg.trainer["accelerator"]) for cfg in configs}
    if devices != {"cpu"}:
        gpus = gpus_of(configs)
        runs = min(len(configs), gpus * configs[0].jobs_per_gpu) if gpus else 1
        return Concurrency(runs, "" if min(gpus, runs) > 1 else "on a GPU", gpus)
    threads = max(cfg.threads or 1 for cfg in configs)
    runs, note = at_a_time(len(configs), cores() // threads), ""
    if runs > 1:
        most = runs
        try:
            runs = at_a_time(len(configs), most, total_memory(), needs(configs))
            note = ", memory allows no more" if runs < most else ""
        except Exception:  # what is wrong, the runs will tell
            runs, note = 1, ", their memory needs are unknown"
    share = max(cfg.threads or fair_share(runs) for cfg in configs)
    size, each = "one core" if share == 1 else f"{share} cores", " each" if runs > 1 else ""
    return Concurrency(runs, f"{size}{each}{note}")


def gpus_of(configs: Iterable[RunConfig]) -> int:
    """The number of CUDA GPUs, if one of the runs would train on one; otherwise 0."""
    on_cuda = any(device_type(cfg.trainer["accelerator"]) == "cuda" for cfg in configs)
    return len(visible_gpus()) if on_cuda else 0


def at_a_time(jobs: int, cores: int, memory: float = 0, needs: Iterable[Need] = ()) -> int:
    """The rule on a CPU: one core per run, and enough memory for that many of the largest run."""
    room = USABLE * memory
    fitting = [int((room - need.process) / (need.process + need.training)) for need in needs]
    return max(1, min([jobs, cores, *fitting]))


def needs(configs: Iterable[RunConfig]) -> list[Need]:
    """The memory of the most demanding run, for each model and data set."""
    of_a_kind = groupby(sorted(configs, key=_kind), key=_kind)
    with torch.random.fork_rng(devices=[]):
        return [_most_needed(list(alike)) for _, alike in of_a_kind]


def _kind(cfg: RunConfig) -> str:
    kind = (cfg.data, cfg.data_dir, cfg.model, cfg.activation_checkpointing, cfg.compile)
    return json.dumps(kind, sort_keys=True, default=str)


def _most_needed(alike: Sequence[RunConfig]) -> Need:
    source = check_run(alike[0])
    source.setup()
    if source.images is None or not is_classifier(alike[0]):
        return _most_of_strangers(alike, source)
    data = source.images
    model = bare_model(alike[0], source)
    assert isinstance(model, Classifier)
    batches = [min(cfg.batch_size, data.train_size) for cfg in alike]
    slices = [_slice(cfg, batch) for cfg, batch in zip(alike, batches, strict=True)]
    return Need(
        process=PROCESS + sum(part.pixels.nbytes for part in data.split if part is not None),
        training=peak_of_batch(model, data.image_shape, max(slices))
        + max(batches) * prod(data.image_shape) * torch.float32.itemsize
        + COPIES * sum(weight.nbytes for weight in model.parameters())
        + (COMPILER if alike[0].compile else 0),
    )


def _most_of_strangers(alike: Sequence[RunConfig], source: Source) -> Need:
    """From a training step of a module and of half of its batch; raises where that fails."""
    module = bare_model(alike[0], source)
    loader = source.loader or source.datamodule.train_dataloader()
    batch = next(iter(loader))
    at_rest, per_sample = growth_of_training_step(module, batch)
    largest = max(_slice(cfg, cfg.batch_size) for cfg in alike)
    weights = sum(weight.nbytes for weight in module.parameters())
    return Need(PROCESS, COPIES * weights + at_rest + largest * per_sample)


def _slice(cfg: RunConfig, batch_size: int) -> int:
    """Samples processed at once; at least 2, because BatchNorm may refuse one."""
    if cfg.micro_batch_size == AUTO:  # it takes what there is for it
        return 2
    assert not isinstance(cfg.micro_batch_size, str)
    return max(2, min(cfg.micro_batch_size or batch_size, batch_size))
