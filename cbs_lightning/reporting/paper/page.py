"""Fills in the generated parts of a page, between its markers; hand-written text stays."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cbs_lightning.errors import UserError
from cbs_lightning.reporting.paper.findings import (
    agreement,
    critical_tables,
    estimates,
    form_table,
    machines,
    seed_table,
)
from cbs_lightning.reporting.paper.study import PublishedStudy
from cbs_lightning.reporting.paper.text import captions, cell_tables, progress

BLOCK = re.compile(r"(<!-- make paper: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS: dict[str, Callable[[PublishedStudy], list[str]]] = {
    "progress": progress,
    "agreement": agreement,
    "critical": critical_tables,
    "estimates": estimates,
    "forms": form_table,
    "seeds": seed_table,
    "machines": machines,
}


def figure_name(number: int) -> str:
    return f"figure_{number}"


def blocks(studies: Sequence[PublishedStudy], folder: str) -> dict[str, list[str]]:
    """The text between the markers, by their names; figures are below `folder`."""
    found = {
        name: _joined([part(study) for study in studies], tight=name in ("estimates",))
        for name, part in PARTS.items()
    }
    for study in studies:
        found[f"figures_{study.paper.name}"] = _figures(study, folder)
        found[f"cells_{study.paper.name}"] = cell_tables(study)
    return found


def opening(study: PublishedStudy, folder: str) -> dict[str, list[str]]:
    """The part on the first pages: two figures side by side, with a caption each."""
    images = [
        f'  <img src="{folder}/{figure_name(number)}.png" width="420" alt="{_alt(text)}">'
        for number, text in captions(study).items()
    ]
    lines = ["<p>", *images, "</p>", ""]
    for text in captions(study).values():
        lines += [text, ""]
    return {"opening": lines[:-1]}


def fill(text: str, found: Mapping[str, Sequence[str]], path: Path) -> str:
    """The text with its blocks filled in; raises `UserError` for an unknown block."""

    def filled(match: re.Match[str]) -> str:
        if match[2] not in found:
            allowed = ", ".join(found)
            raise UserError(f"{path}: no block is called {match[2]!r}; allowed: {allowed}")
        return match[1] + "".join(f"{line}\n" for line in found[match[2]]) + match[3]

    return BLOCK.sub(filled, text)


def _figures(study: PublishedStudy, folder: str) -> list[str]:
    lines: list[str] = []
    for number, text in captions(study).items():
        image = f"![{_alt(text)}]({folder}/{figure_name(number)}.png)"
        lines += [*([image, ""] if study.answers else []), text, ""]
    return lines[:-1]


def _alt(caption: str) -> str:
    return caption.replace("**", "").partition(", ")[0]


def _joined(parts: Sequence[list[str]], tight: bool) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += [*([] if tight or not lines else [""]), *part]
    return lines
