"""The calls of communication: collectives and point-to-point, each with what was recorded of it (DEFINITIONS §8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attributed, attribution
from tracekit.analyses.call_sizes import elements_in, elements_of, with_sizes
from tracekit.analyses.call_times import came, exposure_of
from tracekit.analyses.flops import json_list
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.scope import Scope, launch_times, once, step_at
from tracekit.facts.collectives import (
    ELEMENT_BYTES,
    MPI_CALL,
    PEER_RANGE,
    algorithm_of,
    collective_name,
    protocol_of,
)
from tracekit.facts.stack_names import COLLECTIVE_RANGE
from tracekit.groups import at_rows, kept, or_none
from tracekit.spans import Int64Array, take
from tracekit.trace import COLLECTIVE_SCHEMA, Schema, empty

__all__ = ["CALLS", "ON_PROCESSORS", "RECORD", "Calls", "by_kernel", "calls_of", "of_one_rank"]

CALLS: Final[Schema] = {
    "name": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "sequence": pl.Int64,
    "source": pl.Int64,
    "destination": pl.Int64,
    "dtype": pl.String,
    "elements_in": pl.Int64,
    "elements_out": pl.Int64,
    "bytes": pl.Int64,
    "bus_bytes": pl.Float64,
    "algorithm": pl.String,
    "protocol": pl.String,
    "device_id": pl.Int64,
    "stream_id": pl.Int64,
    "step": pl.Int64,
    "phase": pl.String,
    "layer": pl.String,
    "launched": pl.Int64,
    "came": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "duration_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "held_ns": pl.Int64,
    "kernels": pl.Int64,
}
"""Columns of a call: what it is and among whom, what it moves, where it belongs, when it ran.

`name` is that of `facts.collectives`. `elements_in`, `elements_out` and `dtype` are this rank's; `bytes` is the size of the
call as nccl-tests count it: of an all-gather and a gather what a rank has afterwards, of a reduce-scatter what it had, else what it
puts in. `bus_bytes` is what the links carry for each rank: `bytes` times the factor of nccl-tests, of an uneven all-to-all
what this rank sends to or receives from the others, whichever is more. `source` and `destination` are ranks: of the job, or of
the group where its ranks were not recorded. A send of gloo starts with the operator that queued it. `launched` is the start of the launch on the host; `came` is when the call could
have started if none had stood before it: when it was launched, or queued in the backend, and what had been launched before it on its device was computed. `exposed_ns` is the time in which
nothing computed on the same device, `held_ns` the part of it in which work stood in a queue there or the host waited for it, `kernels` how many activities the call has. Times are ns from the trace's origin; what was
not recorded is null. Without a device, a call is a range of the CPU backend (`gloo:…`). Calls of MPI, and of such a backend
beside a device, occupy no device: their `device_id` is −1, and they have no `exposed_ns` and `held_ns`.
"""


class Calls(msgspec.Struct, frozen=True, eq=False):
    """The calls of a scope, and the activities that they are made of."""

    table: pl.DataFrame
    """One row per call by start, with the columns of `CALLS`."""
    parts: pl.DataFrame
    """The activities: `call` (a row of `table`), `device_id`, `start`, `end`. Calls on the host have none."""
    launch_span: Int64Array
    """For each call the host span that launched it, or that queued it in the backend; −1 where none is known."""


def by_kernel(activity: pl.Expr) -> pl.Expr:
    """A number for what no host span stands for, only an activity: below −1, so that it is none of a span."""
    return -2 - activity


RECORD: Final = pl.coalesce("span_id", by_kernel(pl.col("activity_id")))
"""Who recorded a row of `Trace.collectives`: the number of its operator, else that of `by_kernel`."""


def calls_of(scope: Scope) -> Calls:
    """The calls of the scope."""
    return once(scope, _calls)


def of_one_rank(calls: pl.DataFrame) -> bool:
    """Whether all of these calls are known to be in groups of one rank, and so exchange nothing."""
    sizes = calls["group_size"]
    return sizes.min() == sizes.max() == 1 and not sizes.null_count()


def _calls(scope: Scope) -> Calls:
    on_host = _on_host(scope)
    if not on_host.size and not (scope.activities["class"] == "communication").any():
        return Calls(empty(CALLS), empty(_PARTS), np.zeros(0, dtype=np.int64))
    work = _work(scope)
    first = (
        work.group_by("call", maintain_order=True)
        .agg(
            pl.col("name").cast(pl.String).first().alias("kernel"),
            *(pl.col(name).first() for name in _OF_FIRST),
            pl.col("phase").cast(pl.String).first(),
            pl.col("layer").cast(pl.String).first(),
            pl.col("launched", "came", "start").min(),
            pl.col("end").max(),
            pl.col("exposed_ns", "held_ns").sum(),
            pl.len().cast(pl.Int64).alias("kernels"),
        )
    )  # fmt: skip
    if on_host.size:
        first = pl.concat([first, _host_calls(scope, on_host, first.schema)])
    queueing = _queueing(scope)
    rows = _whole(scope, first, queueing).sort("start", "end", maintain_order=True)
    numbers = rows[["call"]].with_row_index("number")
    parts = work.join(numbers, on="call", how="inner", maintain_order="left").select(
        pl.col("number").cast(pl.Int64).alias("call"), "device_id", "start", "end"
    )
    spans = queueing[rows["anchor"].to_numpy()]
    rows = _recorded(scope, rows)
    names = [_name(*texts) for texts in rows[list(_NAMES)].rows()]
    rows = rows.with_columns(
        pl.Series("name", names, dtype=pl.String),
        *_peers_of(scope, rows, names, spans),
        _per_text(rows["kernel"], algorithm_of).alias("algorithm"),
        _per_text(rows["kernel"], protocol_of).alias("protocol"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
    )
    table = with_sizes(rows, scope.trace.meta.rank).select(
        pl.col(name).cast(kind) for name, kind in CALLS.items()
    )
    return Calls(table, parts, spans)


_NO_SPAN: Final = -2
_OF_FIRST: Final = ("activity_id", "record", "span", "anchor", "device_id", "stream_id", "step")
_PARTS: Final[Schema] = {"call": pl.Int64, "device_id": pl.Int64, "start": pl.Int64, "end": pl.Int64}


def _work(scope: Scope) -> pl.DataFrame:
    """The communication of the scope by start. `call` is equal for the activities of one call; `record` and `span` (−1 for none) are
    the spans of the host that say more of it: the record of PyTorch, and the range of the backend; `anchor` is the span that
    launched the activity.
    """
    rows = attributed(scope).hstack([pl.Series("launched", launch_times(scope.trace, scope.activities))])
    every = rows.hstack([came(rows)])
    rows = kept(every, every["class"] == "communication")
    rows = rows.hstack(list(exposure_of(scope, every, rows)))
    span = _backend_ranges(scope, rows)
    if scope.on_cpu and (span >= 0).any():  # the operators of these collectives only queue them
        rows, span = kept(rows, span >= 0), span[span >= 0]
    op = or_none(rows["op_id"])
    record = np.where(np.isin(op, _recording(scope)), op, -1)
    alone = -2 - rows["activity_id"].to_numpy()
    call = np.where(record >= 0, record, np.where(span >= 0, span, alone))
    return rows.with_columns(
        pl.Series("record", record, dtype=pl.Int64),
        pl.Series("span", span, dtype=pl.Int64),
        pl.Series("call", call, dtype=pl.Int64),
        pl.Series("anchor", _anchor(rows)),
        at_rows(attribution(scope).layers["path"], rows["layer_id"]).alias("layer"),
    ).sort("start", "end", maintain_order=True)


def _anchor(rows: pl.DataFrame) -> Int64Array:
    """The span that launched each activity, else the operator around it; −1 for none."""
    launch = or_none(rows["launch_id"])
    return np.where(launch >= 0, launch, or_none(rows["op_id"]))


def _recording(scope: Scope) -> Int64Array:
    """The host spans with a record of communication."""
    known = scope.trace.collectives
    return or_none((empty(COLLECTIVE_SCHEMA) if known is None else known)["span_id"], _NO_SPAN)


def _on_host(scope: Scope) -> Int64Array:
    """The spans of calls that only the host makes: of MPI, and of a backend for processors beside a device. No device is exposed to them."""
    stack = attribution(scope).model.stack
    wanted = stack.named(MPI_CALL, "op", "annotation")
    if not scope.on_cpu:
        wanted |= stack.named(ON_PROCESSORS, "op", "annotation")
    spans = np.flatnonzero(wanted)
    if not spans.size:
        return spans
    spans = spans[take(stack.nesting.nearest_ancestor(wanted), stack.nesting.parent[spans]) < 0]
    low, high = scope.host_window()
    return spans[(stack.start[spans] >= low) & (stack.start[spans] < high)]


def _host_calls(scope: Scope, span: Int64Array, schema: pl.Schema) -> pl.DataFrame:
    """The calls of these spans, with the columns of those of a device."""
    stack = attribution(scope).model.stack
    start, end = stack.start[span], stack.end[span]
    recorded = np.isin(span, _recording(scope))
    frame = scope.trace.host[span].select(
        *(pl.col("span_id").alias(name) for name in ("call", "span", "anchor")),
        pl.col("name").cast(pl.String).alias("kernel"),
        pl.Series("record", np.where(recorded, span, -1)),
        pl.lit(CPU_DEVICE).alias("device_id"),
        pl.col("thread_id").alias("stream_id"),
        step_at(scope.steps, start).alias("step"),
        pl.Series("start", start),
        *(pl.Series(name, start) for name in ("launched", "came")),
        pl.Series("end", end),
        pl.lit(0).alias("kernels"),
    )
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


ON_PROCESSORS: Final = r"^(gloo|mpi|ucc):"
"""Ranges of PyTorch's backends for processors around each of their calls."""


def _backend_ranges(scope: Scope, rows: pl.DataFrame) -> Int64Array:
    """The nearest range of PyTorch's backend around the launch of each activity, −1 for none."""
    stack = attribution(scope).model.stack
    return take(
        stack.nesting.nearest_ancestor(stack.named(COLLECTIVE_RANGE, "annotation", "op")), _anchor(rows)
    )


def _recorded(scope: Scope, rows: pl.DataFrame) -> pl.DataFrame:
    """With what PyTorch or NCCL recorded of each call, else with the shapes of the backend's range."""
    known = scope.trace.collectives if scope.trace.collectives is not None else empty(COLLECTIVE_SCHEMA)
    columns = (
        "group",
        "group_size",
        "group_ranks",
        "sequence",
        "dtype",
        "elements_in",
        "elements_out",
        "peer",
    )
    records = known.with_columns(RECORD.alias("said_by")).drop_nulls("said_by").unique("said_by", keep="last").select(
        "said_by", pl.col("name").cast(pl.String).alias("record_name"), *columns, "split_in", "split_out"
    )  # fmt: skip
    said_by = pl.when(pl.col("record") >= 0).then("record").otherwise(by_kernel(pl.col("activity_id")))
    named = {"span_name": "name", "shapes": "shapes", "dtypes": "dtypes"}
    joined = (
        rows.with_columns(said_by.alias("said_by"))
        .join(records, on="said_by", how="left", maintain_order="left")
        .with_columns(
            at_rows(scope.trace.host[of], rows["span"]).cast(pl.String).alias(name)
            for name, of in named.items()
        )
    )
    elements = [elements_of(shapes) for shapes in joined["shapes"]]
    dtypes = [_type_of_first(dtypes) for dtypes in joined["dtypes"]]
    meta = scope.trace.meta
    # A range of PyTorch's backend does not tell its group, but of one group there is no doubt.
    of_backend = pl.col("span_name").str.contains(COLLECTIVE_RANGE)
    everyone = pl.when(of_backend).then(pl.lit(meta.world_size if meta.one_group else None, pl.Int64))
    return joined.with_columns(
        pl.coalesce("group_size", everyone).alias("group_size"),
        pl.coalesce("elements_in", pl.Series(elements, dtype=pl.Int64)).alias("elements_in"),
        pl.coalesce(pl.col("dtype").cast(pl.String), pl.Series(dtypes, dtype=pl.String)).alias("dtype"),
    )


@lru_cache(maxsize=4096)
def _type_of_first(dtypes: str | None) -> str | None:
    first = next(iter(json_list(dtypes)), None)
    return first if isinstance(first, str) and first in ELEMENT_BYTES else None


# -- who queued a call, and who is its peer ---------------------------------------------------------


def _queueing(scope: Scope) -> Int64Array:
    """For each host span itself, but for a range of a backend for processors the operator that queued the call.

    It is −1 where it is not sure which one did; so is the last entry, that for no span. A queue keeps its order: of the calls of
    one kind and size, the n-th range is that of the n-th operator. This is only taken for true if each begins after its operator.
    Beside a device, most operators queue their calls there.
    """
    stack = attribution(scope).model.stack
    itself = np.append(np.arange(stack.size, dtype=np.int64), -1)
    ranges = np.flatnonzero(stack.named(ON_PROCESSORS, "annotation", "op"))
    itself[ranges] = -1
    if not scope.on_cpu:
        return itself
    ran, queued = (
        _by_kind(scope.trace.host[rows]) for rows in (ranges, np.flatnonzero(stack.named(_QUEUES, "op")))
    )
    for key, calls in ran.items():
        ops = queued.get(key, [])
        # The operators of the first ranges may lie before the recording.
        later = [call for call in calls if ops and call[0] >= ops[0][0]]
        pairs = list(zip(later, ops, strict=False))
        if len(later) <= len(ops) and all(call[0] >= op[0] for call, op in pairs):
            itself[[span for _, span in later]] = [op for _, (_, op) in pairs]
    return itself


_QUEUES: Final = r"^c10d::\w+$"


def _by_kind(spans: pl.DataFrame) -> dict[tuple[str | None, int | None], list[tuple[int, int]]]:
    """Start and id of spans in order of time, by the collective and the elements of each of its tensors.

    What an operator scatters after a reduction, gloo reduces and then keeps a part of.
    """
    found: dict[tuple[str | None, int | None], list[tuple[int, int]]] = {}
    rows = spans.sort("start", maintain_order=True).select(
        pl.col("name").cast(pl.String), pl.col("shapes").cast(pl.String), "start", "span_id"
    )
    for name, shapes, start, span in rows.rows():
        kind = collective_name(name)
        sizes = {size for each in json_list(shapes) if (size := elements_in(each)) is not None}
        for size in sizes or (None,):
            found.setdefault(("all_reduce" if kind == "reduce_scatter" else kind, size), []).append(
                (start, span)
            )
    return found


def _whole(scope: Scope, rows: pl.DataFrame, queueing: Int64Array) -> pl.DataFrame:
    """The calls with the times of the ranges of a backend for processors: those of one thread may overlap, and no two activities do.

    A send starts with the operator that queued it, which has sent the data before the range begins.
    """
    span, stack = rows["span"].to_numpy(), attribution(scope).model.stack
    if not scope.on_cpu or not (span >= 0).any():
        return rows
    op = queueing[rows["anchor"].to_numpy()]
    sends = (op >= 0) & (rows["kernel"] == _SENDS).to_numpy()
    begun = np.where(sends, take(stack.start, op), take(stack.start, span))
    known = pl.Series(span >= 0)
    queued = np.where(op >= 0, take(stack.start, op), begun)
    least = pl.min_horizontal(pl.Series("begun", begun), "start")
    return rows.with_columns(
        pl.when(known).then(least).otherwise("start").alias("start"),
        pl.when(known).then(least).otherwise("launched").alias("launched"),
        pl.when(known).then(pl.min_horizontal(least, pl.Series(queued))).otherwise("came").alias("came"),
        pl.when(known)
        .then(pl.max_horizontal("end", pl.Series("ended", take(stack.end, span))))
        .otherwise("end")
        .alias("end"),
    )


_SENDS: Final = "gloo:send"


def _peers_of(scope: Scope, rows: pl.DataFrame, names: list[str], spans: Int64Array) -> list[pl.Series]:
    """`source` and `destination` of sends and receives, as far as the record, the range's name or the operator says them."""
    ends: list[tuple[int | None, int | None]] = [(None, None)] * len(names)
    if places := [place for place, name in enumerate(names) if name in ("send", "recv")]:
        host, of = scope.trace.host, spans[places]
        said = [at_rows(host[name], of).cast(pl.String).alias(name) for name in ("name", "concrete_inputs")]
        table = rows[[*_NAMES, "peer", "group_ranks"]][places].hstack(said)
        for place, row in zip(places, table.iter_rows(named=True), strict=True):
            ends[place] = _peers(names[place], row, scope.trace.meta.rank)
    return [
        pl.Series("source", [source for source, _ in ends], dtype=pl.Int64),
        pl.Series("destination", [destination for _, destination in ends], dtype=pl.Int64),
    ]


_NAMES: Final = ("record_name", "span_name", "kernel")


def _peers(name: str, row: dict[str, object], rank: int | None) -> tuple[int | None, int | None]:
    """Source and destination of a send or receive of this `rank`; None for what is not known."""
    own, other = rank, row["peer"]
    if other is None:
        members = json_list(row["group_ranks"])  # type: ignore[arg-type]
        texts = [str(row[key]) for key in _NAMES if row[key]]
        in_name = next((match for text in texts if (match := PEER_RANGE.match(text))), None)
        values = json_list(row["concrete_inputs"]) if row["name"] in _WITH_PEER else []  # type: ignore[arg-type]
        if in_name:
            own, other = int(in_name[2]), int(in_name[3])
        elif len(values) > _PEER_INPUT and _RANK.fullmatch(str(values[_PEER_INPUT])):
            other = int(values[_PEER_INPUT])
        if isinstance(other, int) and other < len(members):
            own, other = rank, members[other]
    if not isinstance(other, int) or not 0 <= other < _MOST_RANKS:  # less than 0: any rank
        return None, None
    return (own, other) if name == "send" else (other, own)


_WITH_PEER: Final = frozenset({"c10d::send", "c10d::recv_"})
_MOST_RANKS: Final = 1_000_000_000
"""More are a damaged number."""
_RANK: Final = re.compile(r"[0-9]{1,9}")
_PEER_INPUT: Final = 2
"""The place of the other rank among the inputs of these operators: tensors, group, rank, tag."""


@lru_cache(maxsize=4096)
def _name(record: str | None, span: str | None, kernel: str) -> str:
    return next(
        (name for text in (record, span, kernel) if text and (name := collective_name(text))), "other"
    )


def _per_text(texts: pl.Series, function: Callable[[str], str | None]) -> pl.Series:
    found = [None if text is None else function(text) for text in texts.to_list()]
    return pl.Series(texts.name, found, dtype=pl.String)
