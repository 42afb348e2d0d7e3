"""Groups of rows against dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.groups import falling, groups

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


@given(st.lists(st.tuples(FEW, FEW), max_size=20))
def test_rows_fall_by_one_key_and_rise_by_the_next(rows: list[tuple[int, int]]) -> None:
    one, two = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(2))
    order = sorted(range(len(rows)), key=lambda at: (-rows[at][0], rows[at][1], at))
    assert falling(-one, two).tolist() == order
