"""Writes values so that Hydra's command line reads them correctly."""

import re
from shlex import quote


def quoted(text: str) -> str:
    """The text as one value, even if it contains signs that mean something to Hydra."""
    # Backslashes count only where a quote follows them.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", r"\'"), text)
    return f"'{escaped}'"


def list_of(texts: list[str]) -> str:
    """The texts as one value, a list."""
    return f"[{','.join(map(quoted, texts))}]"


def in_quotes(key: str, value: str) -> str:
    """The override as typed in a shell, quoted for the shell and for Hydra."""
    inner = quoted(value) if '"' in value or "\\" in value else f'"{value}"'
    return quote(f"{key}={inner}")


def powers_as_numbers(text: str) -> str:
    """The text with 2^4 or 2**4 as 16."""
    return re.sub(r"\b(\d\d?)(?:\^|\*\*)(\d\d?)\b", _power, text)


def _power(found: re.Match[str]) -> str:
    return str(int(found[1]) ** int(found[2]))
