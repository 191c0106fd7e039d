"""What single decisions bring: a step as runs make it against one with a thing done otherwise, and
a sweep's jobs as they are composed against how Hydra does it.

Above 1: the other way is slower. Not part of `make bench` unless it is asked for: PARTS=switches.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import composition
from benchmarks.alternatives import LEARNING_RATE, Problem
from benchmarks.outcome import Outcome, Spread, Table
from cbs_lightning.data import Digits
from cbs_lightning.training.resources.allocator import freed_memory_kept

BATCH_SIZES = (4, 64, 1024)
ROUNDS = 15  # at least
SECONDS = 1.5  # of the usual steps beside each other way


def set_up_as_runs_do() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


@contextmanager
def memory_filled() -> Iterator[None]:
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextmanager
def nvml_asked() -> Iterator[None]:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    yield
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


@dataclass(frozen=True)
class Way:
    """How a step is made; the defaults are those of a run."""

    memory_format: torch.memory_format = torch.channels_last
    optimizer: dict[str, bool] = field(default_factory=lambda: {"fused": True})
    change: Callable[[nn.Module], object] = lambda net: net
    after: Callable[["Trained"], object] = lambda trained: trained
    around: Callable[[], AbstractContextManager[None]] = nullcontext


class Trained:
    """A net on one batch."""

    def __init__(self, problem: Problem, way: Way) -> None:
        self.way = way
        self.net = problem.net().to(memory_format=way.memory_format)
        way.change(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), LEARNING_RATE, **way.optimizer)
        images = problem.floats()[: problem.batch_size]
        self.images = images.contiguous(memory_format=way.memory_format)
        self.labels = problem.images.labels[: problem.batch_size]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.logits = self.net(self.images)
        self.loss = cross_entropy(self.logits, self.labels)
        self.loss.backward()
        self.optimizer.step()
        self.way.after(self)

    def seconds(self, steps: int) -> float:
        """Processor time per step: the machine may be shared."""
        with self.way.around():
            started = time.process_time()
            for _ in range(steps):
                self.step()
            return (time.process_time() - started) / steps


class UpdatedOnly(Trained):
    """Only the optimizer's part of a step."""

    def __init__(self, problem: Problem, way: Way) -> None:
        super().__init__(problem, way)
        super().step()

    def step(self) -> None:
        self.optimizer.step()


def not_in_place(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False


def count_correct(trained: Trained) -> Tensor:
    return (trained.logits.argmax(1) == trained.labels).sum()


def count_by_second_pass(trained: Trained) -> Tensor:
    with torch.no_grad():
        return (trained.net(trained.images).argmax(1) == trained.labels).sum()


OTHERWISE = {
    "channels first in memory": Way(memory_format=torch.contiguous_format),
    "optimizer: foreach": Way(optimizer={"foreach": True}),
    "optimizer: a loop": Way(optimizer={"foreach": False}),
    "ReLU not in place": Way(change=not_in_place),
    "correct ones counted": Way(after=count_correct),
    "counted by a second pass": Way(after=count_by_second_pass),
    "loss read at every step": Way(after=lambda trained: trained.loss.item()),
    "memory filled before use": Way(around=memory_filled),
    "NVML asked for GPUs": Way(around=nvml_asked),
    "compiled": Way(change=lambda net: net.compile(dynamic=False)),
}


def measure(batch_size: int) -> dict[str, Spread]:
    problem = Problem(Digits.load(Path()).train, "resnet20", batch_size, "adam")
    others = {name: Trained(problem, way) for name, way in OTHERWISE.items()}
    found = ratios(Trained(problem, Way()), others)
    asked = {"NVML asked for GPUs, Adam alone": UpdatedOnly(problem, Way(around=nvml_asked))}
    return found | ratios(UpdatedOnly(problem, Way()), asked)


def ratios(usual: Trained, others: Mapping[str, Trained]) -> dict[str, Spread]:
    for trained in (usual, *others.values()):
        trained.seconds(2)
    found: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(max(ROUNDS, round(SECONDS / usual.seconds(3)))):
        for name, other in others.items():  # a step each, since a machine's speed changes
            found[name].append(other.seconds(1) / usual.seconds(1))
    return {name: Spread.of(each) for name, each in found.items()}


def freed_memory_given_back(batch_size: int) -> Spread:
    """In processes of their own, since how one keeps memory cannot be undone."""
    command = [sys.executable, "-m", "benchmarks.switches", str(batch_size)]
    found: dict[str, list[float]] = {"kept": [], "given back": []}
    for _ in range(3):
        for way, times in found.items():
            done = subprocess.run([*command, way], check=True, text=True, stdout=subprocess.PIPE)
            times.append(float(done.stdout))
    pairs = zip(found["given back"], found["kept"], strict=True)
    return Spread.of(given_back / kept for given_back, kept in pairs)


def run(report: Callable[[str], None]) -> Outcome:
    set_up_as_runs_do()
    found = {}
    for batch_size in BATCH_SIZES:
        report(f"switches, b={batch_size}")
        found[batch_size] = measure(batch_size)
        found[batch_size]["freed memory given back"] = freed_memory_given_back(batch_size)
    names = list(found[BATCH_SIZES[0]])
    rows = [[name, *(str(found[size][name]) for size in BATCH_SIZES)] for name in names]
    title = "Processor time per step against the usual: ResNet-20, digits, Adam, 1 thread"
    columns = ["", *(f"b={size}" for size in BATCH_SIZES)]
    steps = {
        size: {name: asdict(ratio) for name, ratio in same.items()} for size, same in found.items()
    }
    report("switches, composing jobs")
    composed, jobs = composition.compare()
    return Outcome({"steps": steps, "jobs": composed}, [Table(title, columns, rows), jobs])


def main() -> None:
    batch_size, way = int(sys.argv[1]), sys.argv[2]
    set_up_as_runs_do()
    with freed_memory_kept() if way == "kept" else nullcontext():
        problem = Problem(Digits.load(Path()).train, "resnet20", batch_size, "adam")
        trained = Trained(problem, Way())
        trained.seconds(3)
        print(median(trained.seconds(1) for _ in range(max(8, 400 // batch_size))))


if __name__ == "__main__":
    main()
