"""The rows that reports are made of, of all processes together.

`nsys stats` reports on all processes of a file at once, and so does this: rows of several traces stand below each
other, with `part`, the number of the trace, so that equal process, device and thread numbers of different
processes are never mixed.

Times are those of the file's own clock in an export of Nsight Systems, so that they can be looked up in its
timeline, and count from the first event in other traces (of several whose wall-clock time is known, from the
earliest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.readers import format_named
from tracekit.trace import Trace, one_of

__all__ = [
    "api_names",
    "clock_shift",
    "copy_kinds",
    "device_rows",
    "extents",
    "operation",
    "own_process",
    "renamed",
    "shape_text",
    "stacked",
]

_ENDS: Final = {"H": "Host", "D": "Device", "P": "Peer", "A": "Array"}
_COPIES: Final = {
    f"{kind}{way[0]}to{way[1]}": f"[CUDA memcpy {kind}{_ENDS[way[0]]}-to-{_ENDS[way[1]]}]"
    for kind, ways in (("", "HD DH DD PP HH HA AH AA AD DA"), ("Unified ", "HD DH DD"))
    for way in ways.split()
}
"""Direction in the name of a copy, as Kineto and `Trace` write it, to the operation of NVIDIA's reports."""

_FILL: Final = "[CUDA memset]"
_DIRECTION: Final = rf"({'|'.join(sorted(_COPIES, key=len, reverse=True))})"
_KINDS: Final = r"\(([^()]+?)(?: -> ([^()]+?))?\)"


def clock_shift(traces: Sequence[Trace], part: int) -> int:
    """What is added to the times of one of the traces, in ns."""
    meta = traces[part].meta
    if format_named(meta.format).has_own_clock:
        return meta.origin_ns
    others = [t.meta.origin_utc_ns for t in traces if not format_named(t.meta.format).has_own_clock]
    known = [origin for origin in others if origin is not None]
    if meta.origin_utc_ns is None or len(known) < len(others):
        return 0
    return meta.origin_utc_ns - min(known)


def stacked(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of each trace below each other, with the trace's number in the column `part`."""
    numbered = [frame.with_columns(pl.lit(part, pl.Int32).alias("part")) for part, frame in enumerate(frames)]
    return pl.concat(numbered, how="vertical")


def device_rows(traces: Sequence[Trace], *columns: str, kinds: Sequence[str] = ()) -> pl.DataFrame:
    """Device activities of these kinds (of all, when none is named): `part` and these columns of DEVICE_SCHEMA."""
    frames = []
    for part, trace in enumerate(traces):
        rows = trace.device.filter(one_of("kind", *kinds)) if kinds else trace.device
        rows = rows.with_columns(own_process(trace)).select(columns)
        if "start" in columns:
            rows = rows.with_columns(pl.col("start") + clock_shift(traces, part))
        frames.append(rows)
    return stacked(frames)


def own_process(trace: Trace) -> pl.Expr:
    """The process of each activity; where its launch is not known, that of the trace if it is of one process."""
    only = trace.meta.process_ids
    process = pl.col("process_id")
    return process.fill_null(only[0]) if len(only) == 1 else process


def api_names(traces: Sequence[Trace], rows: pl.DataFrame) -> pl.Series:
    """The name of the call that launched each device row (columns `part`, `launch_id`); null where it is unknown."""
    parts = []
    for part, trace in enumerate(traces):
        launches, names = rows.filter(pl.col("part") == part)["launch_id"], trace.host["name"]
        parts.append(names.gather(launches) if names.len() else names.clear(launches.len()))
    return pl.concat(parts).cast(pl.String)


def renamed(names: pl.Series, texts: pl.Expr) -> pl.Series:
    """A text for each name of a categorical column, by an expression over the text of `name`, once per distinct name."""
    column = names.to_frame("name")
    distinct = column.unique().with_columns(pl.col("name").cast(pl.String).alias("text"))
    made = distinct.select("name", texts.alias("new"))
    return column.join(made, on="name", how="left", maintain_order="left", nulls_equal=True)["new"]


def operation() -> pl.Expr:
    """NVIDIA's name of a copy or fill from its `text`; a text without a direction stays as it is.

    >>> frame = pl.DataFrame({"text": ["Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "odd"]})
    >>> frame.select(operation()).to_series().to_list()
    ['[CUDA memcpy Host-to-Device]', '[CUDA memset]', 'odd']
    """
    text = pl.col("text")
    copy = text.str.extract(_DIRECTION).replace_strict(_COPIES, default=None, return_dtype=pl.String)
    fill = pl.when(text.str.contains("(?i)memset")).then(pl.lit(_FILL))
    return pl.coalesce(copy, fill, text)


def copy_kinds() -> tuple[pl.Expr, pl.Expr]:
    """The memory that a copy reads and writes, from its `text`; of a fill the memory that it fills, and null.

    >>> frame = pl.DataFrame({"text": ["Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]})
    >>> frame.select(*(kind.alias(str(n)) for n, kind in enumerate(copy_kinds()))).rows()
    [('Pageable', 'Device'), ('Device', None)]
    """
    return pl.col("text").str.extract(_KINDS, 1), pl.col("text").str.extract(_KINDS, 2)


def shape_text(text: pl.Expr) -> pl.Expr:
    """The texts `[x, y, z]` of grids or blocks as `nsys stats` prints them, each number four wide.

    >>> pl.DataFrame({"grid": ["[896, 1, 1]", None]}).select(shape_text(pl.col("grid"))).to_series().to_list()
    [' 896    1    1', None]
    """
    numbers = text.cast(pl.String).str.extract_all(r"\d+")
    padded = numbers.list.eval(pl.element().str.pad_start(4)).list.join(" ")
    return pl.when(numbers.list.len() > 0).then(padded)


def extents(sizes: pl.Series) -> list[pl.Series]:
    """The x, y and z of texts `[x, y, z]`, null where there is none."""
    number = pl.col("text").str.extract_all(r"\d+")
    return [
        renamed(sizes, number.list.get(axis, null_on_oob=True).cast(pl.Int64, strict=False))
        for axis in range(3)
    ]
