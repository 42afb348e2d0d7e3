"""What is plain to see of patterns against the matches that Polars finds."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.name_table import NameTable

PATTERNS = (
    "^a$|^b",
    "^a(b|c)?c",
    "^a(b|c|)b$|^(?:c|ab)a",
    "^(a|b)(b|c)|^ca*",
    "^(?i)a|^b",
    "^(?i:A)b|^c$",
    "(?i)^A|^b",
    r"^a\.(b|c)$|^b\w",
    "^a|b",
    "^ab{2}|^[ab]c",
    "^(a(b|c)|b)$",
    "^a.c|^",
)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=st.lists(st.text("abcAB.\n", max_size=5)))
def test_what_begins_so_is_what_matches(pattern: str, texts: list[str]) -> None:
    names = pl.Series(texts, dtype=pl.String)
    wanted = names.str.contains(pattern).to_list()
    assert NameTable(names).matching(pattern).tolist() == wanted
