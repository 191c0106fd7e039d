"""As many jobs at a time as there are cores, against one after the other."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection

import torch

from benchmarks import ours
from benchmarks.images import DIGITS
from benchmarks.outcome import Finding, Outcome, Spread, Table, Target
from benchmarks.steps import Cell, overrides_of
from cbs_lightning.training.resources.threads import cores

BATCH_SIZES = (16, 64, 512)
TARGET = Target("together / one by one, digits, b <= 64", 1.5, 1.5, at_least=True)
ROUNDS = 3
SAMPLES = {16: DIGITS // 3, 64: 2 * DIGITS // 3, 512: DIGITS}  # a turn's, whole chunks


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
        overrides = overrides_of(Cell("digits", "resnet20", batch_size, "adam", 1))
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

    def send(self, what: object) -> None:
        for connection in self.connections:
            connection.send(what)

    def wait(self) -> None:
        for connection in self.connections:
            connection.recv()

    def together(self, samples: int) -> float:
        started = time.perf_counter()
        self.send((1, samples))
        self.wait()
        return time.perf_counter() - started

    def one_by_one(self, samples: int, threads: int) -> float:
        started = time.perf_counter()
        for connection in self.connections:
            connection.send((threads, samples))
            connection.recv()
        return time.perf_counter() - started

    def close(self) -> None:
        self.send(None)
        for process in self._processes:
            process.join()


def measure(jobs: Jobs, batch_size: int) -> dict[int, Spread]:
    """How much sooner they are done together than one by one with so many threads each."""
    samples = SAMPLES[batch_size]
    jobs.send(batch_size)
    jobs.wait()
    jobs.together(samples)  # to warm up
    ratios: dict[int, list[float]] = {cores(): [], 1: []}
    for _ in range(ROUNDS):
        for threads, found in ratios.items():
            found.append(jobs.one_by_one(samples, threads) / jobs.together(samples))
    jobs.send(None)
    return {threads: Spread.of(found) for threads, found in ratios.items()}


def run(report: Callable[[str], None]) -> Outcome:
    jobs = Jobs()
    found = {}
    for batch_size in BATCH_SIZES:
        report(f"{cores()} jobs at a time, b={batch_size}")
        found[batch_size] = measure(jobs, batch_size)
    jobs.close()
    rows = [[str(size), *map(str, ratios.values())] for size, ratios in found.items()]
    title = f"Throughput of a sweep on digits: {cores()} jobs at a time against one by one"
    small = {f"b={size}": ratios[cores()] for size, ratios in found.items() if size <= 64}
    columns = ["b", "times as fast as with all cores each", "as with one core each"]
    return Outcome(
        {
            size: {threads: asdict(ratio) for threads, ratio in ratios.items()}
            for size, ratios in found.items()
        },
        [Table(title, columns, rows)],
        [Finding.of(TARGET, small)],
    )
