"""What the documentation says exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
