"""Nesting against the definition, by comparing every span with every other."""

from __future__ import annotations

from random import Random
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import span_passes
from tracekit.spans import Nesting, nest

SPAN = st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 12))
SPANS = st.lists(SPAN, max_size=25)
SECONDS = 10
"""A fast machine needs far less than one; before, it took minutes."""


pytestmark = pytest.mark.usefixtures("both_passes")


def ordered(spans: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int, int]], Nesting]:
    rows = sorted(((t, s, s + d) for t, s, d in spans), key=lambda r: (r[0], r[1], -r[2]))
    return rows, nest([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def parent(rows: list[tuple[int, int, int]], i: int) -> int:
    thread, start, end = rows[i]
    return max(
        (j for j in range(i) if rows[j][0] == thread and rows[j][1] <= start and rows[j][2] >= end),
        default=-1,
    )


@given(SPANS)
def test_parents_depths_and_self_times(spans: list[tuple[int, int, int]]) -> None:
    rows, nesting = ordered(spans)
    expected = [parent(rows, i) for i in range(len(rows))]
    assert nesting.parent.tolist() == expected
    depths: list[int] = []
    for up in expected:
        depths.append(0 if up < 0 else depths[up] + 1)
    assert nesting.depth().tolist() == depths
    own = [
        max(0, (r[2] - r[1]) - sum(rows[j][2] - rows[j][1] for j in range(len(rows)) if expected[j] == i))
        for i, r in enumerate(rows)
    ]
    assert nesting.self_time().tolist() == own


@pytest.mark.slow
@given(SPANS, st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 40)), min_size=1, max_size=20))
def test_innermost_open_span(spans: list[tuple[int, int, int]], queries: list[tuple[int, int]]) -> None:
    rows, nesting = ordered(spans)
    got = nesting.innermost_at([q[0] for q in queries], [q[1] for q in queries]).tolist()
    for (thread, time), found in zip(queries, got, strict=True):
        is_open = [
            i for i, (t, s, e) in enumerate(rows) if t == thread and s <= time and (time < e or s == time)
        ]
        assert found == max(is_open, default=-1)


@pytest.mark.slow
@given(SPANS)
def test_many_times_in_order_find_what_few_find(spans: list[tuple[int, int, int]]) -> None:
    _, nesting = ordered(spans)
    thread, time = (
        each.reshape(-1) for each in np.meshgrid(np.arange(-1, 4), np.arange(-2, 41), indexing="ij")
    )
    thread, time = np.repeat(thread, 9), np.repeat(time, 9)
    assert (nesting.innermost_at(thread, time) == nesting.innermost_at(thread[::-1], time[::-1])[::-1]).all()


@pytest.mark.slow
@given(SPANS, st.randoms(use_true_random=False))
def test_nearest_wanted_ancestor(spans: list[tuple[int, int, int]], random: object) -> None:
    rows, nesting = ordered(spans)
    wanted = np.array([random.random() < 0.3 for _ in rows], dtype=bool)  # type: ignore[attr-defined]
    for include_self in (True, False):
        got = nesting.nearest_ancestor(wanted, include_self=include_self).tolist()
        for i in range(len(rows)):
            at = i if include_self else parent(rows, i)
            while at >= 0 and not wanted[at]:
                at = parent(rows, at)
            assert got[i] == at


@pytest.mark.slow
@given(SPANS, st.randoms(use_true_random=False))
def test_what_lies_in_a_span_is_a_range_of_rows(spans: list[tuple[int, int, int]], random: Random) -> None:
    rows, nesting = ordered(spans)
    chains = [chain(nesting, row) for row in range(len(rows))]
    inside = [[row for row in range(len(rows)) if outer in chains[row]] for outer in range(len(rows))]
    assert [list(range(row, int(end))) for row, end in enumerate(nesting.after)] == inside
    few = [row for row in range(len(rows)) if random.random() < 0.2]
    around = sorted({outer for row in few for outer in chains[row]})
    assert nesting.with_ancestors(np.array(few, dtype=np.int64)).tolist() == around
    values = np.array([random.randrange(9) for _ in rows], dtype=np.int64)
    assert nesting.sums_within(values).tolist() == [sum(int(values[row]) for row in each) for each in inside]
    group = np.array([random.randrange(3) for _ in rows], dtype=np.int64)
    same = [any(group[outer] == group[row] for outer in chains[row][1:]) for row in range(len(rows))]
    assert nesting.in_same(group).tolist() == same


def chain(nesting: Nesting, row: int) -> list[int]:
    """The row and all around it, the innermost first."""
    found = [row]
    while nesting.parent[found[-1]] >= 0:
        found.append(int(nesting.parent[found[-1]]))
    return found


def test_the_ancestors_of_deep_spans_take_few_rounds() -> None:
    depth = 100_000
    deep = nest(np.zeros(depth), np.arange(depth), np.full(depth, depth) - np.arange(depth) + depth)
    begin = process_time()
    assert deep.with_ancestors(np.array([depth - 1])).size == depth
    assert process_time() - begin < SECONDS


@given(SPANS)
def test_whether_spans_overlap_partly(spans: list[tuple[int, int, int]]) -> None:
    rows, nesting = ordered(spans)
    crossing = any(
        t == u and s < begin < e < end for i, (u, begin, end) in enumerate(rows) for t, s, e in rows[:i]
    )
    assert nesting.may_overlap() or not crossing
    nested = [span for span in spans if span[1] // 5 == (span[1] + span[2]) // 5 and span[1] % 5 == 0]
    assert not ordered(nested)[1].may_overlap()


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3))
def test_a_million_siblings_and_a_deep_chain_take_few_rounds(seed: int) -> None:
    count = 200_000
    start = np.arange(count) * 10
    siblings = nest(np.zeros(count + 1, int), np.append(0, start), np.append(count * 10, start + 9 - seed))
    assert (siblings.parent[1:] == 0).all()
    chain = nest(np.zeros(3000, int), np.arange(3000), np.arange(3000)[::-1] + 10_000)
    assert chain.depth().tolist() == list(range(3000))


def test_unsorted_spans_are_refused() -> None:
    with pytest.raises(ValueError, match="sorted"):
        nest([0, 0], [5, 1], [6, 2])


@given(SPANS, st.integers(-1, 3))
def test_at_each_moment_of_a_thread_the_innermost_is_the_last_that_began(
    spans: list[tuple[int, int, int]], thread: int
) -> None:
    rows, nesting = ordered(spans)
    mine = [(row, start, end) for row, (of, start, end) in enumerate(rows) if of == thread and end > start]
    times = sorted({time for _, start, end in mine for time in (start, end)})
    open_ = [max((row for row, start, end in mine if start <= time < end), default=-1) for time in times]
    assert [found.tolist() for found in nesting.moments(thread)] == [times, open_]


@pytest.mark.parametrize(("low", "high"), [(2, 1), (-1, 1), (0, 3)])
def test_moments_of_rows_that_are_not_there_are_refused_before_a_native_pass(low: int, high: int) -> None:
    rows = np.array([0, 1])
    with pytest.raises(ValueError, match="not there"):
        span_passes.moments((rows * 0, rows, rows + 5, rows - 1), low, high)


def test_a_parent_behind_its_child_ends_a_native_pass() -> None:
    """Nothing else could lead beyond an array."""
    if span_passes.native is None:
        pytest.skip("by NumPy such rows are not looked for")
    for wrong in ([-1, 5], [0, -1], [-2]):
        rows = np.array(wrong, dtype=np.int8)
        for run in (span_passes.after, span_passes.depth):
            with pytest.raises(ValueError, match="behind its child"):
                run(rows)
        with pytest.raises(ValueError, match="behind its child"):
            span_passes.nearest(rows, rows > 0)
        columns = np.zeros(rows.size, dtype=np.int64), np.arange(rows.size), np.arange(rows.size) + 1, rows
        with pytest.raises(ValueError, match="behind its child"):
            span_passes.may_overlap(columns)
        if wrong[0] == 0:  # the next span begins as this one ends, so nobody asks what lies around it
            continue
        with pytest.raises(ValueError, match="behind its child"):
            span_passes.moments(columns, 0, rows.size)
    with pytest.raises(ValueError, match="different lengths"):
        span_passes.nearest(np.array([-1]), np.array([True, False]))


@given(st.data(), st.sampled_from([np.int8, np.int16, np.int32, np.int64]))
def test_values_are_taken_from_rows(data: st.DataObject, kind: type[np.signedinteger]) -> None:
    values = data.draw(st.lists(st.integers(-128, 127), min_size=1, max_size=9))
    rows = data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=9))
    found = span_passes.take(np.array(values, dtype=kind), np.array(rows, dtype=np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [-1 if row < 0 else values[row] for row in rows]
    with pytest.raises(IndexError):
        span_passes.take(np.array(values, dtype=kind), np.array([0, len(values)]))


def test_no_spans() -> None:
    nesting = nest([], [], [])
    assert nesting.depth().tolist() == []
    assert nesting.innermost_at([0], [1]).tolist() == [-1]


@pytest.mark.slow
def test_as_many_threads_as_spans_took_quadratic_time() -> None:
    count = 100_000
    thread = np.arange(count)
    nesting = nest(thread, np.zeros(count, int), np.ones(count, int))
    assert (nesting.innermost_at(thread[::-1], np.zeros(count, int)) == thread[::-1]).all()


@pytest.mark.slow
def test_spans_after_a_deep_chain_took_quadratic_time() -> None:
    depth, count = 20_000, 200_000
    start = np.append(np.arange(depth), 5 * depth + 2 * np.arange(count))
    end = np.append(5 * depth - np.arange(depth), 5 * depth + 2 * np.arange(count) + 1)
    began = process_time()
    nesting = nest(np.zeros(depth + count, int), start, end)
    found = nesting.innermost_at(np.zeros(count, int), np.full(count, 5 * depth - 7))
    assert process_time() - began < SECONDS
    assert nesting.parent.tolist() == [*range(-1, depth - 1), *[-1] * count]
    assert (found == 6).all()


@given(SPANS, st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 40)), max_size=20))
def test_a_search_finds_what_a_walk_finds(
    spans: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    thread, times = ([query[at] for query in queries] for at in (0, 1))
    _, walked = ordered(spans)
    expected = walked.innermost_at(thread, times).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_passes, "PATIENCE", 1)
        _, searched = ordered(spans)
        assert searched.parent.tolist() == walked.parent.tolist()
        assert searched.innermost_at(thread, times).tolist() == expected
