"""Many traces at a glance: one row for each, and which of them to look at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.scope import Window, select
from tracekit.facts.units import format_share
from tracekit.names import clean, told_apart
from tracekit.report.model import Section, Table, Unit, table_of
from tracekit.trace import Trace

__all__ = ["busiest", "overview", "overview_table", "processes_table"]

_TITLES: Final = {
    "process_id": "process",
    "busy_ns": "busy in all",
    "busy_share": "busy",
    "communication_share": "only communicating",
    "memory_share": "only copying",
    "first": "from",
    "last": "to",
    "arithmetic": "FLOPs",
}
_ROWS: Final[dict[str, pl.DataType]] = {
    "trace": pl.String(),
    "rank": pl.Int64(),
    "process_id": pl.Int64(),
    "devices": pl.String(),
    "kernels": pl.Int64(),
}
_SHARES: Final[dict[str, pl.DataType]] = {
    "busy_ns": pl.Int64(),
    "window_ns": pl.Int64(),
    "busy_share": pl.Float64(),
    "communication_share": pl.Float64(),
    "memory_share": pl.Float64(),
}
_TIMES: Final[dict[str, pl.DataType]] = {"first": pl.Int64(), "last": pl.Int64()}
_FLOPS: Final[dict[str, pl.DataType]] = {"arithmetic": pl.String()}


def processes_table(traces: Sequence[Trace], lengths_ns: Sequence[int], flops: Sequence[str | None]) -> Table:
    """The processes of a file, which are so long and did so many FLOPs: rank, devices, kernels, FLOPs, and the times of the first
    and the last event of each.

    Times are ns from the first event of all.

    >>> import tracekit
    >>> table = processes_table([tracekit.read("sample_traces/cnn_cpu/trace.json.gz")], [500], [None])
    >>> table.frame[["trace", "first", "last", "kernels"]].row(0)
    ('trace', 0, 500, 0)
    """
    origin = min(trace.meta.origin_ns for trace in traces)
    starts = [trace.meta.origin_ns - origin for trace in traces]
    figures = [
        {"first": start, "last": start + length, "arithmetic": amount}
        for start, length, amount in zip(starts, lengths_ns, flops, strict=True)
    ]
    schema = {**_TIMES, **_FLOPS}
    return _table("processes", traces, figures, schema, ("process_id", "rank", "devices", "kernels", *schema))


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
    shares = [_shares(breakdown(select(trace, window=window, step=step)).devices) for trace in traces]
    hidden = {"window_ns"} if len({trace.meta.path for trace in traces}) > 1 else {"window_ns", "trace"}
    shown = tuple(name for name in (*_ROWS, *_SHARES) if name not in hidden)
    return _table("traces", traces, shares, _SHARES, shown)


def busiest(table: Table) -> int:
    """The number of the row of an `overview_table` with the most device time; the first of all where none has any."""
    return int(table.frame["busy_ns"].fill_null(-1).arg_max() or 0)


def overview(table: Table, remedy: str, *, on_cpu: bool) -> Section:
    """An `overview_table` as a section, which says whose report follows; `remedy` says how to see other reports.

    `on_cpu`: no device was captured, and the figures are those of operators on the host.
    """
    row = table.frame.row(busiest(table), named=True)
    alone = [
        name
        for name in ("rank", "process_id")
        if row[name] is not None and table.frame[name].is_unique().all()
    ]
    who = f"{_TITLES.get(alone[0], alone[0])} {row[alone[0]]}" if alone else row["trace"]
    shares = table.frame["busy_share"].drop_nulls()
    spread = ""
    if shares.len():
        least, most, middle = (format_share(float(v)) for v in (shares.min(), shares.max(), shares.median()))  # type: ignore[arg-type]
        ran = "Operators ran" if on_cpu else "Their busiest devices were busy"
        spread = f"{ran} for {least} to {most} of the window (median {middle}). "
    time = "operator time" if on_cpu else "device time"
    answer = f"{spread}The report below the table is about {who}, which has the most {time}; {remedy}."
    return Section("traces", f"What did each of the {table.total_rows} traces do?", answer, tables=(table,))


def _row(trace: Trace, name: str) -> dict[str, object]:
    processes = trace.meta.process_ids
    return {
        "trace": name,
        "rank": trace.meta.rank,
        "process_id": processes[0] if len(processes) == 1 else None,
        "devices": ", ".join(str(device.device_id) for device in trace.meta.devices),
        "kernels": trace.device.select((pl.col("kind") == "kernel").sum()).item(),
    }


def _shares(devices: pl.DataFrame) -> dict[str, object]:
    """What `breakdown` has of a trace's devices: their time in all, and the shares of the busiest one."""
    if not devices.height:
        return {}
    row = devices.row(devices["busy_ns"].arg_max() or 0, named=True)
    whole = row["window_ns"]
    return {
        "busy_ns": int(devices["busy_ns"].sum()),
        "window_ns": whole,
        "busy_share": row["utilisation"],
        "communication_share": row["exposed_communication_ns"] / whole if whole else None,
        "memory_share": row["exposed_memory_ns"] / whole if whole else None,
    }


def _table(
    name: str,
    traces: Sequence[Trace],
    figures: Sequence[dict[str, Any]],
    schema: Mapping[str, pl.DataType],
    shown: tuple[str, ...],
) -> Table:
    """A row for each trace: what it is, and its figures."""
    paths = [trace.meta.path for trace in traces]
    names = told_apart(paths) if len(set(paths)) > 1 else [clean(trace.meta.name) for trace in traces]
    rows = [
        {**_row(trace, own), **of_trace} for trace, own, of_trace in zip(traces, names, figures, strict=True)
    ]
    frame = pl.DataFrame(rows, schema={**_ROWS, **schema}, orient="row")
    units: dict[str, Unit] = dict.fromkeys(_TIMES, "time")
    return table_of(name, "All of them", frame, shown, _TITLES, units)
