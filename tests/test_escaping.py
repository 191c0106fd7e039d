"""Names in CSV, LaTeX, Markdown, JSON and on a terminal are text, whatever they are."""

import csv
import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs_lightning.analysis.curves import curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.console import print_line, print_lines, visible
from cbs_lightning.reporting.escaping import FORMULA, csv_cell, latex, markdown
from cbs_lightning.reporting.recommendation_file import write_recommendations
from cbs_lightning.reporting.summary_file import write_summary
from tests.hostile import NAMES
from tests.properties import ANY_TEXT, EXAMPLES, examples
from tests.studies import make_run

TEXTS = ANY_TEXT | st.sampled_from(NAMES) | st.text(r"\^~{}[]()$&#%_<>|*`!:@=+-.w/", min_size=1)
ORDINARY = "adam lr=0.01 betas=0.9,0.999 (warm-up)"


@EXAMPLES
def test_every_escaper_makes_one_line_of_text(number):
    @examples(number)
    @given(TEXTS)
    def check(text):
        shown = visible(text)
        assert shown.isprintable() and visible(shown) == shown
        assert shown == text or not text.isprintable()
        for escaped in (csv_cell(text), latex(text), markdown(text)):
            assert escaped.isprintable()
        # Nothing is left that is not escaped, and nothing is lost.
        assert not re.search(r"(?<!\\)[`*_{}\[\]<>#|!~&$:@]", re.sub(r"\\\\", "", markdown(text)))
        assert re.sub(r"\\([^A-Za-z0-9\s])", r"\1", markdown(text)) == shown
        names = "textbackslash|textasciicircum|textasciitilde|textless|textgreater|textbar"
        left = re.sub(rf"\\({names})\{{\}}|\\[{{}}$&#%_]|\{{[\[\]]\}}", "", latex(text))
        assert not re.search(r"[\\{}$&#%_^~\[\]]", left)

    check()


@EXAMPLES
def test_a_cell_is_read_as_it_was_written_and_is_no_formula(number):
    @examples(number)
    @given(st.lists(TEXTS | st.integers() | st.floats(allow_nan=False) | st.none(), min_size=1))
    def check(values):
        file = StringIO()
        csv.writer(file).writerow([csv_cell(value) for value in values])
        (row,) = csv.reader(StringIO(file.getvalue(), newline=""))
        for value, cell in zip(values, row, strict=True):
            if isinstance(value, str):
                assert cell in (visible(value), f"'{visible(value)}")
                assert not cell.startswith(FORMULA)
            else:
                assert cell == ("" if value is None else str(value))

    check()


@EXAMPLES
def test_what_scripts_read_is_what_was_written(number, tmp_path):
    """Nothing of this project reads them: `summary.csv` and `recommendation.json`."""
    result = make_run(tmp_path / "study", "adam", 8, 2)
    (recommended,) = map(recommend, curves([result]))
    settings = st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=4)

    @examples(number)
    @given(TEXTS, settings)
    def check(name, hyperparameters):
        row = replace(result, variant=name, optimizer=name, hyperparameters=hyperparameters)
        with write_summary(tmp_path, [row]).open(newline="", encoding="utf-8") as file:
            (found,) = csv.DictReader(file)
        assert found["variant"] == csv_cell(name) and found["sfo"] == str(result.sfo)
        assert json.loads(found["hyperparameters"]) == hyperparameters
        assert all(cell.isprintable() for cell in found.values())
        path = write_recommendations(tmp_path, [replace(recommended, variant=name)], [])
        (variant,) = json.loads(path.read_text(encoding="utf-8"))["variants"]
        assert variant["variant"] == name

    check()


def test_ordinary_names_stay_as_they_are():
    for escape in (visible, csv_cell, latex, markdown):
        assert escape(ORDINARY) == ORDINARY
    assert latex("momentum_ema") == r"momentum\_ema"
    for value in (-1.5, 3, None, True):
        assert csv_cell(value) is value


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\uff1d1"])
def test_formulas_get_an_apostrophe(text):
    assert csv_cell(text) == f"'{visible(text)}"


def test_no_link_is_left_in_markdown():
    assert markdown("https://a.b www.c.d WWW.e.f g@h.i") == (
        r"https\://a.b www\.c.d WWW\.e.f g\@h.i"
    )


def test_what_is_printed_is_visible(capsys):
    print_line("one \x1b[31m\x9b2J\ntwo \u202e\ud800")
    print_lines(["three", "fo\nur\r"])
    assert capsys.readouterr().out.split("\n") == [
        r"one \x1b[31m\x9b2J", r"two \u202e\ud800", "three", r"fo\nur\r", ""
    ]  # fmt: skip
