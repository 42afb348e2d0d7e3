"""Many traces at a glance: one row for each, and which of them to look at first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.result import column_of
from tracekit.analyses.scope import Window, select
from tracekit.facts.units import format_share
from tracekit.names import clean
from tracekit.report.model import Column, Section, Table
from tracekit.trace import Trace

__all__ = ["MOST_IN_FULL", "busiest", "overview", "overview_table", "processes_table"]

MOST_IN_FULL: Final = 8
"""Of so many traces each has a report of its own: the devices of one machine."""

_TITLES: Final = {
    "process_id": "process",
    "busy_ns": "busy in all",
    "busy_share": "busy",
    "communication_share": "only communicating",
    "memory_share": "only copying",
    "first": "from",
    "last": "to",
}
_ROWS: Final = {
    "trace": pl.String,
    "rank": pl.Int64,
    "process_id": pl.Int64,
    "devices": pl.String,
    "kernels": pl.Int64,
}
_SHARES: Final = {
    "busy_ns": pl.Int64,
    "window_ns": pl.Int64,
    "busy_share": pl.Float64,
    "communication_share": pl.Float64,
    "memory_share": pl.Float64,
}
_TIMES: Final = {"first": pl.Int64, "last": pl.Int64}


def processes_table(traces: Sequence[Trace]) -> Table:
    """The processes of a file: rank, devices, kernels, and the times of the first and the last event of each.

    Times are ns from the first event of all.

    >>> import tracekit
    >>> table = processes_table([tracekit.read("sample_traces/cnn_cpu/trace.json.gz")])
    >>> table.frame.select("trace", "first", "kernels").row(0)
    ('trace', 0, 0)
    """
    origin = min(trace.meta.origin_ns for trace in traces)
    rows = [
        {
            **_row(trace),
            "first": trace.meta.origin_ns - origin,
            "last": trace.meta.origin_ns - origin + _length(trace),
        }
        for trace in traces
    ]
    shown = ("process_id", "rank", "devices", "kernels", *_TIMES)
    return _table("processes", pl.DataFrame(rows, schema={**_ROWS, **_TIMES}, orient="row"), shown)


def overview_table(traces: Sequence[Trace], *, window: Window = "steps", step: str | None = None) -> Table:
    """How each trace's devices passed the window.

    `busy_ns` is the sum over its devices; the shares are those of its busiest device, of the window: `communication_share`
    and `memory_share` of the time in which nothing else ran. Definitions: as in `breakdown`.
    Raises UsageError when no range of a trace matches `step`.

    >>> import tracekit
    >>> table = overview_table([tracekit.read("sample_traces/cnn_cpu/trace.json.gz")])
    >>> row = table.frame.row(0, named=True)
    >>> row["busy_share"] == row["busy_ns"] / row["window_ns"], busiest(table)
    (True, 0)
    """
    rows = [{**_row(trace), **_shares(trace, window, step)} for trace in traces]
    files = {trace.meta.path for trace in traces}
    shown = (
        *(("trace",) if len(files) > 1 else ()),
        *("rank", "process_id", "devices", "kernels", "busy_ns"),
        *("busy_share", "communication_share", "memory_share"),
    )
    return _table("traces", pl.DataFrame(rows, schema={**_ROWS, **_SHARES}, orient="row"), shown)


def busiest(table: Table) -> int:
    """The number of the row of an `overview_table` with the most device time; the first of all where none has any."""
    return int(table.frame["busy_ns"].fill_null(-1).arg_max() or 0)


def overview(table: Table, remedy: str, *, on_cpu: bool) -> Section:
    """An `overview_table` as a section, which says whose report follows; `remedy` says how to see other reports.

    `on_cpu`: no device was captured, and the figures are those of operators on the host.
    """
    chosen = table.frame.row(busiest(table), named=True)
    alone = [
        name
        for name in ("rank", "process_id")
        if chosen[name] is not None and table.frame[name].is_unique().all()
    ]
    who = f"{_TITLES.get(alone[0], alone[0])} {chosen[alone[0]]}" if alone else chosen["trace"]
    shares = table.frame["busy_share"].drop_nulls()
    spread = ""
    if shares.len():
        least, most, middle = (format_share(float(v)) for v in (shares.min(), shares.max(), shares.median()))  # type: ignore[arg-type]
        ran = "Operators ran" if on_cpu else "Their busiest devices were busy"
        spread = f"{ran} for {least} to {most} of the window (median {middle}). "
    time = "operator time" if on_cpu else "device time"
    answer = f"{spread}The report below the table is about {who}, which has the most {time}; {remedy}."
    return Section("traces", f"What did each of the {table.total_rows} traces do?", answer, tables=(table,))


def _row(trace: Trace) -> dict[str, object]:
    processes = trace.meta.process_ids
    return {
        "trace": clean(trace.meta.name),
        "rank": trace.meta.rank,
        "process_id": processes[0] if len(processes) == 1 else None,
        "devices": ", ".join(str(device.device_id) for device in trace.meta.devices),
        "kernels": trace.device.select((pl.col("kind") == "kernel").sum()).item(),
    }


def _shares(trace: Trace, window: Window, step: str | None) -> dict[str, object]:
    devices = breakdown(select(trace, window=window, step=step)).devices
    if not devices.height:
        return {}
    row = devices.sort("busy_ns", descending=True, maintain_order=True).row(0, named=True)
    whole = row["window_ns"]
    return {
        "busy_ns": int(devices["busy_ns"].sum()),
        "window_ns": whole,
        "busy_share": row["utilisation"],
        "communication_share": row["exposed_communication_ns"] / whole if whole else None,
        "memory_share": row["exposed_memory_ns"] / whole if whole else None,
    }


def _length(trace: Trace) -> int:
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in (trace.host, trace.device)
    ]
    return max((end for end in ends if end is not None), default=0)


def _table(name: str, frame: pl.DataFrame, shown: tuple[str, ...]) -> Table:
    columns = tuple(_column(one, dtype) for one, dtype in frame.schema.items())
    return Table(
        name=name, title="All of them", frame=frame, columns=columns, total_rows=frame.height, short=shown
    )


def _column(name: str, dtype: pl.DataType) -> Column:
    made = column_of(name, dtype)
    unit = "time" if name in _TIMES else made.unit
    return Column(name, _TITLES.get(name, made.title), unit)
