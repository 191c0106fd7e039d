"""What probes cost: a step and a probe of the paper's net on CIFAR-10, in turns.

The share is that of twelve probes in a run of Adam to a loss of 0.1, which takes 3,136 steps at
b = 512 (docs/paper.md). Random images of the same shape, where CIFAR-10 is not found, take the
same time.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.images import EvenCIFAR10
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.steps import data_dir
from cbs_lightning.callbacks.probes.measurement import ProbeSettings, measure
from cbs_lightning.callbacks.probes.objective import Objective
from cbs_lightning.data.loader import InMemoryLoader
from cbs_lightning.models import ResNet20Authors
from cbs_lightning.models.chunks import backward

BATCH_SIZE, STEPS, PROBES = 512, 3136, 12
TURNS, STEPS_OF_TURN = 5, 8
KINDS = {
    "first line": ProbeSettings(PROBES, curvature=False),
    "with a and c": ProbeSettings(PROBES),
}
TARGETS = {
    "first line": Target("12 probes / a run to 0.1, in %: noise scales", 2.0, 2.0),
    "with a and c": Target("12 probes / a run to 0.1, in %: with a and c", 6.0, 6.0),
}


class Timed:
    """A net in training, with the probes of a run."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        images = EvenCIFAR10.load(data_dir()).train
        self.loader = InMemoryLoader(images, BATCH_SIZE, seed=0)
        adam = partial(torch.optim.Adam, lr=1e-3, fused=True)
        self.model = ResNet20Authors(3, 10, optimizer=adam).train()
        self.optimizer = self.model.configure_optimizers()
        self.batches = iter(self.loader)

    def steps(self) -> None:
        for _ in range(STEPS_OF_TURN):
            ((images, labels),) = next(self.batches)
            self.optimizer.zero_grad()
            backward(self.model, images, labels)
            self.optimizer.step()

    def probe(self, settings: ProbeSettings) -> None:
        trainer: Any = SimpleNamespace(train_dataloader=self.loader)
        batches, size = settings.batches_of(BATCH_SIZE)
        objective = Objective(trainer, self.model, size, None, seed=0, step=1)
        measure(objective, self.optimizer, batches, settings, BATCH_SIZE, 1.0, lambda _: None)


def run(report: Callable[[str], None]) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    timed = Timed()
    timed.steps()
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(TURNS):
        report(f"turn {turn + 1} of {TURNS}")
        for kind, settings in KINDS.items():
            step = _seconds(timed.steps) / STEPS_OF_TURN
            probe = _seconds(partial(timed.probe, settings))
            shares[kind].append(100 * PROBES * probe / (STEPS * step))
    torch.set_num_threads(threads)
    spreads = {kind: Spread.of(found) for kind, found in shares.items()}
    table = Table(
        "12 probes in a run on CIFAR-10 to 0.1: the authors' ResNet-20, Adam, b = 512, one thread",
        ["", "% of the run's time", "turns"],
        [[kind, str(spread), str(TURNS)] for kind, spread in spreads.items()],
    )
    numbers = [{"kind": kind, "share": asdict(spread)} for kind, spread in spreads.items()]
    findings = [Finding.of(TARGETS[kind], {kind: spread}) for kind, spread in spreads.items()]
    return Outcome(numbers, [table], findings)


def _seconds(work: Callable[[], None]) -> float:
    """Of this process on a core: others may have the cores as well."""
    began = time.process_time()
    work()
    return time.process_time() - began
