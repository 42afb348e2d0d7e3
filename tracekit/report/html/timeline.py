"""One step as shapes to draw: layers by phase, spans of every thread, activities of every stream, and idle time.

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

from tracekit.analyses.attribution import METHODS
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_count
from tracekit.names import clean
from tracekit.report.html.timeline_shapes import GROUPS, Shapes, shapes_of
from tracekit.report.model import Step, Window
from tracekit.spans import Int64Array, nest
from tracekit.trace import Trace

__all__ = ["MAX_SHAPES", "shapes_drawn", "timeline", "varints", "zigzag"]

MAX_SHAPES: Final = 200_000
"""A page of more would be over 2 MB; of these the longest are kept, of Python frames and host spans first."""

Frame = pl.DataFrame


def timeline(trace: Trace, window: Window, *, limit: int = MAX_SHAPES) -> dict[str, Any] | None:
    """The shapes of one step, or of the whole window when it has no steps; None when there is nothing to draw.

    The step is the one of median length. Keys: `title`, `note` (what was left out, or an empty text), `span_ns`,
    `shapes` (how many), the tables `names`, `kinds`, `notes`, `layers` (`path` and `type` of each), `phases`, `methods`; `lanes`,
    each with `label`, `group` and `rows`, the number of shapes in each line; and `columns`, the name and size of
    each column in `data`. Shapes are numbered through all rows in order. Starts are ns from the step's start.
    """
    drawing = shapes_drawn(trace, window, limit=limit)
    if drawing is None:
        return None
    shapes, total, title = drawing
    return {
        "title": title,
        "note": _note(total, shapes.frame.height),
        "span_ns": shapes.high - shapes.low,
        "shapes": shapes.frame.height,
        **_tables(shapes),
    }


def shapes_drawn(trace: Trace, window: Window, *, limit: int = MAX_SHAPES) -> tuple[Shapes, int, str] | None:
    """The shapes in the order in which they are drawn, how many there were before the limit, and the step's name.

    To the columns come `line` (from the top of the lane), `link` and `ended` (numbers of shapes, −1 for none).
    """
    step = _middle(window.steps)
    low, high = (step.start_ns, step.end_ns) if step else _extent(trace, window)
    if high <= low:
        return None
    shapes = shapes_of(trace, low, high)
    every = shapes.frame
    if not every.height:
        return None
    kept = every
    if every.height > limit:
        kept = every.with_columns((pl.col("end") - pl.col("start")).alias("length"))
        kept = kept.sort("rank", "length", descending=[False, True]).head(limit).drop("length")
    drawn = Shapes(_in_order(kept), shapes.layers, shapes.low, shapes.high)
    return drawn, every.height, step.name if step else "the whole window"


def _middle(steps: tuple[Step, ...]) -> Step | None:
    ordered = sorted(steps, key=lambda step: step.end_ns - step.start_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _extent(trace: Trace, window: Window) -> tuple[int, int]:
    """The window, and the host spans that launched its activities."""
    if not trace.has_device:
        return window.start_ns, window.end_ns
    first = trace.host["start"].gather(trace.device["launch_id"].drop_nulls()).min()
    return min(window.start_ns, first) if isinstance(first, int) else window.start_ns, window.end_ns


def _note(total: int, drawn: int) -> str:
    if drawn >= total:
        return ""
    left = format_count(total - drawn)
    return f"The longest {format_count(drawn)} shapes are drawn; {left} shorter ones are left out."


def _in_order(shapes: Frame) -> Frame:
    """Sorted by lane, line and time, with `line`, `link` and `ended`."""
    lanes = shapes.group_by("group", "key", "lane").len().sort("group", "key", "lane").drop("len")
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
    layer = frame.select("layer_id").join(number, on="layer_id", how="left", maintain_order="left")["layer"]
    layers = shapes.layers[used.to_list()] if used.len() else shapes.layers.clear()
    rows = frame.group_by("order", "line", maintain_order=True).len()
    sizes, text = _packed(
        {
            "start": _since_before(frame, shapes.low),
            "duration": (frame["end"] - frame["start"]).to_numpy(),
            "name": name,
            "kind": kind,
            "layer": layer.fill_null(-1).to_numpy() + 1,
            "phase": frame["phase"].fill_null(-1).to_numpy() + 1,
            "method": frame["method"].fill_null(-1).to_numpy() + 1,
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
        "names": [clean(one) for one in names],
        "kinds": kinds,
        "notes": [clean(one) for one in notes],
        "layers": [
            {"path": clean(path), "type": clean(type_ or "")}
            for path, type_ in layers.select("path", "type").iter_rows()
        ],
        "phases": list(PHASES),
        "methods": list(METHODS),
        "lanes": [
            {"label": label, "group": GROUPS[group], "rows": counts[order]}
            for order, label, group in lanes.iter_rows()
        ],
        "columns": sizes,
        "data": text,
    }


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
    return distinct.to_list(), rows["number"].fill_null(-1).to_numpy()


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
