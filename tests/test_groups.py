"""Groups of rows against dictionaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

import tracekit
from tracekit.analyses.attribution.host_stack import host_stack
from tracekit.groups import falling, groups, text_codes
from tracekit.name_table import NameTable

FEW = st.integers(-3, 3)
FAR = st.sampled_from([-(2**62), -1, 0, 1, 2**62])
"""Too far apart for a table of all numbers between them."""


@given(st.lists(st.tuples(FEW, FAR, st.integers(-(2**40), 2**40)), max_size=30))
def test_groups_are_those_of_a_dictionary(rows: list[tuple[int, int, int]]) -> None:
    one, two, values = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    found = groups(one, two)
    expected: dict[tuple[int, int], list[int]] = {}
    for index, (first, second, _) in enumerate(rows):
        expected.setdefault((first, second), []).append(index)
    keys = sorted(expected)
    assert list(zip(*(key.tolist() for key in found.keys), strict=True)) == keys
    assert [mine.tolist() for mine in found.rows()] == [expected[key] for key in keys]
    assert found.first.tolist() == [expected[key][0] for key in keys]
    assert found.counts.tolist() == [len(expected[key]) for key in keys]
    for made, fold in ((found.sums, sum), (found.least, min), (found.greatest, max)):
        assert made(values).tolist() == [fold(rows[at][2] for at in expected[key]) for key in keys]


@pytest.mark.parametrize("last", [np.iinfo(np.int64).max, np.iinfo(np.int64).min + 2])
def test_keys_may_be_the_greatest_and_the_least_there_are(last: int) -> None:
    found = groups(last - np.array([2, 0, 2]), np.array([5, 5, 5]))
    assert [key.tolist() for key in found.keys] == [[last - 2, last], [5, 5]]
    assert (found.keys[0].dtype, found.of.tolist()) == (np.int64, [0, 1, 0])


@given(st.lists(st.tuples(FEW, FEW), max_size=20))
def test_rows_fall_by_one_key_and_rise_by_the_next(rows: list[tuple[int, int]]) -> None:
    one, two = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(2))
    order = sorted(range(len(rows)), key=lambda at: (-rows[at][0], rows[at][1], at))
    assert falling(-one, two).tolist() == order


@given(
    st.lists(st.integers(-1, 400), max_size=30),
    st.integers(0, 400),
    st.sampled_from([pl.String, pl.Categorical]),
)
def test_names_are_told_apart_however_many_there_are(
    numbers: list[int], more: int, kind: type[pl.DataType]
) -> None:
    """The 128th of them once was none."""
    names = [
        *(None if number < 0 else f"op{number}" for number in numbers),
        *(f"op{at}" for at in range(more)),
    ]
    column = pl.Series(names, dtype=kind)
    codes, texts = text_codes(column)
    assert [texts[code] for code in codes.tolist()] == names
    assert sorted(set(codes.tolist())) == list(range(len(texts)))
    for last in "08":
        wanted = [name is not None and name.endswith(last) for name in names]
        assert NameTable(column).matching(f"{last}$").tolist() == wanted
        assert NameTable(column).which(lambda name, last=last: name.endswith(last)).tolist() == wanted


@pytest.mark.parametrize("last", [127, 128, 32_768])
def test_a_sequence_number_is_kept_whole(last: int) -> None:
    """The last one of a trace, where it was 128 or 32,768, once was none."""
    sample = tracekit.read(ROOT / "sample_traces/cnn_cpu/trace.json.gz")
    host = sample.host.with_columns(pl.lit(last, pl.Int64).alias("sequence"))
    assert set(host_stack(replace(sample, host=host)).sequence.tolist()) == {last}
