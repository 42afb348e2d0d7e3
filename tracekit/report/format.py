"""Tables as a reader sees them: which columns and which rows are shown, and the one place where a figure gets its unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.analyses.result import UNITS, unit_of
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.facts.stack_names import NO_LAYERS, PARTS_OF_STEP
from tracekit.facts.terminal_text import printable
from tracekit.facts.units import (
    count_of,
    format_bytes,
    format_change,
    format_count,
    format_flop,
    format_ns,
    format_share,
)
from tracekit.findings import bound_name
from tracekit.names import category_name
from tracekit.report.model import Column, Scalar, Section, Table, TraceInfo, Tree, Unit, Window
from tracekit.trace import Excerpt
from tracekit.trees import depth_first, parent_rows

__all__ = [
    "FOLDED",
    "NOT_CAPTURED",
    "RIGHT_ALIGNED",
    "SHAPES",
    "arranged",
    "bound_name",
    "costliest",
    "first_rows",
    "format_cell",
    "format_device",
    "format_excerpt",
    "format_number",
    "format_scalars",
    "format_source",
    "format_value",
    "format_window",
    "is_silent",
    "legend",
    "listed_tables",
    "missing",
    "shown_columns",
    "sorted_tree",
]

NOT_CAPTURED: Final = "–"
_ANSWERS: Final = frozenset({"gain_ns", "fast_ns"})
"""Columns of durations in which nothing but 0 is an answer as well."""
REPEATS: Final = {"union_ns": "device_ns"}
"""Columns that are shown only where they differ from another."""

RIGHT_ALIGNED: Final = frozenset(UNITS) - {"text", "flag"}


def format_cell(value: Any, unit: Unit) -> str:
    """One value with its unit; a dash for what was not captured.

    >>> format_cell(1500, "ns"), format_cell(None, "ns"), format_cell(0.5, "ratio"), format_cell(True, "flag")
    ('1.50 µs', '–', '50.0 %', 'yes')
    """
    return NOT_CAPTURED if value is None else _FORMATS[unit](value)


def format_value(value: Any, column: Column) -> str:
    """One value of a column: as `format_cell`, with what the tables abbreviate written out.

    >>> format_value("gemm", Column("category", "category", "text"))
    'matrix multiplication'
    >>> format_value("launch_api", Column("cause", "cause", "text"))
    'launch calls'
    >>> format_value("[[4, 32, 8], [32], [], []]", Column("shapes", "shapes", "text"))
    '4×32×8, 32'
    """
    if isinstance(value, str):
        if column.name in _NAMED:
            return cause_name(value) if value in CAUSES else category_name(value)
        if column.name == "cause":
            return cause_name(value)
        if column.name in SHAPES:
            return _format_shapes(value)
    return format_cell(value, column.unit)


_NAMED: Final = frozenset({"category", "measure", "part"})
SHAPES: Final = frozenset({"shapes", "input_shapes", "output_shapes"})
"""Columns with lists of shapes, as JSON."""
FOLDED: Final = SHAPES | {"assumption", "meaning", "note", "problems"}
"""Columns whose texts may take several lines."""


def _format_shapes(text: str) -> str:
    r"""Shapes one after the other, without scalars at the end: they hide what tells two rows apart.

    >>> _format_shapes("[[4, 16], [], [[1], [2, 3]], []]"), _format_shapes("[[]]"), _format_shapes("[[")
    ('4×16, (), [1, 2×3]', '()', '[[')
    >>> _format_shapes('[[4, "\\u202e\\u001b[2J"]]')
    '4× [2J'
    """
    try:
        shapes = json.loads(text)
        while isinstance(shapes, list) and len(shapes) > 1 and shapes[-1] == []:
            shapes.pop()
        # A text in the JSON may have held its control characters as escapes.
        return printable(", ".join(map(_format_shape, shapes))) if isinstance(shapes, list) else text
    except (ValueError, RecursionError):
        return text


def _format_shape(shape: Any) -> str:
    if not isinstance(shape, list):
        return str(shape)
    if any(isinstance(part, list) for part in shape):
        return f"[{', '.join(map(_format_shape, shape))}]"
    return "×".join(map(str, shape)) or "()"


def format_number(value: float) -> str:
    """A plain number with about four digits.

    >>> format_number(1234567.0), format_number(3.14159), format_number(0.0)
    ('1,234,567', '3.142', '0')
    """
    if (value == int(value) and abs(value) < 1e15) or 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


_FORMATS: Final[dict[Unit, Callable[[Any], str]]] = {
    "text": str,
    "id": str,
    "device": lambda number: "host" if number < 0 else str(number),
    "ns": format_ns,
    "change": format_change,
    "time": format_ns,
    "bytes": format_bytes,
    "ratio": format_share,
    "count": lambda number: format_count(int(number)),
    "number": format_number,
    "gbps": lambda rate: f"{format_bytes(rate * 1e9)}/s",
    "byte_rate": lambda rate: f"{format_bytes(rate)}/s",
    "flop": format_flop,
    "flop_rate": lambda rate: format_flop(rate, per_second=True),
    "flag": lambda true: "yes" if true else "no",
}


_SCALAR_NAMES: Final = {
    ("idle", "idle_ns"): "streams idle",  # a sum over them, which can exceed the window
    ("idle", "host_wait_ns"): "streams waiting for the host",
    ("critical-path", "processor_ns"): "operators",
    ("critical-path", "host_ns"): "host code",
    ("critical-path", "wait_ns"): "waits",
    ("critical-path", "links"): "links between threads and streams",
    ("critical-path", "inferred_links"): "found by time",
    ("critical-path", "inferred_ns"): "path that rests on these",
    ("what-if", "low_ns"): "low end",
    ("what-if", "high_ns"): "high end",
    ("roofline", "flops_share"): "FLOPs known for",
    ("roofline", "bytes_share"): "bytes known for",
    ("roofline", "model_utilisation"): "model FLOPs utilisation",
}
_OF_PROCESSORS: Final = {
    ("idle", "device_idle_ns"): "outside operators",
    ("idle", "idle_ns"): "",
    ("idle", "host_wait_ns"): "",
}
"""What these figures are where no device was captured; empty: those of threads, which say the same again."""


def format_scalars(section: Section) -> list[tuple[str, str]]:
    """The figures of a section that are known, each by the name and in the words that a reader sees."""
    return [
        (said, _format_scalar(name, value))
        for name, value in section.scalars.items()
        if value is not None and (said := _scalar_name(section.name, name, on_cpu=section.on_cpu))
    ]


def format_window(window: Window) -> str:
    """What was analysed, how long it is, and how long the steps took on the host if that differs by more than a tenth."""
    text = f"{window.label}, {format_ns(window.duration_ns)}" if window.duration_ns else window.label
    host = window.steps[-1].end_ns - window.steps[0].start_ns if window.steps else window.duration_ns
    if abs(host - window.duration_ns) <= _DIFFERS * window.duration_ns:
        return text
    return f"{text}; on the host the step{'s'[: len(window.steps) - 1]} took {format_ns(host)}"


_DIFFERS: Final = 0.1


def _scalar_name(section: str, name: str, *, on_cpu: bool = False) -> str:
    """How a figure of a section is called before its value.

    >>> _scalar_name("idle", "device_idle_ns"), _scalar_name("idle", "idle_ns")
    ('device idle', 'streams idle')
    """
    if on_cpu and (section, name) in _OF_PROCESSORS:
        return _OF_PROCESSORS[section, name]
    plain = name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    return _SCALAR_NAMES.get((section, name), plain.replace("tflops", "TFLOP/s").replace("flops", "FLOPs"))


def _format_scalar(name: str, value: Scalar) -> str:
    """A scalar of a section by the unit in its name."""
    if isinstance(value, str):
        return value
    unit = unit_of(name, pl.Float64() if isinstance(value, float) else pl.Int64())
    return format_cell(value, unit)


def format_device(trace: TraceInfo) -> str:
    """The devices in words: `2 × NVIDIA H100`, or an empty text when none was captured."""
    names: dict[str, int] = {}
    for device in trace.devices:
        names[device.name] = names.get(device.name, 0) + 1
    words = []
    for name, count in names.items():
        words.append(
            (name if count == 1 else f"{count} × {name}")
            if name
            else f"{count_of(count, 'device')} that the file does not name"
        )
    return ", ".join(words)


def format_source(trace: TraceInfo) -> str:
    """Where the report comes from, on one line."""
    parts = [trace.path]
    if trace.rank is not None:
        parts.append(f"rank {trace.rank}" + (f" of {trace.world_size}" if trace.world_size else ""))
    if trace.process_id is not None:
        parts.append(f"process {trace.process_id}")
    device = format_device(trace)
    if device:
        parts.append(device)
    parts.append(f"{count_of(trace.event_count, 'event')}")
    return " · ".join(parts)


def legend(tables: Iterable[pl.DataFrame]) -> str:
    """What the names in these tables stand for that are no layers, in one sentence; empty if there is none.

    >>> legend([pl.DataFrame({"layer": ["conv1", "<loss>", "<data>"]})])
    'Names in <…> stand for work outside the layers, <data> for loading and copying of data.'
    """
    names = {name for table in tables for column in _OF_LAYERS & {*table.columns} for name in table[column]}
    parts = [f"{name} for {what}" for name, what in _TOLD.items() if name in names]
    if names & {*NO_LAYERS} - {"unattributed", "<root>"}:
        return ", ".join(["Names in <…> stand for work outside the layers", *parts]) + "."
    return f"{', '.join(parts)}.".replace(" for ", " stands for ", 1) if parts else ""


_TOLD: Final = {
    name: what
    for name, what in NO_LAYERS.items()
    if name not in PARTS_OF_STEP and name[1:-1] not in what.split()[:2]
}
"""The names that do not say themselves what they stand for."""
_OF_LAYERS: Final = {"layer", "name", "path", "pattern", "type"}


def listed_tables(section: Section) -> list[Table]:
    """The tables that a text shows: a time series only where it is the one table."""
    return [
        table
        for table in section.tables
        if not table.detail and (not table.series or len(section.tables) == 1)
    ]


def shown_columns(table: Table, names: Sequence[str] | None = None, *, zeros: bool = False) -> list[Column]:
    """The columns of these names (all when None) that hold anything, in this order.

    Columns without a value are left out, and with `zeros` false those in which every duration is 0; so is
    `device_id` when it would say the same in each of several rows, and what only repeats another column.
    """
    wanted = [name for name in (names or table.frame.columns) if name not in table.hidden]
    chosen = [table.column(name) for name in wanted]
    return [column for column in chosen if column is not None and _says_something(table, column, zeros=zeros)]


def _says_something(table: Table, column: Column, *, zeros: bool) -> bool:
    values = table.frame[column.name]
    rows = table.frame.height
    if not rows:
        return True
    if values.null_count() == rows or (column.unit == "text" and not (values != "").any()):
        return False
    if column.name in REPEATS and REPEATS[column.name] in table.frame.columns:
        return bool((values != table.frame[REPEATS[column.name]]).any())
    if column.unit == "device":
        return rows == 1 or values.n_unique() > 1
    return zeros or column.unit != "ns" or column.name in _ANSWERS or not values.min() == values.max() == 0


def arranged(table: Table) -> pl.DataFrame:
    """The rows as a reader meets them: siblings by what the tree is measured by, or as they are."""
    tree = table.tree
    if tree is None or not tree.largest_first:
        return table.frame
    return _by(table.frame, tree.measure, sizes=True)


def sorted_tree(table: Table, column: Column) -> Table:
    """The tree with siblings by this column, largest first (texts from a to z), and measured by it if it can be."""
    frame = _by(table.frame, column.name, descending=column.unit != "text")
    measured = column.unit in ("ns", "count", "ratio")
    return replace(
        table, frame=frame, tree=Tree(column.name if measured else "device_ns", largest_first=False)
    )


def _by(frame: pl.DataFrame, column: str, *, descending: bool = True, sizes: bool = False) -> pl.DataFrame:
    value = pl.col(column).abs() if sizes else pl.col(column)
    rank = frame.select(value.rank("ordinal", descending=descending)).to_series()
    key = rank.cast(pl.Int64).fill_null(frame.height + 1).to_numpy()
    return frame[depth_first(parent_rows(frame), key)]


def costliest(table: Table, rows: int) -> pl.DataFrame:
    """At most `rows` rows with the most of the tree's measure, and what is above them, in the order of `arranged`."""
    frame = arranged(table)
    if table.tree is None or frame.height <= rows:
        return frame.head(rows)
    above = parent_rows(frame).tolist()
    measure = frame[table.tree.measure].fill_null(0).abs().to_numpy()
    kept: set[int] = set()
    for row in np.lexsort((np.arange(frame.height), frame["depth"].to_numpy(), -measure)).tolist():
        chain = _missing_chain(row, above, kept)
        if len(kept) + len(chain) <= rows:
            kept.update(chain)
        if len(kept) == rows:
            break
    return frame[sorted(kept)]


def first_rows(table: Table, rows: int) -> pl.DataFrame:
    """The first rows; of a `summed` table with more than fit one more, with the sums of the others.

    >>> frame = pl.DataFrame({"name": ["a", "b", "c"], "ns": [5, 2, 1]})
    >>> first_rows(Table("t", "T", frame, (), 3, summed=True), 1).rows()
    [('a', 5), ('all 2 others', 3)]
    """
    frame = table.frame
    if not table.summed or frame.height <= rows + 1:  # one row more takes no more room than the sum
        return frame.head(rows + 1 if table.summed else rows)
    others = frame.slice(rows)
    texts = [name for name, kind in frame.schema.items() if not kind.is_numeric()]
    first = next(name for name in (*table.short, *texts) if name in texts)
    last = others.select(
        pl.lit(f"all {others.height:,} others" if name == first else None, dtype=kind).alias(name)
        if name in texts
        else pl.col(name).sum()
        for name, kind in frame.schema.items()
    )
    return pl.concat([frame.head(rows), last])


def _missing_chain(row: int, above: list[int], kept: set[int]) -> list[int]:
    """The row and what is above it, as far as it is not kept yet."""
    chain = []
    while row >= 0 and row not in kept:
        chain.append(row)
        row = above[row]
    return chain


def missing(section: Section) -> str | None:
    """What the section could not say, None when there is nothing or when its answer says it already."""
    text = section.not_captured
    if text is None:
        return None
    return None if text.rstrip(".").lower() in section.answer.lower() else text.rstrip(".")


def is_silent(section: Section) -> bool:
    """Whether a section has nothing to show but what it lacks."""
    if section.not_captured is None or section.findings or section.error:
        return False
    tables = [table for table in section.tables if table.main] or section.tables
    return not any(table.total_rows for table in tables)


def format_excerpt(excerpt: Excerpt) -> str:
    """Which part of a large trace was read, in one sentence."""
    rows = f"{format_count(excerpt.rows)} of {format_count(excerpt.total_rows)} events"
    if excerpt.steps:
        part = f"{excerpt.steps} of {excerpt.total_steps} steps around the middle"
    else:
        part = f"{format_ns(excerpt.end - excerpt.start)} around the middle, which holds no whole step"
    return f"Only a part was read: {part}, {rows}; --max-events 0 reads all."
