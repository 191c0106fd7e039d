"""Two jobs at a time, a core each, against one after the other with all cores."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection

import torch

from benchmarks import ours
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from cbs_lightning.threads import cores

BATCH_SIZES = (16, 64, 1024)
TARGET = Target("together / one by one, digits, b <= 64", 1.5, 1.5, at_least=True)
ROUNDS = 3
SAMPLES = {16: 512, 64: 1024, 1024: 3594}  # a turn's, whole chunks


class OnCommand:
    """Guests that let a run train when they are told to, by pairs of threads and samples."""

    every = 10**9

    def __init__(self, connection: Connection, batch_size: int) -> None:
        self.connection = connection
        self.batch_size = batch_size
        self._left = 0

    def between_steps(self) -> None:
        pass

    def after_chunk(self, steps: int, seconds: float) -> bool:
        self._left -= steps * self.batch_size
        if self._left > 0:
            return True
        self.connection.send("done")
        order = self.connection.recv()
        if order is None:
            return False
        threads, self._left = order
        torch.set_num_threads(threads)
        return True


def work(connection: Connection) -> None:
    """A job of its own process: a run for every batch size that it is told."""
    while (batch_size := connection.recv()) is not None:
        guests = OnCommand(connection, batch_size)
        overrides = ["data=digits", f"batch_size={batch_size}", "threads=1"]
        ours.train(overrides, ours.HostingResNet20, guests)


class Jobs:
    """As many processes as there are cores."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connections, self._processes = [], []
        for _ in range(cores()):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there,), daemon=True)
            process.start()
            self.connections.append(here)
            self._processes.append(process)

    def tell(self, what: object) -> None:
        for connection in self.connections:
            connection.send(what)

    def wait(self) -> None:
        for connection in self.connections:
            connection.recv()

    def together(self, samples: int) -> float:
        started = time.perf_counter()
        self.tell((1, samples))
        self.wait()
        return time.perf_counter() - started

    def one_by_one(self, samples: int) -> float:
        started = time.perf_counter()
        for connection in self.connections:
            connection.send((cores(), samples))
            connection.recv()
        return time.perf_counter() - started

    def close(self) -> None:
        self.tell(None)
        for process in self._processes:
            process.join()


def measure(jobs: Jobs, batch_size: int) -> Spread:
    samples = SAMPLES[batch_size]
    jobs.tell(batch_size)
    jobs.wait()
    jobs.together(samples)  # to warm up
    ratios = [jobs.one_by_one(samples) / jobs.together(samples) for _ in range(ROUNDS)]
    jobs.tell(None)
    return Spread.of(ratios)


def run(tell: Callable[[str], None]) -> Outcome:
    jobs = Jobs()
    found = {}
    for batch_size in BATCH_SIZES:
        tell(f"{cores()} jobs at a time, b={batch_size}")
        found[batch_size] = measure(jobs, batch_size)
    jobs.close()
    rows = [[str(batch_size), str(ratio)] for batch_size, ratio in found.items()]
    title = f"Throughput of a sweep on digits: {cores()} jobs at a time against one by one"
    small = {f"b={size}": ratio for size, ratio in found.items() if size <= 64}
    return Outcome(
        {str(size): asdict(ratio) for size, ratio in found.items()},
        [Table(title, ["b", "times as fast"], rows)],
        [Finding.of(TARGET, small)],
    )
