"""The longest path cut into parts, each with what ran or was waited for in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.graph.build import Dependencies
from tracekit.analyses.graph.joint import Joint, Lengths
from tracekit.analyses.graph.model import INFERRED, LINKS
from tracekit.analyses.idle.gaps import KERNEL_GAP_NS
from tracekit.analyses.idle.host_code import timeline
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.classes import dataclass
from tracekit.classify import ACTIVITY_CLASSES
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.groups import codes_of, groups, none_to_null
from tracekit.limits import LONGEST_NAME
from tracekit.names import category_name
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import CATEGORIES, Schema

__all__ = [
    "PART_SCHEMA",
    "RESOURCES",
    "TOTALS",
    "Stretches",
    "Track",
    "bars_of",
    "longest_of",
    "part_name",
    "parts_of",
    "recorded",
    "stretches",
    "tracks_of",
]

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

TOTALS: Final = ("resource", "cause", "category", "name", "operator", "layer", "frame")
"""What parts of the path are added up by."""
_PORTION: Final = 1 << 18

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
    by_time: BoolArray
    """Whether the next link of the path rests on times: if the trace showed that nothing waited there, the path would not lie here."""

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
    leaves = np.minimum.accumulate(np.where(along, kind.size, np.arange(kind.size))[::-1])[::-1]
    by_time = np.append(np.isin(kind, INFERRED), False)[leaves]
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
        by_time[edge],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """What of a path one rank did of one kind: start and duration in ns, and what it was: rows of `lines.rows`, spans (−1: in none), or waits,
    which are numbers of a cause and of the activity that they led to.
    """

    rank: int
    start: Int64Array
    ns: Int64Array
    what: Int64Array
    named: Callable[[Int64Array], pl.DataFrame]
    """What some of `what` are: the columns of PART_SCHEMA from `resource` on, as far as they have any."""

    def rows(self, rows: Int64Array | slice) -> pl.DataFrame:
        """Some of its parts, with the columns of PART_SCHEMA."""
        back, what = codes_of(self.what[rows])
        return self.frame(self.named(what)[back], start=self.start[rows], duration_ns=self.ns[rows])

    def totals(self) -> Iterator[pl.DataFrame]:
        """What was on the path: the columns `rank` and TOTALS, `duration_ns`, and `parts`, the number of parts."""
        found = groups(self.what)
        sums = found.sums(self.ns)
        for low in range(
            0, max(found.size, 1), _PORTION
        ):  # names of all spans at once would be the largest columns of all
            some = slice(low, low + _PORTION)
            frame = self.frame(self.named(found.keys[0][some]), duration_ns=sums[some])
            frame = frame.with_columns(pl.Series("parts", found.counts[some], dtype=pl.Int64))
            yield frame.group_by("rank", *TOTALS).agg(pl.col("duration_ns", "parts").sum())

    def frame(self, names: pl.DataFrame, **columns: Int64Array) -> pl.DataFrame:
        """Names with numbers beside them, and null for what of PART_SCHEMA is in neither."""
        given = names.with_columns(
            pl.lit(self.rank).alias("rank"), *(pl.Series(key, values) for key, values in columns.items())
        )
        return given.select(
            (pl.col(name) if name in given.columns else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in PART_SCHEMA.items()
        )


def tracks_of(joint: Joint, path: Stretches) -> Iterator[Track]:
    """The parts of a path, by rank and kind."""
    member = joint.member[path.vertex]
    for number, (made, rank, shift) in enumerate(zip(joint.members, joint.ranks, joint.shift, strict=True)):
        mine = path if len(joint.members) == 1 else path.of(member == number, shift)
        ns = mine.end - mine.start
        ran, waited = np.flatnonzero(mine.activity >= 0), np.flatnonzero(mine.cause >= 0)
        wait = (mine.launched[waited] + 1) * len(CAUSES) + mine.cause[waited]
        for begin, took, what, named in (
            (mine.start[ran], ns[ran], mine.activity[ran], _activities),
            (*_code(made, mine), _spans),
            (mine.start[waited], ns[waited], wait, _waits),
        ):
            yield Track(rank, begin + shift, took, what, partial(named, made))


def recorded(joint: Joint) -> Stretches:
    """The longest path of the replay of what was recorded."""
    return stretches(joint, joint.lengths, joint.replayed, joint.begin)


def parts_of(joint: Joint) -> pl.DataFrame:
    """The recorded path in parts, in order, with the columns of PART_SCHEMA; they sum to the window."""
    tracks = tracks_of(joint, recorded(joint))
    return pl.concat([one.rows(slice(None)) for one in tracks]).sort("start", maintain_order=True)


def longest_of(tracks: Sequence[Track], count: int) -> pl.DataFrame:
    """So many of the longest parts, the longest first, with the columns of PART_SCHEMA."""
    every = np.concatenate([one.ns for one in tracks])
    least = np.partition(every, -count)[-count] if every.size > count else 0
    found = []
    for one in tracks:
        rows = np.flatnonzero(one.ns >= least)
        found.append(one.rows(rows[np.lexsort((one.start[rows], -one.ns[rows]))][:count]))
    return pl.concat(found).sort("duration_ns", "start", descending=[True, False]).head(count)


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


# -- what parts are --------------------------------------------------------------------------------


def _activities(made: Dependencies, rows: Int64Array) -> pl.DataFrame:
    """Activities of devices."""
    of = made.lines.rows[["activity_id", "name", "category", "class", "operator", "layer_id"]][rows]
    layer = _layers(made).gather(of["layer_id"]).alias("layer")
    return of.select(
        pl.lit("device").alias("resource"),
        pl.col("class").alias("cause"),
        "activity_id",
        "category",
        "name",
        "operator",
        layer,
    )


def _code(made: Dependencies, path: Stretches) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Start, duration and innermost span of the code of the host on the path."""
    rows = np.flatnonzero(path.thread >= 0)
    thread, start, end = path.thread[rows], path.start[rows], path.end[rows]
    if not rows.size:
        return start, end, thread
    message = _message(made, thread, start, end)
    waits = message >= 0
    of_messages = start[waits], (end - start)[waits], message[waits]
    thread, start, end = thread[~waits], start[~waits], end[~waits]
    begins = np.flatnonzero(np.append(True, (thread[1:] != thread[:-1]) | (start[1:] != end[:-1])))
    begins = begins[: thread.size]
    thread, start, end = (
        thread[begins],
        start[begins],
        end[np.append(begins[1:], end.size)[: begins.size] - 1],
    )
    pieces = timeline(made.stack.nesting, thread).split(thread, start, end)
    ns = pieces.end
    ns -= pieces.start  # in place: there may be millions
    if not waits.any():
        return pieces.start, ns, pieces.span
    found = ((pieces.start, ns, pieces.span), of_messages)
    begun, took, span = (np.concatenate(column) for column in zip(*found, strict=True))
    return begun, took, span


def _message(made: Dependencies, thread: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """The range of the message for which the main thread waits in each of these stretches; −1 for none. What it calls to wait is no work of its own."""
    passed = made.messages
    received = np.flatnonzero(passed.received)
    if not received.size:
        return np.full(start.size, -1, dtype=np.int64)
    order = received[np.argsort(passed.begin[received], kind="stable")]
    since, until, spans = passed.begin[order], passed.end[order], passed.span[order]
    place = np.searchsorted(since, start, side="right") - 1
    inside = (place >= 0) & (end <= until[place]) & (thread == made.stack.thread[spans[place]])
    return np.where(inside, spans[place], -1)


def _spans(made: Dependencies, spans: Int64Array) -> pl.DataFrame:
    """Code of the host by the innermost span."""
    model, causes = attribution(made.scope).model, made.causes
    op, names = take(made.operator, spans), made.stack.frame["name"]
    frame = pl.DataFrame(
        {
            "cause": _CAUSES.gather(causes.of(spans)),
            "span_id": none_to_null(spans),
            "layer": _layers(made).gather(none_to_null(model.places(spans).layer)),
            "operator": names.gather(none_to_null(op)),
            "name": names.gather(none_to_null(spans)),
            "frame": causes.names.gather(none_to_null(take(causes.frame, spans))),
        }
    ).with_columns(pl.lit("host").alias("resource"))
    return _with_operators(made, frame, op) if made.scope.on_cpu else frame


def _with_operators(made: Dependencies, frame: pl.DataFrame, op: Int64Array) -> pl.DataFrame:
    """The code of the host where no device was captured: operators are the work of the processors."""
    # What a backend communicates on a thread of its own has a place that its range does not tell.
    place = _layers(made).gather(attribution(made.scope).activities["layer_id"]).alias("place")
    work = (
        made.scope.activities.select("launch_id", "category", "class", place)
        .unique("launch_id", keep="first")
        .select(
            pl.col("launch_id").alias("op"),
            pl.col("category").cast(_KINDS).alias("of"),
            pl.col("class").cast(_KINDS),
            "place",
        )
    )
    joined = frame.with_columns(none_to_null(op).alias("op")).join(
        work, on="op", how="left", maintain_order="left"
    )
    known = pl.col("of").is_not_null()
    return joined.with_columns(
        pl.when(known).then(pl.lit("processor")).otherwise("resource").alias("resource"),
        pl.when(known).then("class").otherwise("cause").alias("cause"),
        pl.col("of").alias("category"),
        pl.when(known).then("operator").otherwise("name").alias("name"),
        pl.when(known).then("place").otherwise("layer").alias("layer"),
    ).drop("op", "of", "class", "place")


def _waits(made: Dependencies, waits: Int64Array) -> pl.DataFrame:
    """Waits for neither host code nor an activity, each with the call that launched what it led to."""
    call = take(made.lines.launch, waits // len(CAUSES) - 1)
    op, names = take(made.operator, call), made.stack.frame["name"]
    return pl.DataFrame(
        {
            "cause": _CAUSES.gather(waits % len(CAUSES)),
            "layer": _layers(made).gather(none_to_null(attribution(made.scope).model.places(call).layer)),
            "operator": names.gather(none_to_null(op)),
        }
    ).with_columns(pl.lit("wait").alias("resource"))


_CAUSES: Final = pl.Series(CAUSES, dtype=_KINDS)


def _layers(made: Dependencies) -> pl.Series:
    return attribution(made.scope).layers["path"].cast(pl.Categorical)
