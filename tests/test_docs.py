"""What the documentation says exists."""

import json
import re
from pathlib import Path

import pytest

from cbs_lightning.fit import fit
from cbs_lightning.reporting.study_files import write_study

ROOT = Path(__file__).parents[1]
ANSWER = (ROOT / "docs" / "answer.md").read_text()
PROMISES = (ROOT / "docs" / "promises.md").read_text()
NAME = r"`\w+`(?: \([^)]*\))?"
CITED = re.findall(rf"`(test_\w+\.py)`(: {NAME}(?:, {NAME})*)?", PROMISES)


@pytest.mark.parametrize(("file", "names"), CITED)
def test_every_promise_has_the_test_it_cites(file, names):
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    for name in re.findall(r"`(\w+)`", names):
        assert any(name in test for test in tests), f"{file} has no test named *{name}*"


def test_every_row_of_promises_cites_something():
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not re.match(r"\| (---|what happens|promise )", row)]
    assert len(rows) > 20 and len(CITED) > 20
    for row in rows:
        shown_by = row.rstrip(" |").rpartition("|")[2]
        assert "test_" in shown_by or "make " in shown_by, row


def test_every_file_that_the_readme_links_to_exists():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.parametrize(
    "text", [ANSWER, (ROOT / "README.md").read_text()], ids=["answer", "readme"]
)
def test_the_examples_of_fits_and_theory_run_and_print_what_they_say(text, capsys):
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if "cbs_lightning.fit" in block or "theory" in block]
    assert blocks
    for block in blocks:
        exec(block, {})
        said = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        for line, wanted in zip(capsys.readouterr().out.splitlines(), said, strict=True):
            assert line == wanted.partition(":")[0]


def test_the_example_of_a_trainer_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "own_model.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    found = [line.split() for line in lines if line.split()[1:2] == ["reached"]]
    assert [int(row[0]) for row in found] == [8, 16, 32, 64]
    assert all(int(row[0]) * int(row[2]) == int(row[3]) for row in found)
    assert any("use b =" in line for line in write_study(tmp_path / "outputs" / "mine"))


def test_the_table_of_published_curves():
    """Its ranges of RMS errors are those of fits made now."""
    series = json.loads((ROOT / "tests" / "published_curves.json").read_text())["series"]
    for title, group in (
        ("five published language models", series[:5]),
        ("three published image classifiers", series[5:]),
    ):
        (row,) = [line for line in ANSWER.splitlines() if line.startswith(f"| {title}")]
        cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        for model, cell in zip(("iiduka", "mccandlish", "nested"), cells, strict=True):
            errors = [fit(s["batch_sizes"], s["steps"], model).rms_log_error for s in group]
            assert cell == f"{min(errors):.2f} to {max(errors):.2f}"
