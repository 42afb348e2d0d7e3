"""Any report or rule by its name: `report` returns the frame, `table` also names data that were not captured.

If the profile did not record the data, the table says so and names the flag that records them. An empty table without
such a note means that the profile recorded such events, but none occurred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from tracekit.analyses.nsys_stats.catalogue import CATALOGUE, ELSEWHERE, RULES, NsysEntry
from tracekit.analyses.nsys_stats.columns import COLUMNS, MISSING, SOURCES
from tracekit.analyses.nsys_stats.ranges import is_range
from tracekit.analyses.nsys_stats.rows import summed
from tracekit.analyses.stated import StatedTable, in_order, in_schema
from tracekit.errors import InconclusiveError, UsageError, nearest
from tracekit.facts.units import count_of
from tracekit.readers import format_named
from tracekit.trace import Trace

__all__ = ["MOST_ROWS", "in_unit", "report", "table"]

MOST_ROWS: Final = 50
"""The default number of rows of a rule's table, as in NVIDIA's programs."""

_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def report(traces: Trace | Sequence[Trace], name: str, rows: int = MOST_ROWS) -> pl.DataFrame:
    """The rows of a report or rule (a key of CATALOGUE) over one trace, or over several together, under NVIDIA's headings;
    for a rule, at most this number of `rows`, 0 for all.

    Times are ns, sizes MB; see `rows` for the clock. Raises UsageError for an unknown name, and InconclusiveError, with the
    flag that records the data, if the profile does not hold them.

    >>> import tracekit
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> report(trace, "nvtx_pushpop_sum")[["Instances", "Range"]].filter(Range=":aten::linear").rows()
    [(3, ':aten::linear')]
    """
    stated = table(traces, name, rows)
    if stated.not_captured is not None:
        raise InconclusiveError(f"{name}: not captured", remedy=f"record {stated.not_captured}")
    return stated.frame


def table(traces: Trace | Sequence[Trace], name: str, rows: int = MOST_ROWS) -> StatedTable:
    """As `report`, with the answer in a sentence; if data were not captured, the table says so and has no rows.

    Raises UsageError for an unknown name.

    >>> import tracekit
    >>> table(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"), "cuda_gpu_sum").not_captured
    'device activity: ProfilerActivity.CUDA'
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise UsageError(
            f"there is no report {name!r}",
            remedy=ELSEWHERE.get(name) or nearest(name, CATALOGUE, f"choose one of {', '.join(CATALOGUE)}"),
        )
    every = [traces] if isinstance(traces, Trace) else list(traces)
    lacking = next((need for need in entry.needs if not any(_holds(trace, need) for trace in every)), None)
    if lacking is not None:
        what, key = MISSING[lacking]
        formats = [format_named(trace.meta.format) for trace in every]
        able = next((one for one in formats if key in one.flags), formats[0])
        missing = f"{what}: {able.flag_for(key)}"
        return StatedTable(name, pl.DataFrame(schema=entry.schema), "Nothing to show.", missing)
    return _table(entry, every, rows)


def in_unit(table: StatedTable, unit: str) -> StatedTable:
    """The table with its times in ns, us, ms or s, and the unit in the headings.

    >>> in_unit(StatedTable("nvtx_sum", pl.DataFrame({"Total Time (ns)": [1500]}), ""), "us").frame.rows(named=True)
    [{'Total Time (us)': 1.5}]
    """
    if unit == "ns":
        return table
    times = [name for name in table.frame.columns if name.endswith("(ns)")]
    scaled = [(pl.col(name) / _UNITS[unit]).alias(name) for name in times]
    names = {name: name.replace("(ns)", f"({unit})") for name in times}
    return replace(table, frame=table.frame.with_columns(scaled).rename(names))


def _holds(trace: Trace, need: str) -> bool:
    """True if the profile recorded the data of this key of MISSING."""
    device, captured = trace.device, trace.meta.captured
    worked = device.height > 0 or "device" in captured
    if need == "kernels":
        kinds = device["kind"]
        only_graphs = bool((kinds == "graph").any()) and not (kinds == "kernel").any()
        return worked and not only_graphs
    if need in ("ranges", "startend"):
        nesting_counts = need == "ranges" or format_named(trace.meta.format).has_start_end_ranges
        return trace.ranges is not None or (nesting_counts and bool(is_range(trace).any()))
    return {
        "device": worked,
        "links": not device.height or device["launch_id"].null_count() < device.height,
        "calls": bool((trace.host["kind"] == "runtime").any()) or "launches" in captured,
        "os_calls": trace.os_calls is not None,
    }[need]


def _table(entry: NsysEntry, traces: Sequence[Trace], most: int) -> StatedTable:
    content = entry.rows(traces)
    rows, notes = content.frame, [content.note]
    if entry.by:
        rows = summed(rows, entry.by, entry.count)
    rows = rows.with_columns(
        pl.col(SOURCES[heading]).cast(COLUMNS[heading][0]).alias(heading)
        for heading in entry.columns
        if heading not in rows.columns and SOURCES.get(heading) in rows.columns
    )
    if entry.where is not None:
        rows = rows.filter(entry.where)
    rows = in_order(rows, entry.order)
    limited = ""
    if entry.where is not None and 0 < most < rows.height:
        limited = f"The first {most} of {count_of(rows.height, 'row')}"
        rows = rows.head(most)
    frame = in_schema(rows, entry.schema)
    answer = "Nothing found" if entry.key in RULES else "None occurred"
    if frame.height:
        answer = limited or count_of(frame.height, "row")
    return StatedTable(entry.key, frame, f"{'; '.join(filter(None, (answer, *notes)))}.")
