"""The order of host spans and the links to launches against their definitions, one row at a time."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.health import HealthLog
from tracekit.name_table import NameTable
from tracekit.readers.assemble import assemble
from tracekit.trace import DEVICE_SCHEMA, HOST_SCHEMA, empty

INWARD = {"python": 0, "runtime": 2, "sync": 2}
SPAN = st.tuples(
    st.sampled_from([None, -1, 3, 70_000]),  # process
    st.sampled_from([None, 1, 2, 2**40]),  # thread
    st.integers(0, 6),  # start
    st.integers(0, 4),  # duration
    st.sampled_from(["python", "op", "annotation", "runtime", "sync"]),
    st.sampled_from([None, 1, 2]),  # external id
)
CALL = st.tuples(st.integers(1, 2), st.integers(0, 9), st.integers(0, 30))
ACTIVITY = st.tuples(st.sampled_from([None, *range(12)]), st.integers(0, 30))


def frames(host: pl.DataFrame, device: pl.DataFrame) -> list[pl.DataFrame]:
    whole = []
    for rows, schema in ((host, HOST_SCHEMA), (device, DEVICE_SCHEMA)):
        whole.append(
            pl.concat([empty(schema), rows.cast({c: schema[c] for c in rows.columns})], how="diagonal")
        )
    return whole


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(SPAN, max_size=40))
def test_the_order_of_spans(spans: list[tuple[int | None, int | None, int, int, str, int | None]]) -> None:
    columns = ["process_id", "thread_id", "start", "duration", "kind", "external_id"]
    host = pl.DataFrame(spans, schema=columns, orient="row", infer_schema_length=None).with_columns(
        pl.int_range(pl.len()).cast(pl.String).alias("name")
    )
    made = assemble(frames(host, pl.DataFrame()), HealthLog()).host

    def key(row: int) -> tuple[int, ...]:
        process, thread, start, duration, kind, external = spans[row]
        places = (-1 if process is None else process, -1 if thread is None else thread)
        return (*places, start, -duration, INWARD.get(kind, 1), external or 0, row)

    assert made["name"].cast(pl.String).to_list() == [str(row) for row in sorted(range(len(spans)), key=key)]
    assert made["span_id"].to_list() == list(range(len(spans)))


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(CALL, max_size=12, unique_by=lambda call: call[1]), st.lists(ACTIVITY, min_size=1, max_size=20)
)
def test_links_where_every_id_is_that_of_one_call(
    calls: list[tuple[int, int, int]], activities: list[tuple[int | None, int]]
) -> None:
    host = pl.DataFrame(calls, schema=["process_id", "correlation", "start"], orient="row").with_columns(
        pl.lit("runtime").alias("kind"),
        pl.lit("cudaLaunchKernel").alias("name"),
        pl.lit(1).alias("thread_id"),
        pl.lit(1).alias("duration"),
    )
    device = pl.DataFrame(
        activities, schema={"correlation": pl.Int64, "start": pl.Int64}, orient="row"
    ).with_columns(kind=pl.lit("kernel"), device_id=pl.lit(0), stream_id=pl.lit(7), duration=pl.lit(0))
    health = HealthLog()
    made = assemble(frames(host, device), health)
    of_id = {correlation: (process, start) for process, correlation, start in calls if correlation}
    processes = {process for process, _, _ in calls}
    only = processes.pop() if len(processes) == 1 else None
    launched = dict(made.host.select("span_id", "correlation").rows())
    for row in made.device.iter_rows(named=True):
        known = of_id.get(row["correlation"])
        assert row["process_id"] == (known[0] if known else only)
        assert launched.get(row["launch_id"]) == (row["correlation"] if known else None)
    told = {row["kind"]: row["count"] for row in health.frame().iter_rows(named=True)}
    late = [
        start for correlation, start in activities if correlation in of_id and of_id[correlation][1] > start
    ]
    assert told.get("activity_before_launch", 0) == len(late)
    lost = [1 for correlation, _ in activities if correlation not in of_id]
    assert told.get("unlinked_activity", 0) == (len(lost) if calls else 0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from(["aten::mm", "mm", "", None]), max_size=10))
def test_names_that_match(names: list[str | None]) -> None:
    table = NameTable(pl.Series(names, dtype=pl.Categorical()))
    for pattern in ("mm$", "^aten", "none of them"):
        whole = [name is not None and bool(pl.Series([name]).str.contains(pattern)[0]) for name in names]
        assert table.matching(pattern).tolist() == whole
