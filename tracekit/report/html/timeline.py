"""The window as shapes to draw: layers by phase, spans of every thread, activities of every stream, and idle time.

A page draws hundreds of thousands of them smoothly when they come as columns of numbers: rows of shapes in order of
time, each a lane's line; within a row a start is counted from the one before it. `templates/timeline_data.js` reads
what is written here.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from markupsafe import Markup

from tracekit.analyses.attribution import METHODS
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_count
from tracekit.groups import at_rows, or_none
from tracekit.limits import LONGEST_NAME
from tracekit.names import category_name, clean
from tracekit.report.html.timeline_detail import SUMMARY, Detail
from tracekit.report.html.timeline_shapes import GROUPS, Shapes, shapes_of
from tracekit.report.model import Report, Step, Window
from tracekit.spans import Int64Array, nest
from tracekit.trace import Trace

__all__ = ["MAX_SHAPES", "shapes_drawn", "timeline", "varints", "zigzag"]

MAX_SHAPES: Final = 200_000
"""A page of more would be over 2 MB; of these the longest are kept, of Python frames and host spans first."""

SMALL: Final = 2000
"""A window with no more events is drawn in full."""
GAPS: Final = 10
"""As many rows of a table are in sight at first."""
LINES: Final = 2
"""A lane of no more lines takes little room."""
HOST_BOUNDS: Final = frozenset({"host-bound", "input-bound", "launch/short-kernel-bound", "idle", "cpu"})
"""The bounds of which the cause is on the host."""

_SUMMARIES: Final = {SUMMARY.format(each): each / 100 for each in range(10, 101, 10)}

_LABELS: Final = {
    "op": "operator",
    "python": "Python",
    "sync": "synchronisation",
    "annotation": "range",
    "runtime": "API call",
}

Frame = pl.DataFrame


def timeline(trace: Trace, report: Report, *, limit: int = MAX_SHAPES) -> dict[str, Any] | None:
    """The shapes of the report's window; None when there is nothing to draw.

    All of a small window is drawn, and of a large one a step of median length; of its other steps what is wide enough to
    be seen, and more where the report has evidence. Keys: `title` (the step in full, or an empty text), `note` (what was left out, or
    an empty text), `low_ns` (when the drawing begins, in ns from the trace's origin) and `span_ns`; `window` and `full`
    (from and to), `hidden` (groups of lanes that are closed at first) and `folded` (numbers of
    lanes of which one line is shown at first), `summaries` (notes of shapes that stand for several, and the
    part of the time that these take), `shapes` (how many), the tables `names`, `kinds`, `labels` (of the kinds, for the reader), `notes`, `layers` (`path` and `type` of each), `phases`,
    `methods`; `lanes`, each with `label`, `group` and `rows`, the number of shapes in each line; and `columns`, the name
    and size of each column in `data`. Shapes are numbered through all rows in order. Times are ns from `low_ns`.
    """
    drawing = shapes_drawn(trace, report, limit=limit)
    if drawing is None:
        return None
    shapes, total, step = drawing
    window, tables, on_host = report.window, _tables(shapes), _on_host(report)
    full = (shapes.low, shapes.high) if step is None else _full(trace, step)
    return {
        "title": "" if step is None else step.name,
        "note": _note(total, shapes.frame.height),
        "low_ns": shapes.low,
        "span_ns": shapes.high - shapes.low,
        "window": [window.start_ns - shapes.low, window.end_ns - shapes.low],
        "full": [max(full[0], shapes.low) - shapes.low, min(full[1], shapes.high) - shapes.low],
        "hidden": [] if on_host else ["python"],
        "folded": _folded(tables["lanes"]) if on_host else [],
        "summaries": {note: share for note, share in _SUMMARIES.items() if note in tables["notes"]},
        "shapes": shapes.frame.height,
        **tables,
    }


def shapes_drawn(
    trace: Trace, report: Report, *, limit: int = MAX_SHAPES
) -> tuple[Shapes, int, Step | None] | None:
    """The shapes in the order in which they are drawn, how many there were before the limit, and the step in full.

    The step is None if all of the window is drawn in full. To the columns come `line` (from the top of the lane), `link`
    and `ended` (numbers of shapes, -1 for none).
    """
    window = report.window
    low, high = _extent(trace, window)
    if high <= low:
        return None
    step = _middle(window.steps) if len(window.steps) > 1 and _events(trace, low, high) > SMALL else None
    full = None if step is None else _full(trace, step)
    detail = Detail(low, high, full, evidence_of(report), limit)
    path = report.section("critical-path") is not None
    shapes = shapes_of(trace, (window.start_ns, window.end_ns), detail, path=path)
    every = shapes.frame
    if not every.height:
        return None
    return (
        Shapes(_in_order(every, python_first=_on_host(report)), shapes.layers, shapes.low, shapes.high),
        every.height + sum(detail.cut),
        step,
    )


def evidence_of(report: Report) -> tuple[tuple[int, int], ...]:
    """The stretches of time that a reader of the report will look at first, in ns from the trace's origin."""
    places = [advice.stretches[0] for advice in report.verdict.advice if advice.stretches]
    for section in report.sections:
        for table in section.tables:
            if table.name == "device_gaps":
                ends = pl.col("start") + pl.col("duration_ns")
                places += table.frame.head(GAPS).select("start", ends.alias("end")).rows()
    return tuple(dict.fromkeys(places))


def _on_host(report: Report) -> bool:
    """Whether the evidence lies in what the host does, so that its Python is worth the room."""
    return report.verdict.bound in HOST_BOUNDS or any(
        advice.analysis == "idle" or advice.finding == "data_loading" for advice in report.verdict.advice
    )


def _folded(lanes: list[dict[str, Any]]) -> list[int]:
    """The lanes that make room for Python, if there is any; the others are at the top anyway."""
    if not any(lane["group"] == "python" for lane in lanes):
        return []
    high = (number for number, lane in enumerate(lanes) if len(lane["rows"]) > LINES)
    return [number for number in high if lanes[number]["group"] in ("layers", "streams")]


def _events(trace: Trace, low: int, high: int) -> int:
    """How many spans and activities touch this time."""
    end = pl.col("start") + pl.col("duration")
    return sum(
        int(frame.select(((pl.col("start") < high) & (end > low)).sum()).item())
        for frame in (trace.host, trace.device)
    )


def _middle(steps: tuple[Step, ...]) -> Step | None:
    ordered = sorted(steps, key=lambda step: step.end_ns - step.start_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _full(trace: Trace, step: Step) -> tuple[int, int]:
    """From the start of a step to its end, or that of the last activity that it launched."""
    low, high = step.start_ns, step.end_ns
    launched = at_rows(trace.host["start"], trace.device["launch_id"]).alias("launched")
    rows = trace.device[["start", "duration"]].with_columns(launched)
    at = pl.coalesce("launched", "start")
    last = rows.filter((at >= low) & (at < high)).select((pl.col("start") + pl.col("duration")).max()).item()
    return low, high if last is None else max(high, int(last))


def _extent(trace: Trace, window: Window) -> tuple[int, int]:
    """The window, its steps, and without steps the host spans that launched its activities."""
    low, high = window.start_ns, window.end_ns
    if window.steps:
        return min(low, window.steps[0].start_ns), high
    first = at_rows(trace.host["start"], trace.device["launch_id"].drop_nulls()).min()
    return min(low, first) if isinstance(first, int) else low, high


def _note(total: int, drawn: int) -> str:
    if drawn >= total:
        return ""
    left = format_count(total - drawn)
    return f"The longest {format_count(drawn)} shapes are drawn; {left} shorter ones are left out."


def _in_order(shapes: Frame, *, python_first: bool) -> Frame:
    """Sorted by lane, line and time, with `line`, `link` and `ended`; Python above the threads' other lanes if it is the evidence."""
    group = pl.col("group").cast(pl.Float64)
    if python_first:
        group = (
            pl.when(pl.col("group") == GROUPS.index("python"))
            .then(GROUPS.index("threads") - 0.5)
            .otherwise(group)
        )
    lanes = shapes.group_by("group", "key", "lane").len().sort(group, "key", "lane").drop("len")
    lanes = lanes.with_row_index("order")
    shapes = shapes.join(lanes, on=["group", "key", "lane"]).with_columns(
        pl.col("order").cast(pl.Int64), (pl.col("start") - pl.col("end")).alias("negative")
    )
    # Bars of layers of one length lie in the order of the tree, which is that of their numbers.
    shapes = shapes.sort(
        "order", "start", "negative", "layer_id", "span_id", "activity_id", maintain_order=True
    )
    shapes = shapes.with_columns(pl.Series("line", _depths(shapes), dtype=pl.Int64))
    shapes = shapes.sort("order", "line", "start", maintain_order=True).with_row_index("place")
    spans, activities = (
        shapes.filter(pl.col(name).is_not_null()).select(
            pl.col(name).alias(link), pl.col("place").cast(pl.Int64).alias(to)
        )
        for name, link, to in (("span_id", "link_span", "link"), ("activity_id", "link_activity", "ended"))
    )
    return (
        shapes.join(spans, on="link_span", how="left", maintain_order="left")
        .join(activities, on="link_activity", how="left", maintain_order="left")
        .with_columns(pl.col("link", "ended").fill_null(-1))
    )


def _depths(shapes: Frame) -> npt.NDArray[np.int64]:
    """How deep each shape lies in its lane; activities that overlap partly share a line."""
    lane = shapes["order"].to_numpy()
    return nest(lane, shapes["start"].to_numpy(), shapes["end"].to_numpy()).depth()


def _tables(shapes: Shapes) -> dict[str, Any]:
    frame = shapes.frame
    names, name = _coded(frame["name"])
    kinds, kind = _coded(frame["kind"])
    notes, note = _coded(frame["note"])
    used = frame["layer_id"].drop_nulls().unique().sort()
    number = pl.DataFrame({"layer_id": used, "layer": pl.int_range(used.len(), eager=True)})
    layer = frame[["layer_id"]].join(number, on="layer_id", how="left", maintain_order="left")["layer"]
    layers = shapes.layers[used.to_list()] if used.len() else shapes.layers.clear()
    rows = frame.group_by("order", "line", maintain_order=True).len()
    sizes, text = _packed(
        {
            "start": _since_before(frame, shapes.low),
            "duration": (frame["end"] - frame["start"]).to_numpy(),
            "name": name,
            "kind": kind,
            "layer": or_none(layer) + 1,
            "phase": or_none(frame["phase"]) + 1,
            "method": or_none(frame["method"]) + 1,
            "link": zigzag(np.diff(frame["link"].to_numpy(), prepend=0)),
            "note": note + 1,
            "ended": zigzag(np.diff(frame["ended"].to_numpy(), prepend=0)),
        }
    )
    lanes = frame.group_by("order", maintain_order=True).agg(pl.first("lane", "group"))
    counts: dict[int, list[int]] = {}
    for order, _, size in rows.iter_rows():
        counts.setdefault(order, []).append(size)
    return {
        "names": [clean(_cut(one)) for one in names],
        "kinds": kinds,
        "labels": [_LABELS.get(kind) or category_name(kind) for kind in kinds],
        "notes": [clean(_cut(one)) for one in notes],
        "layers": [
            {"path": clean(path), "type": clean(type_ or "")}
            for path, type_ in layers[["path", "type"]].iter_rows()
        ],
        "phases": list(PHASES),
        "methods": list(METHODS),
        "lanes": [
            {"label": label, "group": GROUPS[group], "rows": counts[order]}
            for order, label, group in lanes.iter_rows()
        ],
        "columns": sizes,
        "data": Markup(text),  # noqa: S704 - letters of base64, which are never cut
    }


def _cut(name: str) -> str:
    """The name, without its middle where it is longer than any that a reader looks through: cleaning takes a while."""
    half = 2 * LONGEST_NAME
    return name if len(name) <= 2 * half else f"{name[:half]} … {name[-half:]}"


def _since_before(frame: Frame, low: int) -> Int64Array:
    """Each start since that of the shape before it in its row; the first since the beginning."""
    start = frame["start"].to_numpy() - low
    apart = np.diff(frame["order"].to_numpy(), prepend=-1) | np.diff(frame["line"].to_numpy(), prepend=-1)
    return np.where(apart != 0, start, np.diff(start, prepend=0))


def _coded(values: pl.Series) -> tuple[list[str], Int64Array]:
    """The distinct texts in order of appearance, and the number of each row's; −1 for none."""
    distinct = values.drop_nulls().unique(maintain_order=True)
    table = pl.DataFrame({"text": distinct, "number": pl.int_range(distinct.len(), eager=True)})
    rows = pl.DataFrame({"text": values}).join(table, on="text", how="left", maintain_order="left")
    return distinct.to_list(), or_none(rows["number"])


def varints(values: npt.ArrayLike) -> bytes:
    """Each number in groups of seven bits, the lowest first; every byte but a number's last has its top bit set.

    >>> varints([1, 300]).hex()
    '01ac02'

    Raises ValueError for a negative number.
    """
    numbers = np.asarray(values, dtype=np.int64)
    if numbers.size and numbers.min() < 0:
        raise ValueError("only numbers from 0 on can be written")
    length = np.ones(numbers.size, dtype=np.int64)
    for group in range(1, 9):
        length += numbers >= (1 << (7 * group))
    at = np.cumsum(length) - length
    out = np.zeros(int(length.sum()), dtype=np.uint8)
    for group in range(int(length.max()) if length.size else 0):
        has = np.flatnonzero(length > group)
        more = np.where(length[has] > group + 1, 0x80, 0)
        out[at[has] + group] = ((numbers[has] >> (7 * group)) & 0x7F) | more
    return out.tobytes()


def zigzag(values: Int64Array) -> Int64Array:
    """Numbers of either sign as numbers from 0 on, small ones small.

    >>> zigzag(np.array([0, -1, 1, -2])).tolist()
    [0, 1, 2, 3]
    """
    return (values << 1) ^ (values >> 63)


def _packed(columns: Mapping[str, npt.ArrayLike]) -> tuple[list[tuple[str, int]], str]:
    """The name and size in bytes of each column's varints, and all of them deflated (zlib) as base64."""
    parts = {name: varints(values) for name, values in columns.items()}
    text = base64.b64encode(zlib.compress(b"".join(parts.values()), 6)).decode("ascii")
    return [(name, len(part)) for name, part in parts.items()], text
