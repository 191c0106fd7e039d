"""Writes names as plain text in CSV, Markdown and LaTeX, because results may come from others."""

import re
from typing import Any

from cbs_lightning.console import visible

# How a cell begins that a spreadsheet may run; the last four are = + - @ in full width.
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
MARKDOWN = re.compile(r"[\\`*_{}\[\]<>#|!~&$:@]|(?<=www)\.", re.IGNORECASE)
KEPT_TOGETHER = re.compile(" (?=[%=≤])|(?<=[=≤]) ")
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # else what follows the end of a row
        "]": "{]}",
        **{char: f"\\{char}" for char in "{}$&#%_"},
    }
)


def csv_cell(value: Any) -> Any:
    """The value for `csv.writer`: text in one line that no spreadsheet takes for a formula.

    Such text gets an apostrophe in front, as spreadsheets do it. Numbers and None stay.
    """
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA) else visible(value)


def markdown(text: str) -> str:
    """The text in one line, for a heading or a cell of a table; never a link, code or HTML."""
    return MARKDOWN.sub(r"\\\g<0>", visible(text))


def unbroken(text: str) -> str:
    """The text for a page, whose lines break neither before % nor around = and ≤."""
    return KEPT_TOGETHER.sub("\N{NO-BREAK SPACE}", visible(text))


def latex(text: str) -> str:
    """The text in one line, without commands or mathematics."""
    return visible(text).translate(LATEX)
