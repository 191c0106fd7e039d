"""The report as a person uses it, in a real browser."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from cbs_lightning.analysis.study import Study, read
from cbs_lightning.reporting.report import REPORT, write_report
from tests.browser import chromium, console_errors, prefer_dark, requests_elsewhere, resize
from tests.optimizers import OPTIMIZERS
from tests.studies import make_full_study, make_run, make_searched_study

UNKNOWN = "\N{EN DASH}"
PLOTS = ("plot-sfo", "plot-steps", "plot-seconds", "plot-loss")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    directory = tmp_path_factory.mktemp("report") / "full"
    make_full_study(directory)
    write_report(directory)
    found, _ = read(directory)
    assert found is not None
    return found


@pytest.fixture
def opened(browser, study) -> Iterator[SimpleNamespace]:
    """The page, fresh; whatever is done with it leaves no error and asks nobody."""
    resize(browser, 1280, 900)
    prefer_dark(browser, False)
    browser.get((study.directory / REPORT).as_uri())

    def all_(selector: str) -> list:
        return browser.find_elements("css selector", selector)

    def text(selector: str) -> list[str]:
        return [found.text for found in all_(selector)]

    yield SimpleNamespace(window=browser, all=all_, text=text, run=browser.execute_script)
    assert console_errors(browser) == [] and requests_elsewhere(browser) == []


def table(opened) -> list[list[str]]:
    return opened.run(
        "return [...document.querySelectorAll('#run-table tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )


def steps_by_run(opened) -> dict[tuple[str, str, str], str]:
    return {(row[0], row[1], row[2]): row[4] for row in table(opened)}


def expected_steps(study: Study, rule: str, threshold: float) -> dict[tuple[str, str, str], str]:
    return {
        (row.variant, f"{row.batch_size:,}", str(row.seed)): f"{row.steps:,}"
        if row.steps is not None
        else UNKNOWN
        for row in study.rows
        if (row.rule, row.threshold) == (rule, threshold)
    }


def test_plots_and_tables_are_drawn(opened, study):
    for plot in PLOTS:
        assert len(opened.all(f"#{plot} svg path, #{plot} svg circle")) > 10
    dots = opened.all("#plot-steps svg .run, #plot-steps svg [aria-label=dot] circle")
    reached = sum(run.steps is not None for run in study.answers)
    assert len(dots) >= reached
    fitted = sum(curve.is_fitted for curve in study.curves)
    assert len(opened.all("#plot-steps svg [aria-label=area] path")) == 2 * fitted > 0  # bands
    ranges = [r for one in study.recommendations for r in (one.range, one.wider_range) if r]
    assert len(opened.all("#plot-steps svg .range rect")) == len(ranges) >= len(study.curves)
    assert not opened.all("#plot-seconds svg .range rect")
    assert opened.text("#answers strong")[0].startswith("adam: use b = 16")
    assert steps_by_run(opened) == expected_steps(study, "epoch", 1.0)
    links = opened.run("return [...document.querySelectorAll('#run-table a')].map((a) => a.href)")
    assert {Path(link).name for link in links} == {run.directory.name for run in study.runs}
    assert len(table(opened)) == 36 and "36 of 36 runs" in opened.text("#count")


def test_hovering_shows_the_run(opened, study):
    dots = opened.run(
        "return [...document.querySelectorAll('#plot-sfo .run circle, #plot-sfo .run path')]"
        ".map((dot) => { const box = dot.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })"
    )
    assert len(dots) == sum(run.sfo is not None for run in study.answers)
    x, y = dots[0]
    figure = opened.all("#plot-sfo svg")[0]
    box = figure.rect
    move = ActionChains(opened.window)
    offset = (round(x - box["x"] - box["width"] / 2), round(y - box["y"] - box["height"] / 2))
    opened.run("arguments[0].scrollIntoView({block: 'center'})", figure)
    move.move_to_element_with_offset(figure, *offset).perform()
    shown = " ".join(opened.text("#plot-sfo [aria-label=tip] text"))
    first = next(run for run in study.answers if run.sfo is not None)
    assert re.search(rf"adam, b = {first.batch_size}, seed \d", shown), shown
    assert any(f"SFO {run.sfo:,}" in shown for run in study.answers if run.sfo)


def test_a_press_hides_an_optimizer(opened):
    before = len(opened.all("#plot-sfo svg [aria-label=line] path"))
    _, sgd = opened.all("#legend button")
    assert sgd.text == "sgd" and sgd.get_attribute("aria-pressed") == "true"
    sgd.click()
    assert len(opened.all("#plot-sfo svg [aria-label=line] path")) < before
    assert opened.all("#legend button")[1].get_attribute("aria-pressed") == "false"
    assert not any("sgd" in row for row in opened.text("#forms tbody tr"))
    opened.all("#legend button")[1].send_keys(Keys.SPACE)
    assert len(opened.all("#plot-sfo svg [aria-label=line] path")) == before


@pytest.mark.parametrize(("rule", "threshold"), [("epoch", 2.0), ("window", 0.5)])
def test_rule_and_threshold_give_other_answers(opened, study, rule, threshold):
    before = opened.all("#plot-steps svg")[0].get_attribute("outerHTML")
    Select(opened.all("#rule")[0]).select_by_value(rule)
    Select(opened.all("#threshold")[0]).select_by_value(f"{threshold:g}")
    assert opened.all("#plot-steps svg")[0].get_attribute("outerHTML") != before
    assert steps_by_run(opened) == expected_steps(study, rule, threshold)
    assert f"loss ≤ {threshold:g} by rule {rule}" in opened.text("#asked")[0]
    assert opened.text("#answers strong")[0].startswith("adam: use b = ")


def test_runs_are_sorted_and_filtered(opened):
    def column(index: int) -> list[str]:
        return [row[index] for row in table(opened)]

    def press(title: str) -> None:
        (button,) = [b for b in opened.all("#run-table th button") if b.text.split()[0] == title]
        button.click()

    press("K")
    known = [int(k.replace(",", "")) for k in column(4) if k != UNKNOWN]
    assert known == sorted(known) and column(4)[-1] == UNKNOWN
    press("K")
    assert [int(k.replace(",", "")) for k in column(4) if k != UNKNOWN] == known[::-1]
    assert column(4)[-1] == UNKNOWN  # not known comes last either way
    (sorted_by,) = opened.all("#run-table th[aria-sort=descending]")
    assert sorted_by.text.startswith("K")
    opened.all("#filter")[0].send_keys("sgd 64")
    assert {(row[0], row[1], row[3]) for row in table(opened)} == {("sgd", "64", "exhausted")}
    assert opened.text("#count") == ["3 of 36 runs"]


def test_light_and_dark(opened):
    def background() -> str:
        return opened.run("return getComputedStyle(document.body).backgroundColor")

    light = background()
    prefer_dark(opened.window, True)
    dark = background()
    assert light == "rgb(255, 255, 255)" and dark != light
    opened.all("#theme")[0].click()  # the reader's own choice comes first
    assert background() == light
    opened.all("#theme")[0].click()
    assert background() == dark


def test_arrow_keys_go_through_the_runs_of_a_plot(opened):
    figure = opened.all("#plot-steps")[0]
    opened.run("arguments[0].focus()", figure)
    seen = []
    for _ in range(2):
        ActionChains(opened.window).send_keys(Keys.ARROW_RIGHT).perform()
        seen.append(opened.text("#plot-steps output")[0])
    assert all(text.startswith("adam, b = 4, seed ") for text in seen) and len(set(seen)) == 2
    assert opened.run("return document.activeElement.id") == "plot-steps"


def test_losses_by_optimizer_and_by_steps(opened):
    before = opened.all("#plot-loss svg")[0].get_attribute("outerHTML")
    Select(opened.all("#loss-variant")[0]).select_by_visible_text("sgd")
    changed = opened.all("#plot-loss svg")[0].get_attribute("outerHTML")
    Select(opened.all("#loss-by")[0]).select_by_value("steps")
    assert len({before, changed, opened.all("#plot-loss svg")[0].get_attribute("outerHTML")}) == 3
    assert len(opened.all("#plot-loss svg .losses path")) == 18
    named = opened.text("#plot-loss svg .size text")  # as far as there is room
    assert {"b = 4", "b = 128"} <= set(named) and len(named) == len(set(named))


def test_losses_follow_the_rule_and_what_is_hidden(opened):
    before = opened.all("#plot-loss .losses")[0].get_attribute("outerHTML")
    Select(opened.all("#rule")[0]).select_by_value("window")
    assert opened.text("#plot-loss h3") == ["Loss by rule window, b = 4 (faint) to 128 (bold)"]
    assert opened.all("#plot-loss .losses")[0].get_attribute("outerHTML") != before
    opened.all("#legend button")[0].click()
    assert Select(opened.all("#loss-variant")[0]).first_selected_option.text == "sgd"


def test_all_fitted_forms_can_be_drawn(opened):
    before = len(opened.all("#plot-steps svg [aria-label=line] path"))
    opened.all("#all-forms")[0].click()
    assert len(opened.all("#plot-steps svg [aria-label=line] path")) > before


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_any_width(opened, width):
    resize(opened.window, width, 900)
    WebDriverWait(opened.window, 10).until(
        lambda _: opened.run("return document.documentElement.scrollWidth") == width
    )
    drawn = opened.run(
        "return [...document.querySelectorAll('.plots svg')].map((svg) => svg.clientWidth)"
    )
    assert len(drawn) == 4 and all(200 < own <= width for own in drawn)
    first = "#runs .scroll.wide td:first-child"  # which stays while the others scroll
    assert bool(opened.all(first)) == (width < 1000)
    if width < 1000:
        look = opened.run(f"return getComputedStyle(document.querySelector('{first}')).position")
        assert look == "sticky"


def test_in_print_there_is_the_legend_but_nothing_to_choose(opened):
    opened.window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not opened.all("#rule")[0].is_displayed()
        assert opened.all("#legend")[0].is_displayed()
        assert opened.all("#plot-sfo svg")[0].is_displayed()
    finally:
        opened.window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_runs_that_a_search_gave_up_are_arrows_at_what_they_cost(browser, tmp_path):
    make_searched_study(tmp_path / "searched")
    write_report(tmp_path / "searched")
    browser.get((tmp_path / "searched" / REPORT).as_uri())
    for plot in ("sfo", "steps", "seconds"):
        arrows = browser.find_elements("css selector", f"#plot-{plot} .abandoned path")
        assert len(arrows) == 3
        frame = browser.find_element("css selector", f"#plot-{plot} svg").rect
        assert all(frame["y"] < arrow.rect["y"] < frame["y"] + frame["height"] for arrow in arrows)
    text = browser.find_element("css selector", "#run-table").text
    assert text.count("abandoned") == 3 and text.count("exhausted") == 1
    assert console_errors(browser) == []


def test_variants_without_an_answer_are_folded_and_variants_can_be_filtered(browser, tmp_path):
    study = tmp_path / "many"
    for lr in (1, 2, 3):
        for batch_size in (4, 8, 16):
            make_run(study, "adam", batch_size, 2 + lr, variant=f"adam lr={lr}")
    for lr in range(1, 9):
        make_run(study, "sgd", 8, 3, variant=f"sgd lr={lr}", reached=False)
    write_report(study)
    browser.get((study / REPORT).as_uri())

    def all_(selector: str) -> list:
        return browser.find_elements("css selector", selector)

    folded = all_("#unanswered")[0]
    assert len(all_("#answers > li")) == 3
    assert folded.text == (
        "8 variants without an answer: sgd lr=1, sgd lr=2, sgd lr=3, sgd lr=4, sgd lr=5, …"
    )
    folded.find_element("css selector", "summary").click()
    assert folded.text.count("no run reached 1") == 8
    assert len(all_("#plot-sfo svg [aria-label=dot] path[transform]")) > 0
    all_("#variants")[0].send_keys("lr=2 ADAM")
    assert [button.text for button in all_("#legend button")] == ["adam lr=2"]
    assert [item.text[:9] for item in all_("#answers strong")] == ["adam lr=2"]
    assert not folded.is_displayed()
    all_("#variants")[0].send_keys(" nothing")
    assert all_("#legend button") == [] and len(all_("#plot-sfo .none")) == 1
    assert console_errors(browser) == []


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> str:
    """The address of a report on more optimizers than one plot can tell apart by colour."""
    directory = tmp_path_factory.mktemp("report") / "many"
    for number, optimizer in enumerate(OPTIMIZERS):
        for place, size in enumerate((4, 8, 16, 32)):
            make_run(
                directory,
                optimizer,
                size,
                3 + (place - number % 3) ** 2,
                variant=f"{optimizer} lr=1",
            )
    write_report(directory)
    return (directory / REPORT).as_uri()


@pytest.mark.parametrize("width", [500, 1400])
def test_many_curves_have_their_names_beside_them(browser, many, width):
    resize(browser, width, 900)
    browser.get(many)
    for plot in ("sfo", "steps", "seconds"):
        svg = browser.find_element("css selector", f"#plot-{plot} svg")
        names = svg.find_elements("css selector", "[class^=variant-] text")
        assert sorted(name.text for name in names) == OPTIMIZERS
        boxes = sorted((name.rect for name in names), key=lambda box: box["y"])
        assert all(above["y"] + 10 <= below["y"] for above, below in pairwise(boxes))
        right = svg.rect["x"] + svg.rect["width"]
        assert all(box["x"] + box["width"] <= right for box in boxes)
    assert console_errors(browser) == []


def test_pointing_at_a_name_of_the_legend_fades_the_other_curves(browser, many):
    resize(browser, 1400, 900)
    browser.get(many)
    (lion,) = [
        b for b in browser.find_elements("css selector", "#legend button") if b.text == "lion"
    ]
    browser.execute_script("arguments[0].focus()", lion)
    opacity = {
        name.text: name.find_element("xpath", "..").value_of_css_property("opacity")
        for name in browser.find_elements("css selector", "#plot-sfo [class^=variant-] text")
    }
    assert opacity.pop("lion") == "1" and {*opacity.values()} == {"0.12"}
    browser.execute_script("arguments[0].blur()", lion)
    assert browser.find_elements("css selector", ".lifted") == []


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_can_be_told_from_the_paper(browser, many, dark):
    """A light colour is allowed 1.6 beside white, as lines have marks and names too."""
    resize(browser, 1400, 900)
    prefer_dark(browser, dark)
    browser.get(many)
    names = browser.find_elements("css selector", "#plot-sfo [class^=variant-] text")
    paper = luminance(
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    )
    for name in names:
        own = luminance(name.value_of_css_property("fill"))
        contrast = (max(own, paper) + 0.05) / (min(own, paper) + 0.05)
        assert contrast > (4.5 if dark else 1.6), name.text


def luminance(color: str) -> float:
    """Of a colour in CSS, as the Web Content Accessibility Guidelines define it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("waited", [0.0, 0.4])
def test_seconds_that_do_not_compare_are_points_without_a_best_one(browser, tmp_path, waited):
    study = tmp_path / "study"
    for batch_size, epochs in ((4, 5), (8, 3), (16, 4)):
        make_run(study, "adam", batch_size, epochs, waited=waited)
    write_report(study)
    browser.get((study / REPORT).as_uri())

    def count(selector: str) -> int:
        return len(browser.find_elements("css selector", f"#plot-seconds svg {selector}"))

    title = browser.find_element("css selector", "#plot-seconds h3").text
    reason = " (not comparable: 3 of 3 runs waited for a core)" if waited else ""
    assert title == f"Seconds of training against batch size{reason}"
    assert count("[aria-label=line] path") == (0 if waited else 1)
    assert count("[aria-label=dot] path") == (0 if waited else 1)  # the star; others are circles
    assert console_errors(browser) == []


def test_many_variants_of_one_batch_size_each_are_folded(browser, tmp_path):
    study = tmp_path / "race"
    for batch_size in (8, 16):
        make_run(study, "adam", batch_size, 3)
    for lr in range(5):
        make_run(study, "sgd", 8, 3, variant=f"sgd lr={lr + 1}")
    write_report(study)
    browser.get((study / REPORT).as_uri())
    (answer,) = browser.find_elements("css selector", "#answers strong")
    assert answer.text.startswith("adam: use b = ")
    summary = browser.find_element("css selector", "#unanswered summary").text
    assert summary.startswith("5 variants without an answer: sgd lr=1")
    assert console_errors(browser) == []


def test_odd_studies_open_without_an_error(browser, tmp_path):
    make_run(tmp_path / "one", "adam", 8, 2)
    make_run(tmp_path / "nothing", "sgd", 8, 2, reached=False)
    make_run(tmp_path / "cifar10_resnet20", "adam", 2048, 3)
    make_run(tmp_path / "markup", "adam", 8, 2, variant="<!--<script>throw 1</script>")
    for directory in tmp_path.iterdir():
        write_report(directory)
        browser.get((directory / REPORT).as_uri())
        assert len(browser.find_elements("css selector", "figure svg")) == 4
        assert len(browser.find_elements("css selector", "#run-table tbody tr")) == 1
        shown = browser.find_element("css selector", "#paper-section").is_displayed()
        assert shown == (directory.name == "cifar10_resnet20")
        assert console_errors(browser) == [] and requests_elsewhere(browser) == []
