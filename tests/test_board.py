"""Jobs tell how far they are, whoever wants to know is called, and the time left is estimated."""

import json
import math
import re
import threading
import time
from dataclasses import replace

import pytest
from joblib.externals.loky.process_executor import TerminatedWorkerError

from cbs_lightning.callbacks.progress import Progress
from cbs_lightning.results.result import Status
from cbs_lightning.sweep.job import SweepJob
from cbs_lightning.sweep.live import table as live_table
from cbs_lightning.sweep.live import watcher
from cbs_lightning.sweep.live.board import LINES, Board, JobState, Lines, Phase
from cbs_lightning.sweep.live.time_left import time_left
from cbs_lightning.sweep.live.watcher import watching
from cbs_lightning.sweep.sweep import Sweep
from tests.conftest import TINY


def waiting(job: int, variant: str = "adam", batch_size: int = 64) -> JobState:
    return JobState(job, variant, batch_size, seed=0, threshold=0.1)


def finished(seconds: float, job: int = 1, status: Status = Status.REACHED, **kind) -> JobState:
    state = waiting(job, **kind)
    return replace(
        state, phase=Phase.FINISHED, status=status, began=1000.0, updated=1000.0 + seconds
    )


def running(seconds: float, left: float | None, job: int = 2, **kind) -> JobState:
    state = waiting(job, **kind)
    return replace(
        state, phase=Phase.RUNNING, began=1000.0, updated=1000.0 + seconds, seconds_left=left
    )


def test_what_a_job_tells_is_what_others_read(tmp_path):
    board, other = Board(tmp_path), Board(tmp_path)
    board.plan([waiting(1), waiting(2, "sgd lr=0.1", 4)])
    assert other.jobs() == [waiting(1), waiting(2, "sgd lr=0.1", 4)]
    board.update(2, phase=Phase.RUNNING, began=5.0)
    board.update(2, steps=7, loss=0.5)
    first, second = other.jobs()
    assert first == waiting(1)
    assert (second.phase, second.began, second.steps, second.loss) == (Phase.RUNNING, 5.0, 7, 0.5)
    assert (second.variant, second.batch_size) == ("sgd lr=0.1", 4) and second.updated > 5.0
    board.update(2, phase=Phase.FINISHED, status=Status.DIVERGED, loss=math.nan)
    second = other.jobs()[1]
    assert second.phase is Phase.FINISHED and second.status is Status.DIVERGED
    assert second.loss is not None and math.isnan(second.loss)


def test_a_board_that_cannot_be_written_or_read_does_no_harm(tmp_path):
    board = Board(tmp_path / "gone")
    board.plan([waiting(1)])
    board.update(1, steps=3)
    assert board.jobs() == [] and board.new_lines() == []
    board = Board(tmp_path)
    board.plan([waiting(1)])
    assert board.jobs() == [waiting(1)]
    (tmp_path / "1.json").write_text("{")
    board.update(1, steps=3)
    assert board.jobs() == [waiting(1)]


def test_lines_are_read_once_and_whole(tmp_path):
    board = Board(tmp_path)
    assert not board.live
    board.go_live()
    assert board.live and board.new_lines() == []
    with (tmp_path / LINES).open("a") as said:
        print("one\ntwo\nthr", file=said, end="", flush=True)
        assert board.new_lines() == ["one", "two"]
        print("ee", file=said, flush=True)
        assert board.new_lines() == ["three"]
    assert board.new_lines() == []


def test_what_cannot_be_printed_is_lost(tmp_path):
    with Lines(tmp_path / "gone" / LINES) as said:
        print("one", file=said, flush=True)
    with Lines(tmp_path / LINES) as said:
        print("two\nthree\nfo", file=said, end="")
        assert (tmp_path / LINES).read_text() == "two\nthree\n"
    assert (tmp_path / LINES).read_text() == "two\nthree\nfo\n"


@pytest.mark.parametrize(
    ("jobs", "workers", "expected"),
    [
        ([waiting(1), waiting(2)], 1, None),
        ([running(3, 40.0), waiting(3)], 1, None),  # nobody knows about job 3
        ([running(3, None)], 1, None),
        ([running(3, 40.0)], 1, 40.0),
        ([finished(10), waiting(2), waiting(3)], 1, 20.0),
        ([finished(10), waiting(2), waiting(3)], 2, 10.0),
        ([finished(10), *(waiting(i) for i in (2, 3, 4))], 2, 15.0),
        ([finished(10), waiting(2)], 4, 10.0),  # one job is one worker's
        ([finished(10), running(4, 50.0)], 1, 6.0),
        ([finished(10), running(4, 5.0)], 1, 5.0),  # its budget ends sooner
        ([finished(10), running(14, 50.0)], 1, 50.0),  # the example does not hold
        ([finished(10), running(4, None)], 1, 6.0),
        # The nearest batch size, on a log scale; of two, the mean.
        ([finished(10, batch_size=8), finished(30, batch_size=256), waiting(3)], 1, 30.0),
        ([finished(10, batch_size=32), finished(30, batch_size=128), waiting(3)], 1, 20.0),
        # The same variant, however far its batch size is.
        ([finished(10, variant="sgd"), finished(30, batch_size=4), waiting(3)], 1, 30.0),
        ([finished(10, variant="sgd"), waiting(3)], 1, 10.0),
        # What was known already, failed or was interrupted says nothing about time.
        ([replace(finished(1), known=True), waiting(3)], 1, None),
        ([finished(1, status=Status.FAILED), waiting(3)], 1, None),
        ([finished(1, status=Status.INTERRUPTED), waiting(3)], 1, None),
        ([finished(10, status=Status.EXHAUSTED), waiting(3)], 1, 10.0),
        ([finished(10)], 1, 0.0),
    ],
)
def test_the_time_left_for_a_sweep(jobs, workers, expected):
    _, left = time_left(jobs, workers)
    assert (left.seconds if left else None) == expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "jobs",
    [
        [finished(10), running(4, 68.0)],
        [finished(10), running(4, 68.0), running(14, 68.0, job=3), waiting(4)],
        [running(4, 68.0), running(4, 12.0, job=3)],
        [running(4, 68.0), running(4, None, job=3), waiting(4)],
    ],
)
def test_no_run_takes_longer_than_its_sweep(jobs, workers):
    runs, sweep = time_left(jobs, workers)
    for left in runs.values():
        assert sweep is None or left.seconds <= sweep.seconds


def test_what_is_left_is_at_most_a_budget_or_about_what_others_took():
    runs, sweep = time_left([running(4, 68.0, job=1), running(4, 12.0)], 2)
    assert list(map(str, [*runs.values(), sweep])) == [
        "at most 68 s left", "at most 12 s left", "at most 68 s left"
    ]  # fmt: skip
    _, sweep = time_left([running(4, 0.6)], 1)
    assert str(sweep) == "less than 1 s left"
    runs, sweep = time_left([finished(16), running(4, 68.0), running(20, 30.0, job=3)], 2)
    assert list(map(str, [*runs.values(), sweep])) == [
        "about 12 s left", "at most 30 s left", "at most 30 s left"
    ]  # fmt: skip


def reports(losses: dict[int, float], seconds_per_step: float, **kind) -> list[JobState]:
    """What a job of 30 epochs of 100 steps tells after each of some numbers of steps."""
    return [
        replace(
            running(steps * seconds_per_step, (3000 - steps) * seconds_per_step, **kind),
            steps=steps, max_steps=3000, steps_per_epoch=100, first_loss=2.4, loss=loss,
            threshold=0.2,
        )
        for steps, loss in losses.items()
    ]  # fmt: skip


SLOWLY = {10: 2.3, 100: 2.0, 300: 1.5, 600: 1.1, 980: 0.802, 1500: 0.5, 2000: 0.3, 2400: 0.23}


@pytest.mark.parametrize("seconds_per_step", [0.02, 0.1])
def test_a_run_slower_than_its_example_does_not_contradict_itself(seconds_per_step):
    """The example took 7 epochs; this one is at a loss of 0.8 after 10, and takes 26."""
    example = replace(finished(33, batch_size=16), steps=350, steps_per_epoch=50)
    told = []
    for job in reports(SLOWLY, seconds_per_step, batch_size=8):
        runs, sweep = time_left([example, job, waiting(3, batch_size=4)], 1)
        assert sweep is not None and sweep.seconds == runs[2].seconds + 33
        assert sweep.at_most == runs[2].at_most
        told.append(runs[2])
    assert [each.at_most for each in told] == [*[False] * 5, *[True] * 3]
    steps_left = [each.seconds / seconds_per_step for each in told]
    assert steps_left == pytest.approx([690, 695, 780, 1138, 1241, 1500, 1000, 600], abs=1)
    ends = [steps + left for steps, left in zip(SLOWLY, steps_left, strict=True)]
    assert ends == sorted(ends)


def test_a_run_that_is_nearly_done_by_its_example_is_not_said_to_be():
    """It takes 300 steps as its example did, or somewhat more."""
    example = replace(finished(30), steps=300, steps_per_epoch=100)
    jobs = reports({150: 1.0, 290: 0.21, 300: 0.2, 400: 0.19, 650: 0.21}, 0.1)
    left = [time_left([example, job], 1)[0][2] for job in jobs]
    assert [each.seconds for each in left] == pytest.approx([21.3, 5.8, 6, 8, 235], abs=0.1)
    assert [each.at_most for each in left] == [False, False, False, False, True]
    none = replace(jobs[1], loss=5.0)  # nothing is known but the example
    assert time_left([example, none], 1)[0][2].at_most


def test_a_job_says_the_same_of_itself_as_its_sweep_does(tmp_path):
    Board(tmp_path).plan([finished(10), running(4, 68.0)])
    job = SweepJob(2, 2, 1, started=0.0, board_directory=str(tmp_path))
    progress = Progress(8, 90, 10, 0.1, first_loss=2.0, loss=1.0, seconds_left=5.0)
    Board(tmp_path).update(2, began=time.time())
    assert (
        job.time_left(progress) == "about 5.0 s left for this run, about 5.0 s left for the sweep"
    )
    nowhere = SweepJob(2, 2, 1, started=0.0, board_directory=str(tmp_path / "gone"))
    assert nowhere.time_left(progress) == "at most 5.0 s left for this run"


def test_a_slow_listener_does_not_slow_others_down(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "FINISHED_SECONDS", 0.01)
    monkeypatch.setattr(watcher, "LARGEST_SHARE", 1e-3)
    board = Board(tmp_path)
    board.plan([waiting(1), waiting(2), waiting(3)])
    calls, called = {"slow": 0, "quick": 0}, threading.Event()

    def slow():
        calls["slow"] += 1
        time.sleep(0.05)

    def quick():
        calls["quick"] += 1
        called.set()

    with watching(board, on_finished=[slow, quick]):
        for job in (1, 2):
            called.clear()
            board.update(job, phase=Phase.FINISHED, status=Status.REACHED)
            assert called.wait(20)
        assert calls == {"slow": 1, "quick": 2}


def test_who_wants_to_know_of_finished_jobs_is_called(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watcher, "FINISHED_SECONDS", 0.01)
    board = Board(tmp_path)
    board.plan([waiting(1), waiting(2)])
    counts, called = [], threading.Event()

    def fails():
        raise RuntimeError("no\nroom")

    def counting():
        counts.append(sum(job.phase is Phase.FINISHED for job in Board(tmp_path).jobs()))
        called.set()

    with watching(board, on_finished=[fails, counting]):
        board.update(1, phase=Phase.FINISHED, status=Status.REACHED)
        assert called.wait(60)
        board.update(2, phase=Phase.FINISHED, status=Status.REACHED)
    assert counts == [1, 2]
    assert capsys.readouterr().out == "warning: fails: RuntimeError: no room\n"
    assert not any(thread.name == "cbs-watcher" for thread in threading.enumerate())


def test_a_sweep_calls_them_also_without_a_terminal(cli, tmp_path, monkeypatch):
    calls = []
    launch = Sweep.launch

    def listened(self, configs, concurrency, listeners):
        listener = lambda: calls.append(threading.current_thread().name)  # noqa: E731
        return launch(self, configs, concurrency, [*listeners, listener])

    monkeypatch.setattr(Sweep, "launch", listened)
    outcome = cli("-m", *TINY, "stop.max_steps=2", "seed=0,1", f"output_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert calls and set(calls) == {"cbs-watcher"}


def test_without_anybody_to_call_there_is_no_thread(tmp_path):
    with watching(Board(tmp_path)):
        assert not any(thread.name == "cbs-watcher" for thread in threading.enumerate())


@pytest.fixture
def looks(monkeypatch):
    """All that a sweep's live table is asked to show, in this process and without a terminal."""
    seen = []
    monkeypatch.setattr(watcher, "in_terminal", lambda: True)
    monkeypatch.setattr(live_table.LiveTable, "show", lambda self, jobs: seen.append(jobs))
    return seen


def test_every_job_tells_how_it_ended(cli, tmp_path, looks, seed_1_fails):
    given = ["-m", *TINY, "stop.loss=2.1", "stop.max_epochs=8", f"output_dir={tmp_path}"]
    assert cli(*given, "seed=0").code == 0
    outcome = cli(*given, "seed=0,1,2", "optimizer=adam,sgd", "progress.every_seconds=0.001")
    assert outcome.code == 1
    ends = {(job.variant, job.seed): (job.status, job.known) for job in looks[-1]}
    assert all(job.phase is Phase.FINISHED for job in looks[-1])
    assert ends == {
        ("adam", 0): (Status.REACHED, True),
        ("adam", 1): (Status.FAILED, False),
        ("adam", 2): (Status.REACHED, False),
        ("sgd", 0): (Status.EXHAUSTED, False),
        ("sgd", 1): (Status.FAILED, False),
        ("sgd", 2): (Status.EXHAUSTED, False),
    }
    for job in looks[-1]:
        if job.status is Status.EXHAUSTED:
            assert job.steps == job.max_steps == 8 * job.steps_per_epoch
            assert 2.1 < job.loss < 3 and 2.1 < job.first_loss < 3
    # What jobs print comes out above the report, but for what the table tells.
    assert " adam b=256 seed=1: failed: RuntimeError: the roof fell in" in outcome.out
    assert outcome.out.index("already finished") < outcome.out.index("accuracy")
    assert "left" not in outcome.out and "so far" not in outcome.out


def test_jobs_of_a_worker_that_died_wait_or_failed(cli, tmp_path, monkeypatch, looks):
    class Dying:
        """Workers die with all that they were given."""

        def launch(self, job_overrides, initial_job_idx):
            (board,) = {
                SweepJob.parse(override.partition("=")[2].strip("'")).board_directory
                for job in job_overrides
                for override in job
                if override.startswith("sweep=")
            }
            for number in range(1, 3):
                states.append([job.phase for job in Board(tmp_path / board).jobs()])
                if len(job_overrides) == 2:
                    Board(tmp_path / board).update(number, phase=Phase.RUNNING)
            raise TerminatedWorkerError("killed")

    states: list[list[Phase]] = []
    monkeypatch.setattr(Sweep, "_launcher", lambda self, *_: Dying())
    outcome = cli("-m", *TINY, "seed=0,1", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and "a worker process died" in outcome.out
    assert states[2] == [Phase.WAITING, Phase.WAITING]  # to be run again, one by one
    assert [job.status for job in looks[-1]] == [Status.FAILED, Status.FAILED]


def test_in_a_log_lines_tell_the_time_left(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "seed=0,1", "stop.loss=1e-9", "stop.max_epochs=20",
        "progress.every_seconds=0.001", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    first = [line for line in lines if line.startswith("[1/2] adam b=256: epoch")]
    second = [line for line in lines if line.startswith("[2/2] adam b=256 seed=1: epoch")]
    assert first and all(line.endswith("left for this run") for line in first)
    left = r"((about|at most) [\d.]+ (s|min)|less than 1 s) left"
    same = re.compile(rf", (?P<run>{left}) for this run, (?P=run) for the sweep$")
    assert second and all(map(same.search, second))
    (end,) = [line for line in lines if line.startswith("[1/2] adam b=256: budget used up")]
    assert re.search(rf"; sweep [\d.]+ s so far, {left}$", end), end
    (end,) = [line for line in lines if line.startswith("[2/2] adam b=256 seed=1: budget used up")]
    assert end.endswith(" so far")
    assert "\x1b" not in outcome.out


def test_a_temporary_directory_may_have_any_name(cli, tmp_path, monkeypatch):
    odd = tmp_path / "it's, a=b [1]"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    outcome = cli("-m", *TINY, "seed=0,1", "stop.max_steps=1", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert list(odd.iterdir()) == []
    (path, _) = tmp_path.glob("out/*/*/result.json")
    assert "sweep" not in json.loads(path.read_text())["configuration"]
