"""Start/end ranges as layers, against a brute-force oracle: innermost where that is clear, none where it is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.attribution.layer_ranges import choose_ranges
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import select
from tracekit.range_filter import RangeFilter
from tracekit.trace import Trace

MAIN, OTHER = 100, 101
SPAN = tuple[int, int]


def read(program: Program) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        return tracekit.read(write_sqlite(program, Path(folder) / "export.sqlite"))


def launched(program: Program, at: int, number: int, tid: int = MAIN) -> None:
    program.call("cudaLaunchKernel", at, at + 1, correlation=number, tid=tid)
    program.kernel("work", 10_000 + 10 * number, 10_005 + 10 * number, correlation=number)


def places(trace: Trace) -> list[tuple[str | None, str]]:
    """The layer and the method of each activity, in order of its correlation."""
    scope = select(trace, window="trace")
    table = attribution(scope).layers
    rows = attributed(scope).join(table, on="layer_id", how="left").sort("correlation")
    return [(path, str(method)) for path, method in rows.select("path", "method").rows()]


def _nested(one: SPAN, other: SPAN) -> bool:
    (outer, inner) = (one, other) if one[1] - one[0] >= other[1] - other[0] else (other, one)
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def oracle(ranges: list[SPAN], at: int) -> int | None:
    """The innermost open range, or None when none is open or two are of which neither contains the other."""
    open_ = [number for number, (start, end) in enumerate(ranges) if start <= at < end]
    if not open_:
        return None
    inner = max(open_, key=lambda number: (ranges[number][0], -ranges[number][1], number))
    clear = all(_nested(ranges[one], ranges[other]) for one in open_ for other in open_)
    return inner if clear else None


def test_the_innermost_counts_on_any_thread() -> None:
    program = Program()
    program.start_end("epoch", 0, 1000, tid=MAIN, end_tid=OTHER)
    program.start_end("batch", 100, 500, tid=OTHER, end_tid=MAIN)
    launched(program, 50, 1)
    launched(program, 150, 2)
    launched(program, 160, 3, tid=OTHER)
    launched(program, 1500, 4)
    trace = read(program)
    assert places(trace) == [
        ("epoch", "interval"),
        ("epoch/batch", "interval"),
        ("epoch/batch", "interval"),
        (None, "unattributed"),
    ]
    tree = layers(trace).tree
    assert int(tree["device_own_ns"].sum()) == 4 * 5


def test_two_that_overlap_partly_are_no_answer() -> None:
    program = Program()
    program.start_end("request 1", 0, 100, tid=MAIN, end_tid=MAIN)
    program.start_end("request 2", 50, 150, tid=MAIN, end_tid=MAIN)
    for number, at in enumerate((25, 75, 125), start=1):
        launched(program, at, number)
    assert places(read(program)) == [
        ("request 1", "interval"),
        (None, "unattributed"),
        ("request 2", "interval"),
    ]


def test_a_range_of_the_thread_is_surer() -> None:
    program = Program()
    program.start_end("request", 0, 100, tid=MAIN, end_tid=MAIN)
    program.push_pop("encoder", 10, 50, tid=MAIN)
    launched(program, 20, 1)
    launched(program, 70, 2)
    assert places(read(program)) == [("encoder", "range"), ("request", "interval")]


def test_the_filters_choose_among_them() -> None:
    program = Program()
    program.start_end("epoch", 0, 1000, tid=MAIN, end_tid=MAIN)
    program.start_end("batch", 100, 500, tid=MAIN, end_tid=MAIN)
    launched(program, 150, 1)
    trace = read(program)
    assert places(choose_ranges(trace, RangeFilter(depth=1))) == [("epoch", "interval")]
    assert places(choose_ranges(trace, RangeFilter(exclude=("epoch",)))) == [("batch", "interval")]


def test_another_process_has_its_own() -> None:
    program = Program()
    for pid in (7, 8):
        program.call("cudaLaunchKernel", 20, 21, correlation=1, tid=pid, pid=pid)
        program.kernel("work", 100, 110, correlation=1, pid=pid)
    program.start_end("only 7", 0, 50, tid=7, end_tid=7, pid=7)
    with tempfile.TemporaryDirectory() as folder:
        both = tracekit.read_all(write_sqlite(program, Path(folder) / "export.sqlite"))
    assert [places(trace) for trace in both] == [[("only 7", "interval")], [(None, "unattributed")]]


SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 15)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(SPANS, st.lists(st.integers(0, 45), min_size=1, max_size=6, unique=True))
def test_as_the_oracle_says(ranges: list[SPAN], times: list[int]) -> None:
    program = Program()
    for number, (start, end) in enumerate(ranges):
        program.start_end(f"r{number}", 2 * start, 2 * end, tid=MAIN, end_tid=OTHER)
    for number, at in enumerate(sorted(times), start=1):
        launched(program, 2 * at, number)
    # A range during which nothing is launched is no layer, and hides none.
    seen = [span for span in ranges if any(span[0] <= at < span[1] for at in times)]
    names = [f"r{number}" for number, span in enumerate(ranges) if span in seen]
    expected = []
    for at in sorted(times):
        found = oracle(seen, at)
        expected.append(None if found is None else names[found])
    told = [path and path.rpartition("/")[2] for path, _ in places(read(program))]
    spans = dict(zip(names, seen, strict=True))
    # Of two equal ranges either is the inner one.
    assert [spans.get(name or "") for name in told] == [spans.get(name or "") for name in expected]
