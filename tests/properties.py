"""Property tests: a hundred examples in the usual suite, a thousand in the slow one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st

EXAMPLES = pytest.mark.parametrize(
    "number", [100, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
# Whatever JSON can spell, lone surrogates too.
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def examples(number: int) -> settings:
    """The same ones every time."""
    return settings(max_examples=number, derandomize=True, deadline=None, database=None)
