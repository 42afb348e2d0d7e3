"""The data of the reports: rows of all processes together, NVIDIA's names for them, and the statistics of a group.

Like `nsys stats`, a report covers all processes of a file. The rows of several traces are concatenated, with the
number of the trace in `part`, so that equal process, device and thread numbers of different processes are never
mixed.

In an export of Nsight Systems, times follow the file's own clock, so that you can find them in its timeline. In other
traces they count from the first event; for several traces with a known wall-clock time, from the earliest trace's
first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl
import polars.selectors as cs

from tracekit.classes import dataclass
from tracekit.readers import format_named
from tracekit.trace import Trace, one_of

__all__ = [
    "BYTES_PER_MB",
    "Rows",
    "copy_kinds",
    "device_rows",
    "extents",
    "megabytes",
    "operation",
    "renamed",
    "shape_text",
    "spread",
    "stacked",
    "summed",
]

BYTES_PER_MB: Final = 1_000_000
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


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a report.

    * `frame`: the rows, with the columns of the report (by their headings or by `columns.SOURCES`), or the rows that it
      sums up
    * `note`: the data that are not in it, if any
    """

    frame: pl.DataFrame
    note: str | None = None


def stacked(traces: Sequence[Trace], frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The frames of all traces, concatenated, with the trace's number in the column `part`, and starts (`start`,
    `*_start`) on the clock of the reports.
    """
    return pl.concat(
        frame.with_columns(
            pl.lit(part, pl.Int32).alias("part"), cs.matches("^(.*_)?start$") + _clock_shift(traces, part)
        )
        for part, frame in enumerate(frames)
    )


def _clock_shift(traces: Sequence[Trace], part: int) -> int:
    """The offset of the times of one of the traces, in ns."""
    meta = traces[part].meta
    if format_named(meta.format).has_own_clock:
        return meta.origin_ns
    others = [t.meta.origin_utc_ns for t in traces if not format_named(t.meta.format).has_own_clock]
    origins = [origin for origin in others if origin is not None]
    if meta.origin_utc_ns is None or len(origins) < len(others):
        return 0
    return meta.origin_utc_ns - min(origins)


def device_rows(traces: Sequence[Trace], *kinds: str) -> pl.DataFrame:
    """Device activities of these kinds (all kinds by default): the columns of DEVICE_SCHEMA, and `part`.

    If the launch of an activity is not known, its process is that of the trace if the trace has one process.
    """
    return stacked(traces, (_device_rows(trace, kinds) for trace in traces))


def _device_rows(trace: Trace, kinds: Sequence[str]) -> pl.DataFrame:
    rows = trace.device.filter(one_of("kind", *kinds)) if kinds else trace.device
    processes = trace.meta.process_ids
    return rows.with_columns(pl.col("process_id").fill_null(processes[0])) if len(processes) == 1 else rows


# -- names ------------------------------------------------------------------------------------------


def renamed(names: pl.Series, texts: pl.Expr) -> pl.Series:
    """A text for each name of a categorical column, from an expression over the text of `name`, once per distinct name."""
    column = names.to_frame("name")
    distinct = column.unique().with_columns(pl.col("name").cast(pl.String).alias("text"))
    new = distinct.select("name", texts.alias("new"))
    return column.join(new, on="name", how="left", maintain_order="left", nulls_equal=True)["new"]


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
    """The memory that a copy reads and writes, from its `text`; for a fill, the memory that it writes, and null.

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


def extents(sizes: pl.Series, prefix: str) -> list[pl.Series]:
    """The x, y and z of texts `[x, y, z]` as columns `<prefix>X` and so on, null without a text."""
    number = pl.col("text").str.extract_all(r"\d+")
    return [
        renamed(sizes, number.list.get(place, null_on_oob=True).cast(pl.Int64, strict=False)).alias(
            prefix + axis
        )
        for place, axis in enumerate("XYZ")
    ]


# -- statistics -------------------------------------------------------------------------------------


def spread(column: str = "duration", prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """Mean, median, least, greatest and standard deviation of a group's values, under NVIDIA's headings.

    The deviation is the sample's (n - 1), and 0 for a single value, as `nsys stats` prints it; null without a value.

    >>> frame = pl.DataFrame({"duration": [576_465, 577_585]})
    >>> [round(value, 1) for value in frame.select(spread()).row(0)]
    [577025.0, 577025.0, 576465, 577585, 792.0]
    """
    value = pl.col(column)
    deviation = pl.when(value.count() == 1).then(0.0).otherwise(value.std())
    return [
        value.mean().alias(f"{prefix}Avg ({unit})"),
        value.median().alias(f"{prefix}Med ({unit})"),
        value.min().alias(f"{prefix}Min ({unit})"),
        value.max().alias(f"{prefix}Max ({unit})"),
        deviation.alias(f"{prefix}StdDev ({unit})"),
    ]


def megabytes(column: str) -> pl.Expr:
    """A column of whole bytes in MB of 10⁶ bytes, to the byte.

    >>> pl.DataFrame({"bytes": [4_194_304]}).select(megabytes("bytes"))["bytes"].to_list()
    [4.194304]
    """
    return (pl.col(column) / BYTES_PER_MB).round(6)


def summed(rows: pl.DataFrame, by: Mapping[str, pl.Expr], count: str) -> pl.DataFrame:
    """Time, share in %, number (under the heading `count`) and spread of the rows' durations, grouped by these headings.

    >>> rows = pl.DataFrame({"name": ["a", "b", "a"], "duration": [1, 2, 5]})
    >>> sums = summed(rows, {"Name": pl.col("name")}, "Count").sort("Name")
    >>> sums.select("Name", "Total Time (ns)", "Time (%)", "Count").rows()
    [('a', 6, 75.0, 2), ('b', 2, 25.0, 1)]
    """
    # Names become text once they are few.
    keys = list(dict.fromkeys(root for text in by.values() for root in text.meta.root_names()))
    groups = rows.group_by(keys).agg(
        pl.col("duration").sum().alias("Total Time (ns)"), pl.len().alias(count), *spread()
    )
    time, total = pl.col("Total Time (ns)"), pl.col("Total Time (ns)").sum()
    return groups.with_columns(
        *(text.alias(heading) for heading, text in by.items()),
        pl.when(total > 0).then(100 * time / total).alias("Time (%)"),
    )
