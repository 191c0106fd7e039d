"""A sweep in a terminal: what is draw, and what is on a real one's screen."""

import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from cbs_lightning.console import epoch_of
from cbs_lightning.results.result import Status
from cbs_lightning.sweep.live.board import Board, JobState, Phase
from cbs_lightning.sweep.live.table import LiveTable, draw, rows_shown, shortened
from tests.conftest import TINY
from tests.forks import ran
from tests.test_signals import SLOWLY

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def waiting(job: int, variant: str = "adam", batch_size: int = 64, seed: int = 0) -> JobState:
    return JobState(job, variant, batch_size, seed, threshold=0.1)


def running(job: int, **kind) -> JobState:
    return replace(
        waiting(job, **kind), phase=Phase.RUNNING, steps=80, max_steps=600, steps_per_epoch=20,
        first_loss=2.3, loss=0.43, seconds_left=12.0, began=0.0, updated=4.0,
    )  # fmt: skip


def finished(job: int, status: Status, updated: float = 9.0, **kind) -> JobState:
    state = replace(running(job, **kind), phase=Phase.FINISHED, status=status, updated=updated)
    return replace(state, loss=0.09 if status is Status.REACHED else 1.2)


def lines_of(jobs, width=80, height=24, workers=2) -> list[str]:
    console = Console(record=True, width=width, height=height, file=StringIO())
    console.print(draw(jobs, workers, 90.0, width, height), highlight=False)
    lines = console.export_text().splitlines()
    assert len(lines) < height and max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("width", [80, 120])
def test_a_row_has_all_that_is_asked_for(width):
    again = replace(running(3, variant="sgd"), phase=Phase.WAITING)  # since its worker died
    jobs = [finished(1, Status.REACHED), running(2, batch_size=16), again]
    lines = lines_of(jobs, width)
    header = next(line for line in lines if "optimizer" in line)
    assert header.split() == ["job", "optimizer", "b", "epoch", "loss", "→", "threshold", "left"]
    (row,) = [line for line in lines if line.lstrip().startswith("2 ")]
    match = re.fullmatch(r" +2 +adam +16 +4\.0 of 30 +(━+)╸? +0\.43 → 0\.1 +≈ 1\.6 s", row)
    assert match is not None, row
    (reached,) = [line for line in lines if line.endswith("  reached")]
    share = len(match[1]) / reached.count("━")
    assert share == pytest.approx(0.535, abs=0.1)  # log(2.3 / 0.43) / log(2.3 / 0.1)
    assert row.index("≈") == header.index("left")
    (waits,) = [line for line in lines if "sgd" in line]
    assert waits.split() == ["3", "sgd", "64", "waiting"]
    assert lines[-2] == "1 of 3 jobs done · 1 reached"
    assert lines[-1] == "90 s so far · about 9.0 s left for the sweep"


def test_before_anything_is_known():
    lines = lines_of([replace(waiting(1), phase=Phase.RUNNING), waiting(2)])
    assert any(line.split()[:1] == ["1"] and line.endswith(" starting") for line in lines)
    assert lines[-2:] == ["0 of 2 jobs done", "90 s so far · … left for the sweep"]
    assert lines_of([])[0] == "0 of 0 jobs done"  # a board that could not be written


def test_a_budget_below_one_epoch_is_counted_in_steps():
    lines = lines_of([replace(running(1), steps=3, max_steps=17), running(2)])
    assert any(re.match(r" +1 +adam +64 +step 3 of 17 ", line) for line in lines)
    assert any(re.match(r" +2 +adam +64 +4\.0 of 30 ", line) for line in lines)


@pytest.mark.parametrize(
    ("steps", "max_steps", "steps_per_epoch", "expected"),
    [
        (123, 2000, 10, "epoch 12.3 of 200"),
        (21, 34, 10, "epoch 2.1 of 3.4"),
        (300, 853, 1000, "step 300 of 853"),
        (1300, 8530, 10_000, "step 1,300 of 8,530"),
        (3, 10, 10, "epoch 0.3 of 1"),
        (30, None, 10, "epoch 3.0"),
        (0, None, None, ""),
    ],
)
def test_how_far_a_run_is_reads_as_a_person_would_say_it(
    steps, max_steps, steps_per_epoch, expected
):
    assert epoch_of(steps, max_steps, steps_per_epoch) == expected


def test_several_seeds_have_a_column():
    assert "seed" not in "".join(lines_of([running(1), waiting(2)]))
    lines = lines_of([running(1), running(2, seed=12)])
    assert any(re.match(r" +2 +adam +64 +12 +4\.0 of 30 ", line) for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_long_names_leave_out_their_middle(width):
    variants = [f"adam_monotone betas=0.9,0.99{i} weight_decay=0.000{i}" for i in (1, 2)]
    jobs = [running(i, variant=variant, seed=i) for i, variant in enumerate(variants, 1)]
    rows = [line for line in lines_of(jobs, width) if "adam" in line or "…" in line]
    first, second = (re.split("  +", row.strip())[1] for row in rows)
    assert "…" in first and first.startswith("ad")
    assert first[-1] == "1" and second[-1] == "2"
    assert all("━" in row and "0.43 → 0.1" in row and row.endswith("≤ 12 s") for row in rows)


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_is_not_overrun(width):
    lines_of([running(1, variant="adam_monotone lr=0.01", seed=3), waiting(2)], width)


def test_many_jobs_show_what_matters():
    jobs = [finished(i, Status.REACHED, updated=float(i)) for i in range(1, 201)]
    jobs += [running(201), running(202), *(waiting(i) for i in range(203, 501))]
    for height in (8, 10, 24, 50):
        lines = lines_of(jobs, height=height)
        numbers = [int(line.split()[0]) for line in lines if re.match(r" *\d+  adam", line)]
        if height > 8:
            assert {201, 202} <= set(numbers)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert "200 of 500 jobs done · 200 reached" in lines[-2]
    assert 200 in numbers and 203 in numbers
    assert "job" not in "".join(lines_of(jobs, height=6)[:-2])
    lines_of([running(i) for i in range(1, 100)])


def test_rows_are_the_running_the_latest_and_the_next():
    jobs = [
        finished(1, Status.REACHED, updated=5.0), finished(2, Status.REACHED, updated=3.0),
        finished(3, Status.REACHED, updated=4.0), running(4), waiting(5), waiting(6),
    ]  # fmt: skip
    shown = {most: [job.job for job in rows_shown(jobs, most)] for most in range(1, 8)}
    assert shown == {
        1: [4], 2: [1, 4], 3: [1, 4, 5], 4: [1, 3, 4, 5], 5: [1, 3, 4, 5, 6],
        6: [1, 2, 3, 4, 5, 6], 7: [1, 2, 3, 4, 5, 6],
    }  # fmt: skip


def test_colours_say_how_jobs_ended():
    statuses = [Status.REACHED, Status.EXHAUSTED, Status.DIVERGED, Status.FAILED]
    jobs = [finished(i, status) for i, status in enumerate(statuses, 1)]
    jobs.append(replace(finished(5, Status.REACHED), known=True))
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(draw(jobs, 1, 5.0, 80, 24))
    out = captured.get()
    for status, code in zip(statuses, (32, 33, 33, 31), strict=True):
        assert f"\x1b[{code}m{status}\x1b[0m" in out
    assert "\x1b[32m2 reached\x1b[0m" in out
    assert "\x1b[33m2 not reached\x1b[0m" in out
    assert "\x1b[31m1 failed\x1b[0m" in out
    assert "1 already finished" in out


def test_the_bar_is_the_way_to_the_threshold():
    state = running(1)
    assert replace(state, first_loss=1.0, loss=0.5, threshold=0.25).share == 0.5
    assert replace(state, loss=0.1).share == 1 and replace(state, loss=0.01).share == 1
    for nothing in (None, 2.3, 5.0, float("nan"), float("inf")):
        assert replace(state, loss=nothing).share == 0
    assert replace(state, first_loss=None).share == 0
    assert finished(1, Status.REACHED).share == 1


def test_shortened():
    assert shortened("adam", 4) == "adam"
    assert shortened("abcdefghij", 7) == "ab…ghij"
    assert [len(shortened("abcdefghij", width)) for width in (1, 2, 3, 9)] == [1, 2, 3, 9]


def screen(out: str, columns: int, before: Sequence[str] = ("",)) -> list[str]:
    """What is on a terminal in the end, as far as rich uses one."""
    lines, row, column = list(before), len(before) - 1, len(before[-1])
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]", out):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
        elif part.endswith("A") and len(part) > 1:
            row -= int(part[2:-1])
        elif part == "\x1b[2K":
            lines[row] = ""
        elif len(part) == 1:
            if column == columns:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + 1 :]
            column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]


def test_a_terminal_that_gets_narrower_keeps_no_rest_of_the_table(tmp_path):
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40)
    table = LiveTable(Board(tmp_path), 1, 0.0, console)
    jobs = [running(1), waiting(2), waiting(3)]
    with table:
        console.print("above")
        table.show(jobs)
        wide = screen(out.getvalue().replace("\n", "\r\n"), 100)
        wrapped = [line[i : i + 60] for line in wide for i in range(0, max(1, len(line)), 60)]
        assert len(wrapped) > len(wide)
        out.seek(0)
        out.truncate()
        console.width = 60
        table.show(jobs)
        table.show(jobs)
        narrow = screen(out.getvalue().replace("\n", "\r\n"), 60, wrapped)
    assert narrow[0] == "above" and sum("optimizer" in line for line in narrow) == 1
    assert narrow[1:3] == ["", narrow[2]] and "optimizer" in narrow[2]


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_a_sweep_in_a_terminal(forks, tmp_path, at_a_time):
    arguments = [*TINY, "batch_size=128,256", "stop.loss=1.8", "stop.max_epochs=30"]
    ended = ran(forks, ["-m", *arguments, f"jobs={at_a_time}"], tmp_path, terminal=(80, 24))
    assert ended.code == 0, ended.out
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", ended.out)
    assert "loss → threshold" in shown and "0 of 2 jobs done" in shown
    assert re.search(r"1  adam +128 +\d+\.\d of 30 +━*─* +\S+ → 1\.8  ", shown)
    assert ended.out.count(HIDE_CURSOR) == ended.out.count(SHOW_CURSOR) == 1
    assert ended.out.index(HIDE_CURSOR) < ended.out.index(SHOW_CURSOR)
    final = screen(ended.out, 80)
    assert final[0] == f"2 jobs, {at_a_time} at a time (jobs={at_a_time})"
    for start in ("[1/2] adam b=128: reached 1.8 after ", "[2/2] adam b=256: reached 1.8 after "):
        assert sum(line.startswith(start) for line in final[1:3]) == 1
    assert final[4].split()[:4] == ["optimizer", "b", "seed", "status"]  # the report's
    assert any(line.startswith("adam: use b = ") for line in final)
    assert not any("threshold  " in line or "jobs done" in line for line in final)


@pytest.mark.parametrize("at_a_time", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_in_a_terminal(forks, tmp_path, at_a_time):
    counted = tmp_path / "counted"
    arguments = ["-m", *SLOWLY, f"+model.counted={counted}", "seed=0,1,2", f"jobs={at_a_time}"]
    ended = ran(
        forks, arguments, tmp_path / "out", terminal=(100, 24), signals=[2], trains=str(counted)
    )
    assert ended.code == 130, ended.out
    assert "Traceback" not in ended.out and ended.out.count(SHOW_CURSOR) == 1
    final = [line for line in screen(ended.out, 100) if line]
    said = "".join("".join(final).split())  # a line that is too long may end at a space
    saved = r"\[\d/3\]adam\S+b=256(seed=\d)?:interruptedafter\d+steps?.*;runthesamecommand"
    assert re.search(saved, said)
    assert "jobsdone" not in said and "waiting" not in said
    if at_a_time > 1:
        assert final[1] == "stopping: running jobs are saving their state"
        assert final[-1] == "interrupted; run the same command to resume"


def test_a_run_of_its_own_has_a_bar(forks, tmp_path):
    arguments = [*TINY, "stop.loss=1e-9", "stop.max_epochs=60"]
    ended = ran(forks, arguments, tmp_path, terminal=(120, 24))
    assert ended.code == 0, ended.out
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", ended.out)
    assert re.search(r"adam b=256 [━╸╺ ]+ epoch \d+\.\d of 60, loss \S+ \(threshold 1e-09\)", shown)
    assert ended.out.count(HIDE_CURSOR) == ended.out.count(SHOW_CURSOR) == 1
    (line,) = [line for line in screen(ended.out, 120) if line.startswith("adam")]
    assert line.startswith("adam b=256: budget used up after 480 steps")
