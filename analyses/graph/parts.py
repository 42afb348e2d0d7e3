"""The longest path cut into parts, each with what ran or was waited for in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution, attribution
from tracekit.analyses.graph.build import Dependencies
from tracekit.analyses.graph.joint import Joint, Lengths
from tracekit.analyses.graph.model import LINKS
from tracekit.analyses.idle.causes import cause_name
from tracekit.analyses.idle.gaps import KERNEL_GAP_NS
from tracekit.analyses.idle.host_code import timeline
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER, SpanCauses, span_causes
from tracekit.classify import ACTIVITY_CLASSES
from tracekit.facts.idle_names import CAUSES
from tracekit.limits import LONGEST_NAME
from tracekit.names import category_name
from tracekit.spans import BoolArray, Int64Array, distinct_rows, take
from tracekit.trace import CATEGORIES, Schema

__all__ = ["PART_SCHEMA", "RESOURCES", "Stretches", "bars_of", "part_name", "parts_of", "stretches"]

RESOURCES: Final = ("device", "processor", "host", "wait")
"""What a part of the path is: an activity of a device, an operator of a processor, other host code, or a wait for neither."""

_KINDS: Final = pl.Enum(list(dict.fromkeys([*CAUSES, *ACTIVITY_CLASSES, *CATEGORIES])))
PART_SCHEMA: Final[Schema] = {
    "rank": pl.Int64,
    "start": pl.Int64,
    "duration_ns": pl.Int64,
    "resource": pl.Enum(RESOURCES),
    "cause": _KINDS,
    "activity_id": pl.Int64,
    "span_id": pl.Int64,
    "category": _KINDS,
    "name": pl.Categorical,
    "operator": pl.Categorical,
    "layer": pl.Categorical,
    "frame": pl.Categorical,
}
"""There may be millions of parts: their texts are numbers of few distinct ones."""

_WAITS: Final = {
    "launch": "launch_latency",
    "event": "dependency",
    "inferred_wait": "dependency",
    "collective": "dependency",
    "synchronisation": "synchronisation",
    "inferred_synchronisation": "synchronisation",
}
"""The cause of the lag of a link, as idle time has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of a path, in order: start and end in ns; the row of the activity that ran (`lines.rows`), or the thread whose code
    did (a code of the host stack), or else the cause of a wait (a number into CAUSES); −1 for none. `launched` is the row of what a wait
    for a launch led to.
    """

    start: Int64Array
    end: Int64Array
    activity: Int64Array
    thread: Int64Array
    cause: Int64Array
    launched: Int64Array
    source: Int64Array
    vertex: Int64Array
    """The vertices between which each stretch lies."""

    def of(self, rows: Int64Array | BoolArray, shift: int = 0) -> Stretches:
        """Some of them, with times that are so much earlier."""
        start, end, *rest = (getattr(self, name)[rows] for name in self.__slots__)
        return Stretches(start - shift, end - shift, *rest)


def stretches(joint: Joint, lengths: Lengths, times: Int64Array, begin: int) -> Stretches:
    """The longest path of a replay with these lengths, from `begin` on."""
    graph = joint.graph
    path, links = graph.path(lengths.weights, times), graph.links
    along = path.link < 0
    carried = np.where(along, joint.activity[path.source] >= 0, links.after[path.link])
    activity = np.where(carried, joint.activity[path.source], -1)
    ran = np.where(along, lengths.work[path.target], lengths.duration[path.source])
    # Where clocks differ, a call may return before what it waited for seems to end: the path never goes back.
    at = np.minimum.accumulate(times[np.append(path.source, path.target[-1])][::-1])[::-1]
    source, target = at[:-1], at[1:]
    middle = np.minimum(source + np.where(carried, ran, 0), target)
    kind = np.where(along, -1, links.kind[path.link])
    gap = target - middle
    cause = np.where(gap < KERNEL_GAP_NS, CAUSE_NUMBER["kernel_gap"], CAUSE_NUMBER["unexplained"])
    for name, why in _WAITS.items():
        cause[kind == LINKS.index(name)] = CAUSE_NUMBER[why]
    # What passes on a thread, or before its first instant, is what its code does.
    on_thread = (joint.thread[path.target] >= 0) & ~carried
    thread = np.where(on_thread, joint.thread[path.target], -1)
    cause = np.where(on_thread, -1, cause)
    launched = np.where(kind == LINKS.index("launch"), joint.activity[path.target], -1)
    # Each edge has two stretches: what ran, then the wait or code after it.
    bounds = np.stack([source, middle, target])
    start, end = (np.maximum(bounds[low : low + 2].T.reshape(-1), begin) for low in (0, 1))
    kept = np.flatnonzero(end > start)
    edge, rest = kept >> 1, (kept & 1).astype(bool)
    return Stretches(
        start[kept],
        end[kept],
        np.where(rest, -1, activity[edge]),
        np.where(rest, thread[edge], -1),
        np.where(rest, cause[edge], -1),
        np.where(rest, launched[edge], -1),
        path.source[edge],
        path.target[edge],
    )


def parts_of(joint: Joint) -> pl.DataFrame:
    """The recorded path in parts, in order, with the columns of PART_SCHEMA; they sum to the window."""
    path = stretches(joint, joint.lengths, joint.replayed, joint.begin)
    member = joint.member[path.vertex]
    frames = []
    for number, (made, rank, shift) in enumerate(zip(joint.members, joint.ranks, joint.shift, strict=True)):
        owners = attribution(made.scope)
        causes = span_causes(made.scope)
        mine = path if len(joint.members) == 1 else path.of(member == number, shift)
        for rows in (_device(made, mine), _host(made, owners, causes, mine), _waits(made, owners, mine)):
            placed = rows.with_columns(pl.lit(rank).alias("rank"), pl.col("start") + shift)
            frames.append(
                placed.select(
                    (pl.col(name) if name in placed.columns else pl.lit(None)).cast(dtype).alias(name)
                    for name, dtype in PART_SCHEMA.items()
                )
            )
    return pl.concat(frames).sort("start", maintain_order=True)


def bars_of(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts of a path with those of one kind that follow each other as one: `start`, `duration_ns`, `resource`, `part` (a kind of work,
    or a cause), and of its first one `layer`, `operator`, `name` and `span_id`.
    """
    part = pl.coalesce("category", "cause")
    bar = pl.struct("resource", part, "layer", "activity_id").rle_id()
    return (
        parts.with_columns(bar.alias("bar"), part.alias("part"))
        .group_by("bar", maintain_order=True)
        .agg(
            pl.col("start").first(),
            pl.col("duration_ns").sum(),
            *(pl.col(name).first() for name in ("resource", "part", "layer", "operator", "name", "span_id")),
        )
        .with_columns(pl.col("name", "part", "layer", "operator").cast(pl.String))
        .with_columns(pl.col("name").str.slice(0, LONGEST_NAME))
        .drop("bar")
    )


def part_name(part: str) -> str:
    """How a kind of work, or a cause, is called.

    >>> part_name("gemm"), part_name("launch_api")
    ('matrix multiplication', 'launch calls')
    """
    return cause_name(part) if part in CAUSES else category_name(part)


def _device(made: Dependencies, path: Stretches) -> pl.DataFrame:
    """The activities of devices on the path."""
    rows = np.flatnonzero(path.activity >= 0)
    of = made.lines.rows[path.activity[rows]]
    owners = attribution(made.scope)
    places = owners.activities.select("activity_id", "operator", "layer_id")
    joined = of.select("activity_id", "name", "category", "class").join(
        places, on="activity_id", how="left", maintain_order="left"
    )
    return joined.select(
        pl.Series("start", path.start[rows]),
        pl.Series("duration_ns", path.end[rows] - path.start[rows]),
        pl.lit("device").alias("resource"),
        pl.col("class").alias("cause"),
        "activity_id",
        "category",
        "name",
        "operator",
        _texts(owners.layers["path"]).gather(joined["layer_id"]).alias("layer"),
    )


def _host(made: Dependencies, owners: Attribution, causes: SpanCauses, path: Stretches) -> pl.DataFrame:
    """The code of the host on the path, by the innermost span."""
    rows = np.flatnonzero(path.thread >= 0)
    thread, start, end = path.thread[rows], path.start[rows], path.end[rows]
    new = np.append(True, (thread[1:] != thread[:-1]) | (start[1:] != end[:-1]))[: rows.size]
    begins = np.flatnonzero(new)
    last = np.append(begins[1:], rows.size)[: begins.size] - 1
    thread, start, end = thread[begins], start[begins], end[last] if rows.size else end
    stack = made.stack
    if rows.size:
        pieces = timeline(stack, thread).split(thread, start, end)
        at, until, span = pieces.start, pieces.end, pieces.span
    else:
        at = until = span = np.zeros(0, dtype=np.int64)
    distinct, back = distinct_rows(span, stack.size)
    layer = owners.model.places(distinct).layer[back]
    op = take(made.operator, span)
    names = stack.frame["name"]
    frame = pl.DataFrame(
        {
            "start": at,
            "duration_ns": until - at,
            "cause": _CAUSES.gather(causes.of(span)),
            "span_id": _or_null(span),
            "layer": _texts(owners.layers["path"]).gather(_or_null(layer)),
            "operator": names.gather(_or_null(op)),
            "name": names.gather(_or_null(span)),
            "frame": _texts(causes.names).gather(_or_null(take(causes.frame, span))),
        }
    ).with_columns(pl.lit("host").alias("resource"))
    return _with_operators(made, frame, op) if made.scope.on_cpu else frame


def _with_operators(made: Dependencies, frame: pl.DataFrame, op: Int64Array) -> pl.DataFrame:
    """The code of the host where no device was captured: operators are the work of the processors."""
    work = made.scope.activities.unique("launch_id", keep="first").select(
        pl.col("launch_id").alias("op"),
        pl.col("category").cast(_KINDS).alias("of"),
        pl.col("class").cast(_KINDS),
    )
    joined = frame.with_columns(_or_null(op).alias("op")).join(
        work, on="op", how="left", maintain_order="left"
    )
    known = pl.col("of").is_not_null()
    return joined.with_columns(
        pl.when(known).then(pl.lit("processor")).otherwise("resource").alias("resource"),
        pl.when(known).then("class").otherwise("cause").alias("cause"),
        pl.col("of").alias("category"),
        pl.when(known).then("operator").otherwise("name").alias("name"),
    ).drop("op", "of", "class")


def _waits(made: Dependencies, owners: Attribution, path: Stretches) -> pl.DataFrame:
    """The waits on the path for neither host code nor an activity."""
    rows = np.flatnonzero(path.cause >= 0)
    call = take(made.lines.launch, path.launched[rows])
    stack = made.stack
    distinct, back = distinct_rows(call, stack.size)
    layer = owners.model.places(distinct).layer[back]
    op = take(made.operator, call)
    names = stack.frame["name"]
    return pl.DataFrame(
        {
            "start": path.start[rows],
            "duration_ns": path.end[rows] - path.start[rows],
            "cause": _CAUSES.gather(path.cause[rows]),
            "layer": _texts(owners.layers["path"]).gather(_or_null(layer)),
            "operator": names.gather(_or_null(op)),
        }
    ).with_columns(pl.lit("wait").alias("resource"))


_CAUSES: Final = pl.Series(CAUSES, dtype=_KINDS)


def _texts(names: pl.Series) -> pl.Series:
    return names.cast(pl.Categorical)


def _or_null(rows: Int64Array) -> pl.Series:
    """The rows as a column, null for −1."""
    return pl.select(
        pl.when(pl.Series(rows, dtype=pl.Int64) >= 0).then(pl.Series(rows, dtype=pl.Int64))
    ).to_series()
