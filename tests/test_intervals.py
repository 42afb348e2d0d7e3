"""Interval algebra against sets of single time points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import interval_passes, span_passes
from tracekit.intervals import EMPTY, IntervalSet, union

pytestmark = pytest.mark.usefixtures("both_passes")

POINT = st.integers(-30, 30)
PAIRS = st.lists(st.tuples(POINT, POINT), max_size=12)


def made(pairs: list[tuple[int, int]]) -> IntervalSet:
    return IntervalSet.of([a for a, _ in pairs], [b for _, b in pairs])


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def is_normal(s: IntervalSet) -> bool:
    pairs = s.pairs()
    return all(a < b for a, b in pairs) and all(pairs[i][1] < pairs[i + 1][0] for i in range(len(pairs) - 1))


@given(PAIRS)
def test_union_is_the_set_of_covered_points(pairs: list[tuple[int, int]]) -> None:
    got = made(pairs)
    assert is_normal(got)
    assert points(got.pairs()) == points(pairs)
    assert got.measure == len(points(pairs))


@given(PAIRS, PAIRS)
def test_operators_are_set_operations(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = made(a), made(b)
    for got, expected in (
        (left & right, points(a) & points(b)),
        (left | right, points(a) | points(b)),
        (left - right, points(a) - points(b)),
        (union([left, right, left]), points(a) | points(b)),
    ):
        assert is_normal(got)
        assert points(got.pairs()) == expected


@given(PAIRS, POINT, POINT)
def test_complement_clip_and_coverage(pairs: list[tuple[int, int]], low: int, high: int) -> None:
    got, window = made(pairs), set(range(low, high))
    assert points(got.complement(low, high).pairs()) == window - points(pairs)
    if low <= high:
        assert points(got.clip(low, high).pairs()) == window & points(pairs)
        assert got.coverage([low], [high]).tolist() == [len(window & points(pairs))]
    assert got.contains(list(range(-32, 32))).tolist() == [t in points(pairs) for t in range(-32, 32)]


@given(PAIRS, PAIRS)
def test_measures_add_up(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = made(a), made(b)
    assert (left & right).measure + (left - right).measure == left.measure


def test_large_times_stay_exact() -> None:
    base = 1_695_835_542_514_261_123
    got = IntervalSet.of([base, base + 1], [base + 1, base + 3])
    assert got.pairs() == [(base, base + 3)]


def test_empty_sets_do_nothing() -> None:
    some = IntervalSet.window(1, 5)
    assert not EMPTY
    assert len(EMPTY) == 0
    assert (some & EMPTY) == EMPTY == (EMPTY - some)
    assert (some | EMPTY) == some
    assert EMPTY.complement(0, 3).pairs() == [(0, 3)]
    assert union([]) == EMPTY
    assert EMPTY != 3


def test_arrays_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        IntervalSet.of([1, 2], [3])
    with pytest.raises(ValueError, match="flat"):
        IntervalSet.of(np.zeros((2, 2), dtype=np.int64), np.ones((2, 2), dtype=np.int64))


@pytest.mark.parametrize("how", ["joined", "common", "without", "covered"])
def test_a_native_pass_is_not_given_arrays_of_different_length(how: str) -> None:
    longer, shorter = np.arange(3), np.arange(1)
    if span_passes.by_numpy():
        pytest.skip("NumPy looks after that itself")
    pairs = longer, shorter
    other = longer if how == "covered" else pairs
    with pytest.raises(ValueError, match="different lengths"):
        getattr(interval_passes, how)(pairs, other)
