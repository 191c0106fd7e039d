"""Shows the examples in docstrings as code in the API reference (mkdocs.yml)."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^Example:$")
BARE = re.compile(r"(?m)^>>> .*(?:\n.+)*")  # outside of a section


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Make a section of each example, which is what the parser takes for code."""
        if obj.docstring is not None:
            text = EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = BARE.sub(_section, text)


def _section(example: re.Match[str]) -> str:
    return "\n".join(["Examples:", *(f"    {line}" for line in example[0].splitlines())])
