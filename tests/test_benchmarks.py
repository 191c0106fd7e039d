"""The benchmark measures what it says: who takes turns, what is compared, what a target means."""

import ctypes
from collections import Counter
from io import StringIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import composition, optimizers, ours, pages, rules, steps, throughput
from benchmarks.__main__ import show
from benchmarks.alternatives import ALTERNATIVES, Alternative, memory_as_usual
from benchmarks.growth import slope
from benchmarks.images import DIGITS, PICTURES, EvenCIFAR10, EvenDigits
from benchmarks.outcome import Finding, Spread, Table, Target, Verdict
from cbs_lightning.analysis.study import read
from cbs_lightning.data.loader import SAMPLES_PER_CHUNK
from cbs_lightning.reporting.variants_table import answer_table
from cbs_lightning.results.store import read_run
from cbs_lightning.results.trajectory import Trajectory
from cbs_lightning.training.resources.allocator import (
    M_MMAP_MAX,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    USUAL_MMAPS,
    freed_memory_kept,
)
from cbs_lightning.training.resources.threads import cores
from tests.optimizers import OPTIMIZERS
from tests.studies import make_run, rewrite


def test_a_quarter_of_all_combinations_is_balanced():
    every, some = list(steps.cells(every=True)), list(steps.cells(every=False))
    assert len(every) == 64 and set(some) < set(every)
    pairs = set(product(("adam", "sgd"), {1, cores()}))
    for batch_size in steps.BATCH_SIZES:
        found = {(c.optimizer, c.threads) for c in some if c.batch_size == batch_size}
        assert len(found) >= len(pairs) - (batch_size == 2048)
    assert max(Counter((c.data, c.model, c.batch_size) for c in some).values()) == 1


def test_all_ways_to_train_take_turns_inside_a_run(monkeypatch):
    monkeypatch.setattr(steps, "SECONDS_PER_CELL", 0.0)
    images = EvenDigits.load(Path()).train
    cell = steps.Cell("digits", "resnet20", 32, "adam", 1)
    times = steps.measure(cell, images)
    assert set(times.of) == {"ours", *ALTERNATIVES}
    assert times.rounds == steps.ROUNDS[0]
    assert all(len(found) == times.rounds and min(found) > 0 for found in times.of.values())
    numbers = times.numbers()
    assert set(numbers["ratios"]) == set(steps.RATIOS) and numbers["batch_size"] == 32


def test_where_all_cores_are_its_a_run_chooses_its_threads_and_others_have_them_all(monkeypatch):
    threads = {"run": [], "guests": []}

    class Noting(Alternative):
        def seconds(self, steps: int) -> float:
            threads["guests"].append(torch.get_num_threads())
            return 1.0

    between_steps = steps.Rounds.between_steps

    def noting(self) -> None:
        threads["run"].append(torch.get_num_threads())
        between_steps(self)

    monkeypatch.setattr(steps, "SECONDS_PER_CELL", 0.0)
    monkeypatch.setattr(steps, "cores", lambda: 2)
    monkeypatch.setattr(steps, "ALTERNATIVES", dict.fromkeys(("floor", "raw"), Noting))
    monkeypatch.setattr(steps.Rounds, "between_steps", noting)
    monkeypatch.setattr("cbs_lightning.training.choices.fair_share", lambda workers: 2)
    images = EvenDigits.load(Path()).train
    steps.measure(steps.Cell("digits", "resnet20", 32, "adam", 2), images)
    assert set(threads["run"]) == {1} and set(threads["guests"]) == {2}


@pytest.mark.parametrize("large", [True, False])
def test_other_ways_to_train_have_memory_as_glibc_has_it(monkeypatch, large):
    settings = {}

    class Libc:
        def mallopt(self, parameter: int, value: int) -> None:
            settings[parameter] = value

        def malloc_trim(self, _: int) -> None: ...

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Libc())
    with freed_memory_kept(large_blocks=large):
        kept = dict(settings)
        with memory_as_usual():
            # As glibc raises it, once blocks as large as it may be have been freed.
            usual = {M_TRIM_THRESHOLD: 2 * kept[M_MMAP_THRESHOLD], M_MMAP_MAX: USUAL_MMAPS}
            assert settings == kept | usual
        assert settings == kept and settings[M_MMAP_MAX] == (0 if large else USUAL_MMAPS)


def test_all_steps_do_the_same_work():
    for data, samples in ((EvenDigits, DIGITS), (EvenCIFAR10, PICTURES)):
        images = data.load(Path("nowhere")).train
        assert len(images) == samples
        sizes = [min(batch_size, samples) for batch_size in steps.BATCH_SIZES]
        assert all(samples % size == 0 for size in [*sizes, SAMPLES_PER_CHUNK])
    turns = throughput.SAMPLES.items()
    assert all(samples % max(size, SAMPLES_PER_CHUNK) == 0 for size, samples in turns)


class Sleeping:
    """Guests that take their time, which is not the run's."""

    every = 2

    def __init__(self) -> None:
        self.turns = 0
        self.chunks: list[tuple[int, float]] = []

    def between_steps(self) -> None:
        self.turns += 1
        steps.time.sleep(0.2)

    def after_chunk(self, made: int, seconds: float) -> bool:
        self.chunks.append((made, seconds))
        return len(self.chunks) < 2


def test_a_guests_time_is_not_the_runs():
    guests = Sleeping()
    ours.train(["data=digits", "batch_size=64", "threads=1"], ours.HostingLinear, guests)
    assert [made for made, _ in guests.chunks] == [8, 8]
    assert guests.turns == 2 * 3
    assert guests.chunks[1][1] < 0.2 * 3


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Spread(1.02, 1.0, 1.1), Verdict.AIM),
        (Spread(1.04, 1.0, 1.1), Verdict.MET),
        (Spread(1.06, 1.01, 1.1), Verdict.UNCLEAR),
        (Spread(1.09, 1.06, 1.1), Verdict.MISSED),
    ],
)
def test_a_target_is_met_missed_or_not_to_be_told(found, expected):
    assert Target("ours / raw", 1.05, 1.02).verdict(found) is expected
    turned = Spread(1 / found.median, 1 / found.high, 1 / found.low)
    assert Target("raw / ours", 1 / 1.05, 1 / 1.02, at_least=True).verdict(turned) is expected


def test_the_worst_is_held_against_the_target():
    found = {"a": Spread(1.0, 1.0, 1.0), "b": Spread(1.2, 1.2, 1.2), "c": Spread(1.1, 1.1, 1.1)}
    assert Finding.of(Target("", 1.15, 1.1), found).where == "b"
    finding = Finding.of(Target("", 1.15, 1.1, at_least=True), found)
    assert (finding.where, finding.median, finding.verdict) == ("a", 1.1, Verdict.MISSED)


def test_a_slope_of_one_is_linear():
    assert slope([4, 32, 256], [0.4, 3.2, 25.6]) == pytest.approx(1)
    assert slope([4, 32, 256], [2, 16 * 8, 128 * 64]) == pytest.approx(2)


def test_both_loaders_compose_every_job():
    found = composition.measure(composition.SWEEPS["experiment=digits"][:2])
    assert list(found) == ["JobLoader", "Hydra"]
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())


def test_the_part_on_pages_takes_turns_and_compares_like_with_like(monkeypatch):
    calls = []

    def measured(way, cell, at_a_time):
        calls.append((way, cell, at_a_time))
        return {"seconds": 1.0 if way == "kept" else 2.0, "faults": 0, "peak": 100}

    monkeypatch.setattr(pages, "measured", measured)
    found = pages.run(lambda _: None)
    assert [way for way, _, _ in calls] == len(calls) // 2 * ["kept", "given back"]
    assert {at_a_time for _, _, at_a_time in calls} == {1, 2}
    assert found.findings[0].worst.median == 0.5 and len(found.numbers) == 4


def test_a_measurement_of_pages_is_of_a_process_that_trains():
    found = pages.measured("kept", ("resnet20_authors", 32), 2)
    assert found["seconds"] > 0 and found["peak"] > 100


def test_all_optimizers_make_a_step_with_the_gradients_of_each_step_of_the_net(monkeypatch):
    """The machine's speed is the same for all of them, since they take turns at every step."""
    turns = []
    step = optimizers.Updates.seconds

    def noted(self, gradients):
        turns.append(type(self.optimizer).__name__)
        return step(self, gradients)

    monkeypatch.setattr(optimizers.Updates, "seconds", noted)
    times = optimizers.measure(4, ["adam", "muon", "lion"], blocks=2)
    steps_made = optimizers.WARM_UP + 2 * optimizers.STEPS_PER_BLOCK
    assert turns == ["Adam", "Muon", "Lion"] * steps_made
    assert min(times.gradients) > 0 and times.ratio("adam").median == 1
    assert all(len(blocks) == 2 and min(blocks) > 0 for blocks in times.updates.values())
    assert optimizers.installed() == OPTIMIZERS


def test_the_least_seconds_are_those_of_a_step_times_the_steps(tmp_path):
    study = tmp_path / "study"
    for size, seed, epochs in ((8, 0, 2), (8, 1, 4), (16, 0, 4), (32, 0, 1)):
        make_run(study, "adam", size, epochs, seed=seed)
    make_run(study, "adam", 4, 1, reached=False)
    (curve,) = read(study)[0].curves
    times = {4: optimizers.Times([0.001], {"adam": [0.001]}),  # missed, however quick
             8: optimizers.Times([0.7], {"adam": [0.3]}),  # 250 and 500 steps of one second
             16: optimizers.Times([1.2], {"adam": [0.3]})}  # 252 of 1.5 seconds  # fmt: skip
    least = optimizers.least_seconds(curve, times)
    assert least == optimizers.Least(8, *map(pytest.approx, (375, 250, 500)))
    assert least.relative(least) == "1.00 (0.67 to 1.33)"
    assert optimizers.least_seconds(curve, {4: times[4]}) is None


def test_one_table_has_the_answers_of_a_study_and_its_least_seconds(tmp_path, monkeypatch):
    study = tmp_path / "study"
    for size, epochs in ((8, 4), (16, 2)):
        make_run(study, "adam", size, epochs)
        make_run(study, "lion", size, 2 * epochs)
        make_run(study, "own", size, epochs)
    seconds = {"adam": [0.3], "lion": [0.3]}
    monkeypatch.setattr(optimizers, "BATCH_SIZES", (8, 16))
    monkeypatch.setattr(optimizers, "SHOWN", (8, 16))
    monkeypatch.setattr(optimizers, "installed", lambda: list(seconds))
    monkeypatch.setattr(optimizers, "measure", lambda *_: optimizers.Times([0.7], seconds))
    _, table = optimizers.run(lambda _: None, study).tables
    columns, rows = answer_table(read(study)[0])
    assert table.columns == [*columns, "least seconds / adam", "at b"]
    cells = {row[0]: row[-2:] for row in table.rows}
    assert cells == {"adam": ["1.00", "16"], "lion": ["2.00", "16"], "own": ["-", "-"]}
    assert [row[:-2] for row in table.rows] == list(rows.values())


def test_tables_are_markdown_in_a_log():
    log = StringIO()
    show(Console(file=log, width=80), Table("Title", ["", "b"], [["adam", "8"], ["lion", "16"]]))
    lines = [line.strip() for line in log.getvalue().splitlines()]
    table = ["|      | b  |", "|------|----|", "| adam | 8  |", "| lion | 16 |"]
    assert lines == ["Title", "", *table, ""]


def test_the_error_of_a_rule_is_told_where_the_exact_steps_are_known(tmp_path):
    """A loss that falls exponentially, with 20 % noise on every batch."""
    make_run(tmp_path / "study", "adam", 10, 12)
    (directory,) = (tmp_path / "study").iterdir()
    before = read_run(directory).trajectory
    rng = np.random.default_rng(0)
    exact = 2.0 * np.exp(-np.arange(len(before)) / 400)
    noisy = exact * rng.normal(1, 0.2, len(before))
    rewrite(directory, Trajectory(noisy.astype(np.float32), before.correct, before.size))
    found = {
        (threshold, share): (steps, errors)
        for threshold, share, _, steps, errors in rules.measure([read_run(directory)])
    }
    steps, errors = found[0.5, 1.0]
    assert steps == pytest.approx(400 * np.log(4), rel=0.03)
    assert errors["window"].bias == pytest.approx(50 / steps, rel=0.2)  # half of its 100 steps
    assert abs(errors["middle"].bias) < 0.02
    assert errors["middle"].scatter < errors[rules.END_OF_LINE].scatter
