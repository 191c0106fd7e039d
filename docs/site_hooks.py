"""Fits the pages, which are also read in the repository, to the site (mkdocs.yml)."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
FOLDER = re.compile(r"\[([^\]]+)\]\(\w+/\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show links to what the site does not have, files outside of docs/ and folders, as names."""
    return FOLDER.sub(r"`\1`", OUTSIDE.sub(r"`\2`", markdown))
