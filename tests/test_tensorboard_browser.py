"""TensorBoard as a person sees it: every page of a small study, in headless Chromium."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.remote.webdriver import WebDriver

from cbs_lightning.reporting.live_study import LiveStudy, draw_sweep
from cbs_lightning.results.result import Result, Status
from cbs_lightning.results.store import read_study
from tests.browser import chromium, console_errors, requests_elsewhere
from tests.studies import log_run, make_run, make_study

PATIENCE_SECONDS = 60
GROUP = "Against log2 batch size"
FIND = """
const found = [];
const walk = root => {
  for (const element of root.querySelectorAll("*")) {
    if (element.matches(arguments[0])) found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
"""
ELEMENTS = FIND + "return found;"
TEXTS = FIND + "return found.map(element => element.textContent.trim().replace(/\\s+/g, ' '));"
CURVES = (
    FIND
    + """
const drawn = path => path.getAttribute("d");
return found.map(chart => [...chart.shadowRoot.querySelectorAll("path.line")].filter(drawn).length);
"""
)
IMAGES = FIND + "return found.map(image => [image.naturalWidth, image.naturalHeight]);"
ROWS = (
    FIND
    + """
const text = slot => slot.assignedNodes().map(node => node.textContent.trim()).join(" ");
const cells = row => [...row.querySelectorAll("slot")].map(text);
return found.flatMap(grid => [...grid.shadowRoot.querySelectorAll("tr")].map(cells));
"""
)


class Board:
    """A TensorBoard that looks at `study` every second, and the window that shows it."""

    def __init__(self, study: Path, address: str, window: WebDriver) -> None:
        self.study = study
        self.address = address
        self.window = window

    def open(self, page: str) -> None:
        self.window.get("about:blank")  # else only the part after # would change
        self.window.get(f"{self.address}#{page}")

    def find(self, script: str, selector: str) -> Any:
        """What the script says of the elements that match, also of those in shadow roots."""
        return self.window.execute_script(script, selector)

    def ask(self, what: str, **query: str) -> Any:
        with urlopen(f"{self.address}data/{what}?{urlencode(query)}") as answer:
            return json.load(answer)

    def points(self, run: str, tag: str) -> dict[int, float]:
        """None of them where TensorBoard knows of no such curve."""
        try:
            points = self.ask("plugin/scalars/scalars", run=run, tag=tag)
        except HTTPError as error:
            assert error.code == HTTPStatus.NOT_FOUND
            return {}
        return {step: value for _, step, value in points}

    def results(self) -> list[Result]:
        return [run.result for run in read_study(self.study)[0]]

    def assert_is_quiet(self) -> None:
        assert console_errors(self.window) == []
        assert requests_elsewhere(self.window) == []


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    outputs = tmp_path / "outputs"
    make_study(outputs / "digits")
    for run in read_study(outputs / "digits")[0]:
        log_run(run)
    draw_sweep(outputs / "digits")
    command = [str(Path(sys.executable).with_name("tensorboard")), "--logdir", str(outputs)]
    options = ["--port", "0", "--reload_interval", "1", "--reload_multifile", "true"]
    with (
        chromium(tmp_path / "chromium", 1400, 900) as window,
        subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stderr is not None
            said = (re.search(r"http://localhost:\d+/", line) for line in server.stderr)
            board = Board(
                outputs / "digits", next(found.group() for found in said if found), window
            )
            wait_until(lambda: len(board.ask("plugin/scalars/tags")) == 8 + 2)
            yield board
        finally:
            server.terminate()


def look_at_scalars(board: Board) -> None:
    board.open("scalars")
    wait_until(lambda: board.find(CURVES, "vz-line-chart2")[:4] == [4] * 4)  # also smoothed ones
    headings = board.find(TEXTS, ".heading")
    groups = [GROUP, f"{GROUP}, log2 values"]
    own = [f"{group} 2" for group in groups]
    assert headings[:5] == [*own, "accuracy 2", "learning_rate 2", "loss 2"]
    # These are all that are open: no chart is empty.
    assert board.find(TEXTS, "figcaption") == [
        f"{quantity} tag: {group}/{quantity}" for group in groups for quantity in ("SFO", "steps")
    ]
    chart = board.find(ELEMENTS, "vz-line-chart2")[0]
    ActionChains(board.window).move_to_element(chart).perform()
    wait_until(lambda: len(board.find(TEXTS, "td")) >= 5)
    _, run, _, value, step, *_ = board.find(TEXTS, "td")
    result = next(
        r for r in board.results() if run.endswith(r.variant) and r.batch_size == 2 ** int(step)
    )
    assert run.startswith("digits/_sweep/") and float(value) == result.sfo


def look_at_time_series(board: Board) -> None:
    board.open("timeseries")
    wait_until(lambda: len(board.find(TEXTS, "scalar-card tb-data-table-content-row")) == 8)
    rows = board.find(TEXTS, "scalar-card tb-data-table-content-row")
    largest = {result.variant: result for result in board.results() if result.sfo is not None}
    for row, variant in zip(rows, ("adam", "sgd"), strict=False):
        assert row.startswith(f"digits/_sweep/{variant} ")
        assert f" {largest[variant].sfo:,} " in row


def look_at_custom_scalars(board: Board) -> None:
    board.open("custom_scalars")
    wait_until(lambda: board.find(CURVES, "vz-line-chart2")[:4] == [4] * 4)
    headings = ["Steps and SFO against batch size 4", "Runs by SFO 3", "Runs by step 3"]
    assert board.find(TEXTS, ".heading") == headings
    assert board.find(TEXTS, "#matches-list-title") == ["Matches (2)"] * 4 + ["Matches (8)"] * 6


def look_at_images(board: Board) -> None:
    board.open("images")
    wait_until(lambda: len(board.find(IMAGES, "img")) == 2)
    wait_until(lambda: all(min(size) > 300 for size in board.find(IMAGES, "img")))
    titles = board.find(TEXTS, "tf-image-loader tf-card-heading, figcaption")
    assert [title for title in titles if title.startswith("Figures")] == [
        "Figures/01 sfo digits/_sweep", "Figures/02 steps digits/_sweep"
    ]  # fmt: skip


def look_at_hparams(board: Board) -> None:
    board.open("hparams")
    wait_until(lambda: len([row for row in board.find(ROWS, "vaadin-grid") if row[0]]) == 1 + 8)
    columns, *rows = (row for row in board.find(ROWS, "vaadin-grid") if row[0])
    assert columns == [
        "Trial ID", "Show Metrics", "variant", "batch_size", "seed", "status", "threshold",
        "steps", "sfo", "seconds", "accuracy", "loss",
    ]  # fmt: skip
    shown = {(row[2], int(float(row[3]))): dict(zip(columns, row, strict=False)) for row in rows}
    for result in board.results():
        row = shown.pop((result.variant, result.batch_size))
        assert row["status"] == result.status
        assert row["Trial ID"].startswith(f"digits/{result.variant}-b{result.batch_size}-")
        for name in ("seed", "threshold", "steps", "sfo", "seconds", "accuracy", "loss"):
            expected = getattr(result, name)
            if expected is None:
                assert row[name] == "" and result.status is Status.EXHAUSTED
            else:
                assert float(row[name]) == pytest.approx(expected, rel=1e-4)
    assert not shown


def see_the_curves_follow_live(board: Board) -> None:
    """A run is trained anew; the first batch size gets a seed that fails; a new one is reached."""
    run = read_study(board.study)[0][0]
    log_run(run, points=3)
    ends = {1, 1024, len(run.trajectory)}
    wait_until(lambda: set(board.points(f"digits/{run.directory.name}", "loss/by_step")) == ends)
    adam = "digits/_sweep/adam"
    assert set(board.points(adam, f"{GROUP}/steps")) == {2, 3, 4, 5}
    make_run(board.study, "adam", 4, 9, seed=1, reached=False)
    new = make_run(board.study, "adam", 64, 9)
    LiveStudy(board.study)()
    wait_until(lambda: 6 in board.points(adam, f"{GROUP}/steps"))
    points = board.points(adam, f"{GROUP}/steps")
    assert set(points) == {3, 4, 5, 6} and points[6] == new.steps
    make_run(board.study, "adam", 48, 9)  # no power of two
    LiveStudy(board.study)()
    wait_until(lambda: not board.points(adam, f"{GROUP}/steps"))
    tag, ends = "Against 100 log2 batch size/steps", {300, 400, 500, 558, 600}
    wait_until(lambda: set(board.points(f"{adam},100log2b", tag)) == ends)


def test_every_page_of_tensorboard(board):
    """One test, since there is one window: without an error, nor a request that leaves here."""
    for page in (
        look_at_scalars,
        look_at_time_series,
        look_at_custom_scalars,
        look_at_images,
        look_at_hparams,
        see_the_curves_follow_live,
    ):
        page(board)
        board.assert_is_quiet()
