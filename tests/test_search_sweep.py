"""A search for the critical batch size: what it runs, gives up and never runs twice."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

import cbs_lightning.training.run
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.study import read
from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.config.identity import run_directory
from cbs_lightning.errors import UserError
from cbs_lightning.reporting.figures.by_batch_size import ARROW, draw
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.results.store import read_run
from cbs_lightning.search.search import Search
from cbs_lightning.search.settings import Budget, SearchSettings
from cbs_lightning.sweep import search_sweep
from cbs_lightning.sweep.concurrency import Concurrency
from cbs_lightning.sweep.search_sweep import SearchSweep
from cbs_lightning.training.interrupted import Interrupted
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.forks import ROOT, ran
from tests.studies import make_run, make_searched_study
from tests.sweep_jobs import sweep_job
from tests.test_run import forbid_training, interrupt_after

SIZES = "16,32,64,128,256,512,1024"
ASKED = ["stop.loss=0.6", "stop.rule=window", "stop.max_epochs=20", "optimizer.lr=0.1"]
GRID = ["-m", *TINY, *ASKED, f"batch_size={SIZES}"]  # the least K·b is at 32
SEARCH = [*GRID, "hydra/sweeper=critical_batch"]


@pytest.fixture
def bounded(tiny, tmp_path):
    """The configuration and the job of a search's run, which is given up beyond this SFO."""

    def config(sfo, *overrides):
        bound = SfoLimit(tmp_path / "bound")
        bound.write(sfo)
        return tiny(*overrides), sweep_job(sfo_limit_file=str(bound.path))

    return config


@pytest.fixture
def trained(monkeypatch):
    """(batch size, seed) of every run that is trained from now on."""
    found = []
    train = cbs_lightning.training.run.train

    def counting(cfg, *rest):
        found.append((cfg.batch_size, cfg.seed))
        return train(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", counting)
    return found


def stored(output_dir: Path) -> dict[tuple[str, int, int], tuple]:
    """What every run found, by variant, batch size and seed, and its losses."""
    runs = [read_run(path.parent) for path in output_dir.glob("*/*/result.json")]
    return {
        (run.result.variant, run.result.batch_size, run.result.seed): (
            run.result.status, run.result.steps, run.trajectory.loss.tolist()
        )
        for run in runs
    }  # fmt: skip


def statuses(output_dir: Path) -> dict[int, Status]:
    return {size: found[0] for (_, size, _), found in stored(output_dir).items()}


# Runs that are given up.


@pytest.mark.parametrize(
    ("batch_size", "most", "steps"),
    [(256, 5000, 20), (256, 5120, 22), (4, 600, 256), (4, 1, 128), (2048, 1, 1)],
)
def test_a_run_is_given_up_after_the_chunk_that_costs_too_much(bounded, batch_size, most, steps):
    """A chunk has 2 steps with b = 256, and 128 with b = 4."""
    cfg, job = bounded(most, "stop.loss=1e-9", f"batch_size={batch_size}")
    result = run(cfg, job)
    assert (result.status, result.ended) == (Status.ABANDONED, Status.ABANDONED)
    assert (result.steps, result.sfo, result.samples) == (None, None, None)
    assert result.steps_run == result.steps_answered == steps
    assert result.sfo_exceeded == steps * min(batch_size, 1797)
    directory = run_directory(cfg)
    assert read_run(directory).result == result
    assert (directory / store.CHECKPOINT).exists()


def test_a_bound_that_is_lowered_meanwhile_counts(bounded, monkeypatch, tmp_path):
    monkeypatch.setattr("cbs_lightning.results.sfo_limit.SECONDS_BETWEEN_READS", 0)
    batch_end = TrajectoryRecorder.on_train_batch_end

    def lowering(self, trainer, *rest):
        batch_end(self, trainer, *rest)
        if trainer.global_step == 12:
            SfoLimit(tmp_path / "bound").write(2000)

    monkeypatch.setattr(TrajectoryRecorder, "on_train_batch_end", lowering)
    assert run(*bounded(5000, "stop.loss=1e-9")).steps_run == 12


def test_no_bound_yet(bounded):
    result = run(*bounded(None, "stop.loss=1e-9", "stop.max_epochs=2"))
    assert (result.status, result.steps_run) == (Status.EXHAUSTED, 16)


def test_a_threshold_met_in_the_last_chunk_is_not_missed(tiny, bounded, tmp_path):
    asked = ("stop.rule=window", "stop.window=300", "stop.loss=2", "batch_size=4")
    steps = run(tiny(*asked, f"output_dir={tmp_path / 'free'}")).steps
    assert steps % 128 not in (0, 127)
    result = run(*bounded(4 * (steps - 1), *asked))
    assert (result.status, result.steps) == (Status.REACHED, steps)
    assert not (run_directory(bounded(1, *asked)[0]) / store.CHECKPOINT).exists()


def test_the_end_of_the_budget_is_no_giving_up(bounded):
    cfg, job = bounded(4096, "stop.loss=1e-9", "stop.max_steps=17")
    result = run(cfg, job)
    assert (result.status, result.ended) == (Status.EXHAUSTED, Status.EXHAUSTED)
    assert not (run_directory(cfg) / store.CHECKPOINT).exists()


@pytest.mark.parametrize("rule", ["epoch", "window"])
def test_what_was_given_up_trains_on_as_if_nothing_had_happened(tiny, bounded, tmp_path, rule):
    asked = ("stop.loss=1.2", f"stop.rule={rule}", "data.augment=true", "batch_size=32")
    free = tiny(*asked, f"output_dir={tmp_path / 'free'}")
    expected = run(free)
    for most in (500, 700, 1500, None):
        result = run(*bounded(most, *asked))
    assert result.steps == expected.steps
    np.testing.assert_array_equal(
        read_run(run_directory(tiny(*asked))).trajectory.loss,
        read_run(run_directory(free)).trajectory.loss,
    )
    assert not (run_directory(tiny(*asked)) / store.CHECKPOINT).exists()


def test_what_cost_too_much_is_known_already(tiny, bounded, monkeypatch, capsys):
    cfg, job = bounded(5000, "stop.loss=1e-9")
    given_up = run(cfg, job)
    with monkeypatch.context() as patch:
        forbid_training(patch)
        assert run(cfg, job) == given_up and "already finished" in capsys.readouterr().out
        assert run(*bounded(3000, "stop.loss=1e-9")) == given_up
        # It holds for a stricter threshold too, and the losses answer for a looser one.
        assert run(*bounded(5000, "stop.loss=1e-10")).status is Status.ABANDONED
        assert run(*bounded(5000, "stop.loss=9")).status is Status.REACHED
        assert run(tiny("stop.loss=1e-9", "stop.max_steps=19")).status is Status.EXHAUSTED
    assert run(*bounded(5120, "stop.loss=1e-9")).steps_run == 22
    assert run(tiny("stop.loss=1e-9", "stop.max_epochs=3")).status is Status.EXHAUSTED


def test_an_interrupted_run_that_costs_too_much_by_now_is_given_up(bounded, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 12)
        with pytest.raises(Interrupted):
            run(*bounded(9000, "stop.loss=1e-9"))
    forbid_training(monkeypatch)
    cfg, job = bounded(3000, "stop.loss=1e-9")
    result = run(cfg, job)
    assert (result.status, result.ended) == (Status.ABANDONED, Status.ABANDONED)
    assert result.steps_run == 12 and (run_directory(cfg) / store.CHECKPOINT).exists()


def test_giving_up_sooner_does_not_replace_longer_losses(tiny, bounded, monkeypatch):
    monkeypatch.setattr("cbs_lightning.results.sfo_limit.SECONDS_BETWEEN_READS", 0)
    long = run(tiny("stop.loss=1.5"))
    cfg, job = bounded(None, "stop.loss=1.0")  # without a checkpoint it is trained anew
    batch_end = TrajectoryRecorder.on_train_batch_end

    def bounding(self, trainer, *rest):
        batch_end(self, trainer, *rest)
        bounded(256)

    monkeypatch.setattr(TrajectoryRecorder, "on_train_batch_end", bounding)
    assert run(cfg, job).steps_run < long.steps_run
    assert read_run(run_directory(cfg)).result == long


# Searches.


def test_a_search_finds_what_the_grid_finds_with_fewer_runs(cli, tmp_path):
    grid, search = tmp_path / "grid", tmp_path / "search"
    assert cli(*GRID, f"output_dir={grid}").code == 0
    outcome = cli(*SEARCH, f"output_dir={search}")
    assert outcome.code == 0, outcome.err
    found, every = stored(search), stored(grid)
    assert len(found) < len(every)
    for run_key, (status, steps, losses) in found.items():
        assert losses == every[run_key][2][: len(losses)]
        if status is Status.REACHED:
            assert steps == every[run_key][1]
    least = min(every, key=lambda each: every[each][1] * each[1])
    assert least[1] == 32 and f"adam lr=0.1: use b = {least[1]}" in outcome.out
    assert "a search, 1 at a time (jobs=1); no run was finished before\n" in outcome.out
    assert "Round 1, after 0 runs, 0 gradients, " in outcome.out
    sfo = every[least][1] * least[1]
    assert f" Least K·b: {sfo:,}, given up beyond {1.25 * sfo:,.0f}. Next: b = " in outcome.out
    assert re.search(r"^adam lr=0.1: least K·b at b = 32; ", outcome.out, re.MULTILINE)
    spent = sum(len(losses) * size for (_, size, _), (_, _, losses) in found.items())
    last = outcome.out.splitlines()[-1]
    assert last.startswith(f"The search took {len(found)} runs, {spent:,} gradients, ")
    assert last.endswith("; no run was finished before.")


def test_what_a_search_gave_up_is_stored_told_and_trained_on_by_a_grid(cli, tmp_path, trained):
    arguments = [*SEARCH, "batch_size=32,512,1024", f"output_dir={tmp_path}"]
    outcome = cli(*arguments)
    assert outcome.code == 0, outcome.err
    given_up = [size for size, status in statuses(tmp_path).items() if status is Status.ABANDONED]
    assert given_up
    least = min(
        steps * size
        for (_, size, _), (_, steps, _) in stored(tmp_path).items()
        if steps is not None
    )
    for (_, size, _), (status, _, losses) in stored(tmp_path).items():
        if status is Status.ABANDONED:
            chunk = max(size, 512)
            assert 1.25 * least < len(losses) * size <= 1.25 * least + chunk
            assert f"{size} (SFO > {len(losses) * size:,})" in outcome.out
    again = cli(*arguments)
    assert again.code == 0 and len(trained) == len(stored(tmp_path))
    assert "Round" not in again.out and "runs and" in again.out.splitlines()[-1]
    assert again.out.splitlines()[-1].startswith("The search took 0 runs, 0 gradients, ")
    before = len(trained)
    grid = cli(*GRID, "batch_size=32,512,1024", f"output_dir={tmp_path}")
    assert grid.code == 0 and "abandoned" not in grid.out
    assert set(trained[before:]) >= {(size, 0) for size in given_up}
    assert "resuming from" in grid.out and "starts again" not in grid.out
    assert set(statuses(tmp_path).values()) == {Status.REACHED}
    fresh = tmp_path / "fresh"
    assert cli(*GRID, "batch_size=32,512,1024", f"output_dir={fresh}").code == 0
    assert stored(tmp_path) == stored(fresh)


def test_runs_of_a_grid_count(cli, tmp_path, trained):
    assert cli(*GRID, "batch_size=16,32,64", f"output_dir={tmp_path}").code == 0
    before = len(trained)
    outcome = cli(*SEARCH, "batch_size=16,32,64", f"output_dir={tmp_path}")
    assert outcome.code == 0 and trained[before:] == []
    assert "3 runs and " in outcome.out and " gradients were finished before" in outcome.out
    assert "adam lr=0.1: use b = 32" in outcome.out
    more = cli(*SEARCH, f"output_dir={tmp_path}")  # a wider range, in which nothing new is worth it
    assert more.code == 0 and trained[before:] == []


@pytest.mark.parametrize("loss", [1.0, 0.5])
def test_results_answer_the_search_however_it_came_to_know(cli, tmp_path, loss):
    """A looser threshold is answered by stored losses, a stricter one perhaps by giving up."""
    assert cli(*GRID, "stop.loss=0.7", "batch_size=32,1024", f"output_dir={tmp_path}").code == 0
    search = [*SEARCH, f"stop.loss={loss}", "batch_size=16,32,1024", f"output_dir={tmp_path}"]
    outcome = cli(*search)
    assert outcome.code == 0, outcome.err
    results = [read_run(path.parent).result for path in tmp_path.glob("*/*/result.json")]
    assert {result.threshold for result in results} == {loss}
    assert {result.status for result in results} <= {Status.REACHED, Status.ABANDONED}
    assert (Status.ABANDONED in {result.status for result in results}) == (loss == 0.5)
    study, lines = read(tmp_path / "digits_tiny")
    assert lines == [] and study.request.threshold == loss


def test_gradients_are_counted_once_and_all_that_were_computed(cli, tmp_path, monkeypatch):
    computed, batch_end = [], TrajectoryRecorder.on_train_batch_end

    def counting(self, trainer, module, outputs, *rest):
        computed.append(sum(outputs["size"]))
        batch_end(self, trainer, module, outputs, *rest)

    monkeypatch.setattr(TrajectoryRecorder, "on_train_batch_end", counting)
    thresholds = "stop.loss=0.8,0.6"  # whose runs are the same
    outcome = cli(*SEARCH, "batch_size=32,64,128", thresholds, f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    told = re.search(r"^The search took (\d+) runs, ([\d,]+) gradients", outcome.out, re.M)
    runs, gradients = int(told[1]), int(told[2].replace(",", ""))
    assert runs == len(stored(tmp_path)) and "anew" not in outcome.out
    assert sum(computed) <= gradients <= 1.1 * sum(computed)  # an epoch's last batch may be short
    again = cli(*SEARCH, "batch_size=32,64,128", thresholds, f"output_dir={tmp_path}")
    assert f"{runs} runs and {gradients:,} gradients were finished before" in again.out


def test_a_round_fills_the_workers_in_turns(monkeypatch):
    monkeypatch.setattr(search_sweep, "run_directory", lambda cfg: cfg)
    sweep = SearchSweep.__new__(SearchSweep)

    def combination(name, threshold, *sizes):
        cells = [(size, 0) for size in sizes]
        return SimpleNamespace(
            threshold=threshold,
            propose=lambda count: cells[:count],
            configs={cell: f"{name}{cell[0]}" for cell in cells},
        )

    def dealt(workers, *combinations):
        sweep.concurrency = Concurrency(workers, "")
        return [each.configs[cell] for each, cell in sweep._deal(list(combinations))]

    many, one = combination("many", 0.2, 4, 8, 16), combination("one", 0.2, 4)
    assert dealt(3, many, one) == ["many4", "one4", "many8"]
    assert dealt(9, many, one) == ["many4", "one4", "many8", "many16"]
    assert dealt(1, many, one) == ["many4", "one4"]
    # What a stricter threshold trains answers a looser one.
    loose, strict = combination("same", 0.5, 4, 8), combination("same", 0.1, 8, 16)
    assert dealt(2, loose, strict) == ["same8", "same4"]


def test_every_combination_of_the_other_keys_is_searched(cli, tmp_path):
    outcome = cli(
        *SEARCH, "batch_size=32,64,128", "optimizer.lr=0.1,0.03", "stop.loss=0.8,0.6",
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "4 searches, 1 at a time" in outcome.out
    assert {variant for variant, _, _ in stored(tmp_path)} == {"adam lr=0.1", "adam lr=0.03"}
    for name in ("adam lr=0.1", "adam lr=0.03"):
        for loss in ("0.8", "0.6"):
            assert re.search(
                rf"^{name} \(.*stop\.loss={loss}.*\): least K·b at b = ", outcome.out, re.M
            )
    assert len(list((tmp_path / "digits_tiny" / "_search").iterdir())) == 4


def test_several_seeds_are_used_where_they_tell(cli, tmp_path, trained):
    outcome = cli(*SEARCH, "batch_size=16,32,64", "seed=0,1,2", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert "seeds 0, 1, 2" in outcome.out and re.search(r"Next: b = \d+ seed [12]\.", outcome.out)
    assert len(set(trained)) == len(trained) and len({seed for _, seed in trained}) > 1
    again = cli(*SEARCH, "batch_size=16,32,64", "seed=0,1,2", f"output_dir={tmp_path}")
    assert again.code == 0 and len(set(trained)) == len(trained)


def test_several_at_a_time(cli, tmp_path):
    outcome = cli(*SEARCH, "jobs=2", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert "a search, 2 at a time (jobs=2)" in outcome.out
    assert re.search(r"Next: b = \d+, b = \d+\.", outcome.out)
    assert "adam lr=0.1: use b = 32" in outcome.out


def test_two_searches_at_once_share_their_runs(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), *SEARCH, "batch_size=16,32,64,128"]
    searches = [
        subprocess.Popen(
            [*command, f"output_dir={tmp_path}"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [search.communicate()[0] for search in searches]
    assert [search.returncode for search in searches] == [0, 0], outputs
    assert all("adam lr=0.1: use b = 32" in output for output in outputs)
    runs = stored(tmp_path)
    trained = re.findall(r"b=(\d+): (?:reached|abandoned) [^\n]*; round", "".join(outputs))
    assert sorted(map(int, trained)) == sorted(size for _, size, _ in runs), outputs


def test_a_run_that_reaches_lowers_the_bound_for_those_under_way(cli, tmp_path, monkeypatch):
    """What listens is called while jobs run (test_board.py)."""
    seen = []

    def launch(self, configs, concurrency, listeners, part, sfo_limits):
        found = []
        for overrides, cfg in configs.items():
            limit = sfo_limits[overrides]
            found.append(run(cfg, sweep_job(sfo_limit_file=str(limit.path))))
            for listener in listeners:
                listener()
            seen.append((found[-1].sfo, limit.read()))
        return found

    monkeypatch.setattr(SearchSweep, "launch", launch)
    assert cli(*SEARCH, f"output_dir={tmp_path}").code == 0
    reached = []
    for sfo, bound in seen:
        reached += [sfo] if sfo is not None else []
        assert bound == 1.25 * min(reached)


@pytest.mark.parametrize("steps", [1, 40])
def test_an_interrupted_search_ends_as_if_nothing_had_happened(cli, tmp_path, monkeypatch, steps):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    expected = cli(*SEARCH, f"output_dir={undisturbed}")
    with monkeypatch.context() as patch:
        interrupt_after(patch, steps)
        assert cli(*SEARCH, f"output_dir={disturbed}").code == 143
    outcome = cli(*SEARCH, f"output_dir={disturbed}")
    assert outcome.code == 0, outcome.err
    assert stored(disturbed) == stored(undisturbed)
    assert answer_of(outcome.out) == answer_of(expected.out)


@pytest.mark.parametrize("point", [12, 40])
def test_a_killed_search_ends_as_if_nothing_had_happened(cli, forks, tmp_path, point):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    arguments = [*SEARCH, "batch_size=32,512,1024"]
    expected = cli(*arguments, f"output_dir={undisturbed}")
    assert ran(forks, arguments, disturbed, kill_at=point).code == -9
    outcome = cli(*arguments, f"output_dir={disturbed}")
    assert outcome.code == 0, outcome.err
    assert stored(disturbed) == stored(undisturbed)
    assert answer_of(outcome.out) == answer_of(expected.out)


def answer_of(out: str) -> list[str]:
    """The table and the answer, without times."""
    told = out[out.index("optimizer ") : out.index("Runs: ")].splitlines()
    timed = ("Wall-clock", " as fast", "faster", "the largest within")
    lines = [line for line in told if not any(word in line for word in timed)]
    return [re.sub(r"(, )?[\d.,]+ (s|min)\b", "", line) for line in lines]


def test_runs_given_up_too_soon_go_on_when_further_seeds_raise_the_limit(cli, tmp_path):
    """The first seed is lucky where K·b is least."""
    asked = ["stop.rule=middle", "stop.window=200", "stop.loss=0.25", "seed=14,15"]
    outcome = cli(*SEARCH, *asked, f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert "resuming from" in outcome.out
    runs = [read_run(path.parent).result for path in tmp_path.glob("*/*/result.json")]
    reached = {}
    for result in runs:
        if result.sfo is not None:
            reached.setdefault(result.batch_size, []).append(result.sfo)
    least = min(np.median(sfo) for sfo in reached.values())
    assert 1.25 * min(min(sfo) for sfo in reached.values()) < least
    given_up = [result for result in runs if result.status is Status.ABANDONED]
    assert given_up and all(result.sfo_exceeded > 1.25 * least for result in given_up)


@pytest.mark.parametrize(("rule", "steps"), [("window", 22), ("middle", 24)])
def test_a_run_is_given_up_when_its_k_is_sure_to_be_too_large(bounded, rule, steps):
    """By the rule `middle` half a window later: 8 batches of 256 are 3 steps ahead."""
    rest = ["stop.loss=1e-9", "stop.window=2000", "batch_size=256", f"stop.rule={rule}"]
    cfg, job = bounded(5121, *rest)
    result = run(cfg, job)
    assert (result.status, result.steps_run) == (Status.ABANDONED, steps)
    assert result.sfo_exceeded == (steps - (3 if rule == "middle" else 0)) * 256 > 5121
    assert run(cfg, job) == result  # asked again, it is known


# A learning rate for each batch size.

TUNED = [
    *SEARCH, "batch_size=16,32,64", "lr_scaling=tuned", "lr_tuning=[0.1,0.3,1]", "stop.loss=0.8"
]  # fmt: skip


def gradients_told(out: str) -> tuple[int, int]:
    """All gradients of a search, and those of learning rates that did not win."""
    last = out.splitlines()[-1]
    told = re.match(
        r"The search took \d+ runs?(?: of \d+)?, ([\d,]+) gradients \(([\d,]+) on tuning\)", last
    )
    return tuple(int(each.replace(",", "")) for each in told.groups())


def test_each_batch_size_gets_its_best_learning_rate(cli, tmp_path, trained):
    outcome = cli(*TUNED, f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert re.search(r"^  adam lr tuned: .* Next: b = 16 lr 0\.1\.$", outcome.out, re.M)
    assert outcome.out.count("adam lr tuned: Nothing was run yet.") == 1  # before the first run
    assert "adam lr tuned: The first learning rate is still being chosen." in outcome.out
    least = r"^adam lr tuned: least K·b at b = (\d+); .*Best learning rates: (.*)\.$"
    (answer,) = re.findall(least, outcome.out, re.MULTILINE)
    best = {int(b): float(lr) for lr, b in re.findall(r"([\d.]+) at b = (\d+)", answer[1])}
    runs = [read_run(path.parent).result for path in tmp_path.glob("*/*/result.json")]
    sfo = {(run.batch_size, run.lr): run.sfo for run in runs}
    assert {b for b, _ in sfo} == set(best) and len(runs) == len(trained)
    for b, lr in best.items():
        assert sfo[b, lr] == min(found for (size, _), found in sfo.items() if size == b and found)
        assert {0.01, 0.03, 0.1} - {rate for size, rate in sfo if size == b} <= {0.01}
    least = min(best, key=lambda b: sfo[b, best[b]])
    assert int(answer[0]) == least
    spent = {(run.batch_size, run.lr): run.steps_run * run.batch_size for run in runs}
    tuning = sum(each for (b, lr), each in spent.items() if lr != best[b])
    assert gradients_told(outcome.out) == (sum(spent.values()), tuning)

    again = cli(*TUNED, f"output_dir={tmp_path}")  # nothing is trained twice
    assert again.code == 0 and len(runs) == len(trained)
    assert answer_of(again.out) == answer_of(outcome.out)


def test_a_tuned_search_is_interrupted_and_goes_on(cli, tmp_path, monkeypatch):
    whole = cli(*TUNED, f"output_dir={tmp_path / 'whole'}")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 40)
        assert cli(*TUNED, f"output_dir={tmp_path / 'parts'}").code == 143
    assert cli(*TUNED, f"output_dir={tmp_path / 'parts'}").code == 0
    assert stored(tmp_path / "parts") == stored(tmp_path / "whole")
    assert whole.code == 0


def test_a_budget_includes_what_tuning_costs(cli, tmp_path, trained):
    outcome = cli(*TUNED, "hydra.sweeper.budget.runs=2", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert len(trained) == 2 and {size for size, _ in trained} == {16}
    assert "b* is not known yet for adam lr tuned." in outcome.out


# Budgets.


def test_a_budget_of_runs(cli, tmp_path, trained):
    outcome = cli(*SEARCH, "hydra.sweeper.budget.runs=2", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert len(trained) == 2 and "Round 2, after 1 run of 2, " in outcome.out
    assert (
        "The budget is used up (hydra.sweeper.budget.runs=2): "
        "b* is not known yet for adam lr=0.1. " in outcome.out
    )
    assert outcome.out.splitlines()[-1].startswith("The search took 2 runs of 2, ")
    assert cli(*SEARCH, f"output_dir={tmp_path}").code == 0
    assert len(set(trained)) == len(trained)


def test_a_budget_of_runs_in_one_round(cli, tmp_path, trained):
    arguments = [*SEARCH, "batch_size=32,64", "optimizer.lr=0.1,0.2,0.3"]
    outcome = cli(*arguments, "hydra.sweeper.budget.runs=2", f"output_dir={tmp_path}")
    assert outcome.code == 0 and len(trained) == 2
    names = "adam lr=0.1, adam lr=0.2, adam lr=0.3"
    assert f"b* is not known yet for {names}." in outcome.out


def test_a_budget_of_gradients(cli, tmp_path):
    outcome = cli(*SEARCH, "hydra.sweeper.budget.gradients=1000", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    ((_, size, _), (_, _, losses)) = next(iter(stored(tmp_path).items()))
    assert len(stored(tmp_path)) == 1
    assert f"The search took 1 run, {len(losses) * size:,} gradients of 1,000, " in outcome.out
    assert "The budget is used up (hydra.sweeper.budget.gradients=1000)" in outcome.out


def test_a_budget_of_hours(cli, tmp_path):
    outcome = cli(*SEARCH, "hydra.sweeper.budget.hours=1e-9", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert "The budget is used up (hydra.sweeper.budget.hours=1e-09)" in outcome.out
    assert stored(tmp_path / "out") == {}


def test_what_is_known_costs_nothing(cli, tmp_path, trained):
    assert cli(*GRID, f"output_dir={tmp_path}").code == 0
    trained.clear()
    outcome = cli(*SEARCH, "hydra.sweeper.budget.runs=1", f"output_dir={tmp_path}")
    assert outcome.code == 0 and trained == [] and "budget is used up" not in outcome.out


# What does not work out.


def test_a_threshold_that_no_run_reaches(cli, tmp_path):
    outcome = cli(
        *SEARCH, "stop.loss=1e-9", "stop.max_epochs=1", "batch_size=256,512,1024",
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 1
    found = [read_run(path.parent).result for path in tmp_path.glob("*/*/result.json")]
    loss, size = min((run.loss, run.batch_size) for run in found)
    assert outcome.err == (
        "error: stop.loss=1e-09: no run of the search reached it; the closest was "
        f"{loss:.3g} at b = {size} (adam lr=0.1)\n"
    )


def test_a_budget_does_not_hide_that_no_run_can_reach_it(cli, tmp_path):
    outcome = cli(
        *SEARCH, "stop.loss=1e-9", "stop.max_epochs=1", "batch_size=256,512,1024",
        "hydra.sweeper.budget.runs=2", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert len(stored(tmp_path)) == 2  # the rest is further off
    assert outcome.code == 1 and "budget is used up" not in outcome.out
    assert outcome.err.startswith("error: stop.loss=1e-09: no run of the search reached it")


def test_one_seed_that_failed_leaves_its_batch_size_in(cli, tmp_path, monkeypatch):
    train = cbs_lightning.training.run.train

    def fails(cfg, *rest):
        if (cfg.batch_size, cfg.seed) == (32, 1):
            raise RuntimeError("the roof fell in")
        return train(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", fails)
    outcome = cli(*SEARCH, "batch_size=16,32,64", "seed=0,1,2", f"output_dir={tmp_path}")
    assert outcome.code == 1
    assert re.search(r"^adam lr=0.1: least K·b at b = 32; ", outcome.out, re.MULTILINE)
    assert ("adam lr=0.1", 32, 2) in stored(tmp_path)


def test_a_failed_run_is_not_tried_for_ever(cli, tmp_path, monkeypatch):
    train, tried = cbs_lightning.training.run.train, []

    def fails(cfg, *rest):
        tried.append(cfg.batch_size)
        if cfg.batch_size == 32:
            raise RuntimeError("the roof fell in")
        return train(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", fails)
    outcome = cli(*SEARCH, "batch_size=16,32,64", f"output_dir={tmp_path}")
    assert outcome.code == 1
    assert sorted(tried) == [16, 32, 64]
    assert "failed: RuntimeError: the roof fell in" in outcome.out
    assert "adam lr=0.1: use b = 16" in outcome.out


def test_when_every_run_fails(cli, tmp_path, seed_1_fails):
    outcome = cli(*SEARCH, "seed=1", "batch_size=16,32", f"output_dir={tmp_path}")
    assert outcome.code == 1 and "Traceback" not in outcome.err
    assert outcome.err == "error: every run of the search failed\n"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["batch_size=64"], "batch_size=64: b = 64 alone is within the range"),
        (["batch_size=2048,4096"], "batch_size=2048,4096: b = 2048 alone is within the range"),
        (
            ["batch_size=4,8", "hydra.sweeper.smallest=16"],
            "batch_size=4,8: no batch size is within the range",
        ),
        (["batch_size=4,0"], "batch_size=0: must be a whole number >= 1"),
        (["batch_size=four,8"], "batch_size=four: must be a whole number >= 1"),
        (["hydra.sweeper.smallest=0"], "hydra.sweeper.smallest=0: must be a whole number >= 1"),
        (["hydra.sweeper.largest=2"], "hydra.sweeper.largest=2: must be above"),
        (
            ["hydra.sweeper.smallest=64", "hydra.sweeper.largest=8"],
            "hydra.sweeper.largest=8: must be above hydra.sweeper.smallest=64",
        ),
        (["hydra.sweeper.smallest=1798"], "hydra.sweeper.smallest=1798: the data set has 1,797"),
        (["hydra.sweeper.octaves=0"], "hydra.sweeper.octaves=0: must be a number from 0.1 to 16"),
        (["hydra.sweeper.octaves=2000"], "hydra.sweeper.octaves=2000: must be a number from 0.1"),
        (["+hydra.sweeper.range=4"], "+hydra.sweeper.range=4: no such key; allowed: hydra.sweeper"),
        (
            ["+hydra.sweeper.budget.days=4"],
            "+hydra.sweeper.budget.days=4: no such key; allowed: hydra.sweeper.budget.runs",
        ),
        (
            ["lr_scaling=tuned", "optimizer.lr=0.1,0.2"],
            "lr_scaling=tuned: tries multiples of optimizer.lr itself, which cannot be swept",
        ),
        (["lr_scaling=tuned", "lr_tuning=[1,-3]"], "lr_tuning=[1,-3]: must be a list"),
        (
            ["hydra.sweeper.octaves=fine"],
            "hydra.sweeper.octaves=fine: must be a number from",
        ),
        (["hydra.sweeper.give_up=1"], "hydra.sweeper.give_up=1: must be a number > 1"),
        (["hydra.sweeper.budget.runs=0"], "hydra.sweeper.budget.runs=0: must be a whole number"),
        (["hydra.sweeper.budget.runs=-3"], "hydra.sweeper.budget.runs=-3: must be a whole number"),
        (
            ["hydra.sweeper.budget.gradients=0"],
            "hydra.sweeper.budget.gradients=0: must be a number",
        ),
        (["hydra.sweeper.budget.hours=-1"], "hydra.sweeper.budget.hours=-1: must be a number > 0"),
        (["hydra.sweeper.budget.hours=.inf"], "hydra.sweeper.budget.hours="),
        (["hydra.sweeper.budget=3"], "hydra.sweeper.budget=3: must be a group of keys"),
        (["hydra.sweeper.octave=2"], "hydra.sweeper.octave=2: no such key"),
        (
            ["hydra/sweeper=critical"],
            "hydra/sweeper=critical: did you mean hydra/sweeper=critical_batch?",
        ),
        (
            ["hydra/launcher=slum"],
            "hydra/launcher=slum: did you mean hydra/launcher=slurm?",
        ),
        (["optimizer.lr=-1"], "optimizer.lr=-1: must be a number > 0"),
        (["jobs=0"], "jobs=0: must be a whole number >= 1"),
        (["stop.loss=0,1"], "stop.loss=0: must be a number > 0"),
    ],
)
def test_mistakes_take_one_line_and_leave_nothing(cli, tmp_path, overrides, told):
    given = [each for each in TINY if not each.startswith("batch_size")]
    output = tmp_path / "out"
    outcome = cli("-m", *given, "hydra/sweeper=critical_batch", *overrides, f"output_dir={output}")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {told}"), outcome.err
    assert outcome.err.count("\n") == 1 and outcome.out == ""
    assert not output.exists()


def test_an_output_directory_that_is_none_takes_one_line(cli, tmp_path):
    (tmp_path / "file").touch()
    outcome = cli(*SEARCH, f"output_dir={tmp_path / 'file'}")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"error: output_dir={tmp_path / 'file'}: ")
    assert "is not a directory; nothing was written" in outcome.err


def test_the_largest_is_held_against_the_smallest_that_is_named():
    assert SearchSettings(largest=4).batch_sizes([1, 2, 3, 4, 5], 100) == [1, 2, 3, 4]
    with pytest.raises(UserError, match=r"largest=2: must be above"):
        SearchSettings(largest=2).batch_sizes(None, 100)


def test_a_search_needs_m(cli, tmp_path):
    outcome = cli(*TINY, "hydra/sweeper=critical_batch", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and outcome.err == (
        "error: hydra/sweeper=critical_batch: a search needs -m\n"
    )
    assert not (tmp_path / "out").exists()


# The range.


def test_the_range_is_of_powers_of_two_up_to_the_data_set():
    powers = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert SearchSettings().batch_sizes(None, 1797) == powers
    assert SearchSettings(octaves=3).batch_sizes(None, 1797) == powers
    assert SearchSettings().batch_sizes(None, 1024) == powers
    assert SearchSettings(smallest=6, largest=50).batch_sizes(None, 1797) == [6, 12, 24, 48]
    assert SearchSettings(largest=4096).batch_sizes(None, 1797) == [*powers, 2048]
    assert SearchSettings(octaves=0.5, largest=16).batch_sizes(None, 1797) == [4, 6, 8, 11, 16]


def test_batch_sizes_that_are_named_are_the_range():
    assert SearchSettings().batch_sizes([48, 3, 3], 1797) == [3, 48]
    assert SearchSettings().batch_sizes([512, 2048, 4096], 1797) == [512, 2048]
    assert SearchSettings(smallest=8, largest=64).batch_sizes([4, 8, 64, 128], 1797) == [8, 64]
    with pytest.raises(UserError, match="batch_size=4: b = 4 alone"):
        SearchSettings().batch_sizes([4], 1797)


def test_the_settings_are_those_of_the_policy():
    text = Path("conf/hydra/sweeper/critical_batch.yaml")
    cfg = OmegaConf.load(Path(__file__).parents[1] / text)
    policy, settings = Search((4, 8)), SearchSettings()
    assert cfg.octaves == policy.octaves == settings.octaves
    assert cfg.give_up == policy.give_up == settings.give_up
    assert Budget(**cfg.budget) == settings.budget


# Figures and words.


@pytest.fixture
def searched(tmp_path):
    make_searched_study(tmp_path / "searched")
    study, _ = read(tmp_path / "searched")
    return study


@pytest.mark.parametrize(
    ("quantity", "at"),
    [
        ("steps", lambda run: run.steps_run),
        ("sfo", lambda run: run.steps_run * run.batch_size),
        ("seconds", lambda run: 0.5 * run.steps_run),
    ],
)
def test_abandoned_runs_are_drawn_as_lower_bounds(searched, quantity, at):
    figure = draw("searched", searched.curves, quantity)
    arrows = [line for line in figure.axes[0].get_lines() if line.get_marker() is ARROW]
    drawn = sorted(place for line in arrows for place in zip(*line.get_data(), strict=True))
    given_up = [run.result for run in searched.runs if run.result.status is Status.ABANDONED]
    assert drawn == sorted((run.batch_size, at(run)) for run in given_up) and len(drawn) == 3
    low, high = figure.axes[0].get_ylim()
    assert all(low < value < high for _, value in drawn)
    crosses = [line for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[64]]
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert {"abandoned: a lower bound", "threshold not reached"} <= set(labels)


def test_abandoned_runs_are_told_as_such(searched, tmp_path):
    adam, sgd = (recommend(curve) for curve in searched.curves)
    assert "Abandoned by the search at b = 4 (SFO > 13,000), 128 (SFO > 13,312)." in adam.caveats
    assert not any("Not reached" in told or "too soon" in told for told in adam.caveats)
    assert "Not reached at b = 64." in sgd.caveats
    assert "Abandoned by the search at b = 4 (SFO > 31,000)." in sgd.caveats
    assert (adam.least_sfo.batch_size, sgd.least_sfo.batch_size) == (16, 8)
    assert "smallest tried" not in " ".join(sgd.summary_lines())
    write_summary(tmp_path, searched.rows)
    rows = (tmp_path / "summary.csv").read_text().splitlines()
    assert sum(",abandoned,abandoned," in row and ",1.0,epoch," in row for row in rows) == 3


def test_a_run_given_up_before_the_least_sfo_tells_nothing_yet(tmp_path):
    study = tmp_path / "searched"
    for batch_size, epochs in ((8, 9), (16, 8), (32, 10)):
        make_run(study, "adam", batch_size, epochs)
    make_run(study, "adam", 4, 2, abandoned=True)
    make_run(study, "adam", 64, 3, reached=False)
    found, _ = read(study)
    (curve,) = found.curves
    told = recommend(curve).caveats
    assert "b = 4 stopped at an SFO of 2,000, too soon to tell." in told
    assert "Run next: batch_size=4." in told  # which trains on


def test_the_fit_takes_abandoned_runs_as_censored(searched):
    data = searched.curves[0].measurements()
    censored = data.observations.censored
    assert sorted(data.batch_sizes[censored]) == [4, 128]
    np.testing.assert_allclose(sorted(np.exp(data.observations.log_steps[censored])), [104, 3250])
