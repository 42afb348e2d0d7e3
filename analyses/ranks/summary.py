"""What a job needs of one rank: small, whatever the size of its trace, so that thousands fit into one process."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attributed, attribution
from tracekit.analyses.attribution.span_places import UNATTRIBUTED
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.collectives import collectives
from tracekit.analyses.completeness import completeness
from tracekit.analyses.flops import counted
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import steps
from tracekit.classes import dataclass
from tracekit.groups import at_rows, or_none
from tracekit.names import clean
from tracekit.spans import Int64Array, take

__all__ = [
    "BINS",
    "MOST_CALLS",
    "MOST_STEPS",
    "MOST_WORK",
    "NO_STEP",
    "SENT",
    "Facts",
    "Summary",
    "joined",
    "packed",
    "packed_frame",
    "summary_of",
    "unpacked",
]

MOST_CALLS: Final = 20_000
"""Of more calls a rank sends those of the first steps; a row takes some 40 bytes."""
SENT: Final = (
    "name", "group", "group_size", "group_ranks", "sequence", "source", "destination", "bytes", "bus_bytes",
    "step", "stream_id", "came", "start", "end", "duration_ns", "exposed_ns", "held_ns", "kernels",
)  # fmt: skip
"""What the other ranks need of a call, of the columns of `analyses.calls.CALLS`."""
MOST_TIMES: Final = 20_000
"""Of so many steps the times are sent."""
NO_STEP: Final = -1
"""The step of what belongs to none; without steps, of all."""
MOST_STEPS: Final = 50
BINS: Final = 160
"""So many bins of the window say when the devices worked."""
_MOST_ROWS: Final = 200
_LONGEST_SHAPES: Final = 120
MOST_WORK: Final = 6_000
"""Rows of `work`; each takes some ten bytes."""


class Facts(msgspec.Struct, frozen=True):
    """Which rank it is, and how its devices spent the window; times in ns, summed over its devices."""

    name: str
    rank: int | None
    world_size: int | None
    backend: str | None
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each process group that it is in; empty if they were not recorded."""
    devices: tuple[str, ...]
    origin_ns: int
    origin_utc_ns: int | None
    active_devices: int
    on_cpu: bool
    window_ns: int
    """Of one device."""
    window_start_ns: int
    """From the trace's own origin."""
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    idle_ns: int
    all_calls: int
    last_step: int | None
    """The last step all of whose calls were sent; None if all calls were, or not even those of one step."""
    all_steps: int
    incomplete: bool
    """Whether records are missing that matter (`Completeness.broken`), or the file breaks off."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One rank of a job. Times are ns from the trace's own origin."""

    facts: Facts
    steps: pl.DataFrame
    """`step`, `time_ns` of the first `MOST_TIMES` steps of the window: as `analyses.steps` has them, but a step begins where the device
    has done the work of the one before."""
    calls: pl.DataFrame
    """The calls in order, with the columns `SENT`; of more than `MOST_CALLS` (or as many as were asked for) those of the first whole steps."""
    layers: pl.DataFrame
    """`pattern`, `type`, `layers`, `device_own_ns`, `host_self_ns`: the layers with the most own time."""
    causes: pl.DataFrame
    """`cause`, `total_ns` of the devices' idle time."""
    timeline: pl.DataFrame
    """One row per bin, `BINS` equal parts of the window: `compute_ns`, `communication_ns` (exposed) and `idle_ns`, summed over the devices."""
    packed_work: bytes
    """`work`, which only few ranks are asked for, as `packed_frame` makes it."""

    @property
    def work(self) -> pl.DataFrame:
        """What the devices did apart from communication, in order of time: `step` (`NO_STEP` for none), `call` (the place in `calls` of the first call that starts
        when it has ended), `kind`, `what`, `where`, `first` (when it first started), `ns`, `count` (of its activities or gaps), `flops` (as far as they can be told), `shapes` (of the inputs of its first operator, as
        JSON). Of the kind `layer`, `what` is its path and `where` the phase; of `operator`, the work in no layer, its name and the phase; of `idle`, the cause and the layer
        and line of Python, or else the operator or range of the host, as far as they are known. The first steps, at most `MOST_STEPS`, and the parts that take most.
        """
        return _frame(self.packed_work)

    @property
    def cut(self) -> bool:
        """Whether it has more calls than were sent."""
        return self.calls.height < self.facts.all_calls


_FRAMES: Final = ("steps", "calls", "layers", "causes", "timeline")


class _Packed(msgspec.Struct, frozen=True):
    """Summaries as they travel: each table holds the rows of all of them, whose numbers stand beside, so that what they share is sent once."""

    facts: list[Facts]
    heights: dict[str, list[int]]
    tables: dict[str, bytes]
    works: list[bytes]


def packed(summaries: Sequence[Summary]) -> bytes:
    """Summaries as bytes, for another process or machine.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> made = summary_of(select(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz")))
    >>> (again,) = unpacked(packed([made]))
    >>> again.calls.equals(made.calls)
    True
    """
    tables = {name: [getattr(one, name) for one in summaries] for name in _FRAMES if summaries}
    return msgspec.msgpack.encode(
        _Packed(
            [one.facts for one in summaries],
            {name: [each.height for each in frames] for name, frames in tables.items()},
            {name: packed_frame(pl.concat(frames)) for name, frames in tables.items()},
            [one.packed_work for one in summaries],
        )
    )


def unpacked(data: bytes) -> list[Summary]:
    """What `packed` made, in order. Raises msgspec.DecodeError for other bytes."""
    made = msgspec.msgpack.decode(data, type=_Packed)
    parts = {name: _parts(_frame(made.tables[name]), heights) for name, heights in made.heights.items()}
    return [
        Summary(facts, **{name: parts[name][at] for name in _FRAMES}, packed_work=made.works[at])
        for at, facts in enumerate(made.facts)
    ]


def joined(several: Sequence[bytes]) -> bytes:
    """What `packed` made several times, as one."""
    return several[0] if len(several) == 1 else packed([one for each in several for one in unpacked(each)])


def _parts(frame: pl.DataFrame, heights: Sequence[int]) -> list[pl.DataFrame]:
    ends = accumulate(heights, initial=0)
    return [frame.slice(start, height) for start, height in zip(ends, heights, strict=False)]


def packed_frame(frame: pl.DataFrame) -> bytes:
    """A frame as bytes. Arrow's stream, since its file takes Polars twenty times as long to read if it is small."""
    stream = io.BytesIO()
    frame.write_ipc_stream(stream, compression="zstd")
    return stream.getvalue()


def _frame(packed: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(packed))


def summary_of(scope: Scope, most_calls: int = MOST_CALLS) -> Summary:
    """The summary of one rank's scope, with so many calls at most."""
    meta, lacking = scope.trace.meta, completeness(scope)
    parts = breakdown(scope).devices
    every = collectives(scope).calls.select(SENT)
    calls, last_step = _first_calls(every, most_calls)
    by_pattern = layers(scope).by_pattern[["pattern", "type", "layers", "device_own_ns", "host_self_ns"]]
    facts = Facts(
        name=clean(meta.name),
        rank=meta.rank,
        world_size=meta.world_size,
        backend=meta.backend,
        groups=meta.groups,
        devices=tuple(clean(device.name) for device in meta.devices),
        origin_ns=meta.origin_ns,
        origin_utc_ns=meta.origin_utc_ns,
        active_devices=parts.height,
        on_cpu=scope.on_cpu,
        window_ns=scope.duration,
        window_start_ns=scope.start,
        all_calls=every.height,
        last_step=last_step,
        all_steps=scope.steps.height,
        incomplete=lacking.broken or bool(lacking.breaks),
        **{name: int(parts[name].sum()) for name in _SUMS},
    )
    return Summary(
        facts,
        _step_times(scope).head(MOST_TIMES),
        calls,
        by_pattern.head(_MOST_ROWS),
        idle_causes(scope).by_cause[["cause", "total_ns"]].head(_MOST_ROWS),
        _timeline(scope),
        packed_frame(_work(scope, calls["start"])),
    )


def _first_calls(calls: pl.DataFrame, most: int) -> tuple[pl.DataFrame, int | None]:
    """So many at most, of whole steps if the first one fits; and `Facts.last_step`."""
    first = calls.head(most)
    if first.height == calls.height:
        return calls, None
    whole = first.filter(pl.col("step") < calls["step"].slice(most).min())
    return (whole, whole["step"].max()) if whole.height else (first, None)  # type: ignore[return-value]


def _step_times(scope: Scope) -> pl.DataFrame:
    """`Summary.steps`. A host that is ahead of the device starts steps sooner than the device can, so its starts alone tell nothing."""
    table = steps(scope).table
    behind = pl.col("span_start") - pl.col("start")
    after = pl.col("span_start") + pl.col("span_ns") - pl.col("start") - pl.col("duration_ns")
    time = pl.col("time_ns") - behind + behind.shift(-1).fill_null(after)
    return table.select("step", time.alias("time_ns"))


def _work(scope: Scope, starts: pl.Series) -> pl.DataFrame:
    """The parts of each step between two calls (`Summary.work`); `starts` are those of the calls."""
    paths = attribution(scope).layers[["layer_id", "path"]]
    rows = attributed(scope).with_columns(pl.col("step").fill_null(NO_STEP))
    name = pl.coalesce(pl.col("operator").cast(pl.String), pl.col("name").cast(pl.String))
    in_layer = pl.col("path").is_not_null()
    computed = (
        rows.with_columns(
            pl.Series("flops", _flops(scope, rows)), at_rows(scope.trace.host["shapes"], rows["op_id"])
        )
        .filter(pl.col("class") != "communication")
        .join(paths, on="layer_id", how="left")
        .select(
            "step",
            pl.when(in_layer).then(pl.lit("layer")).otherwise(pl.lit("operator")).alias("kind"),
            pl.coalesce("path", name).fill_null(UNATTRIBUTED).alias("what"),
            pl.col("phase").cast(pl.String).alias("where"),
            "start",
            pl.col("duration").alias("ns"),
            "flops",
            "shapes",
        )
    )
    step = rows.select(pl.col("activity_id").alias("ended_by"), "step")
    pieces, frame = idle_causes(scope).pieces, pl.col("frame").cast(pl.String)
    host = scope.trace.host
    named = at_rows(host["kind"], pieces["span_id"]).cast(pl.String).is_in(["op", "annotation"])
    ranges = at_rows(host["name"], pieces["span_id"]).cast(pl.String)
    idle = (
        pieces.with_columns(ranges.set(~named.fill_null(value=False), None).alias("range"))
        .join(step, on="ended_by")
        .join(paths, on="layer_id", how="left")
        .select(
            "step",
            pl.lit("idle").alias("kind"),
            pl.col("cause").cast(pl.String).alias("what"),
            pl.coalesce(pl.format("{} at {}", "path", frame), frame, "path", "range").alias("where"),
            "start",
            pl.col("duration_ns").alias("ns"),
            pl.lit(0, dtype=pl.Int64).alias("flops"),
        )
    )
    both = pl.concat([computed, idle], how="diagonal")
    # A call may wait for what has ended before it; what only begins before it goes on beside it.
    call = np.searchsorted(starts.to_numpy(), (both["start"] + both["ns"]).to_numpy(), side="left")
    both = (
        both.with_columns(pl.Series("call", call.astype(np.int64)))
        .group_by("step", "call", "kind", "what", "where")
        .agg(
            pl.col("start").min().alias("first"),
            pl.col("ns").sum(),
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("flops").sum(),
            pl.col("shapes").first(),
        )
    )
    shown = both.group_by("kind", "what").agg(pl.col("ns").sum()).sort("ns", "what", descending=[True, False])
    kept = both.join(shown.head(_MOST_ROWS)[["kind", "what"]], on=["kind", "what"], how="semi")
    shapes = kept["shapes"].cast(pl.String)
    kept = kept.with_columns(shapes.set(shapes.str.len_bytes() > _LONGEST_SHAPES, None))
    return _first_steps(kept).sort("first", "kind", "what", "where")


def _flops(scope: Scope, rows: pl.DataFrame) -> Int64Array:
    """The FLOPs of the operators of these activities, each at its first one; 0 where they cannot be told."""
    work = counted(scope)
    launch = or_none(rows["launch_id"])
    owner = take(work.owner, np.where(launch >= 0, launch, or_none(rows["op_id"])))
    operators, first = np.unique(owner, return_index=True)
    flops = np.zeros(rows.height, dtype=np.int64)
    flops[first] = np.maximum(take(work.flops, operators), 0)
    return flops


def _first_steps(work: pl.DataFrame) -> pl.DataFrame:
    """As many whole steps as the summary has room for; if the first one is too long already, its longest parts."""
    counts = work.group_by("step").len().sort("step").head(MOST_STEPS)
    fits = counts.filter((pl.col("len").cum_sum() <= MOST_WORK) | (pl.int_range(pl.len()) == 0))
    kept = work.join(fits[["step"]], on="step", how="semi")
    return kept.top_k(MOST_WORK, by="ns") if kept.height > MOST_WORK else kept


def _timeline(scope: Scope) -> pl.DataFrame:
    edges = scope.start + np.arange(BINS + 1, dtype=np.int64) * scope.duration // BINS
    sums = np.zeros((3, BINS), dtype=np.int64)
    for device in scope.device_ids:
        compute = scope.intervals(device, "compute")
        communication = scope.intervals(device, "communication") - compute
        busy = scope.intervals(device, "memory") | compute | communication
        for row, part in enumerate((compute, communication, busy)):
            sums[row] += part.coverage(edges[:-1], edges[1:])
    sums[2] = len(scope.device_ids) * np.diff(edges) - sums[2]
    return pl.DataFrame(dict(zip(("compute_ns", "communication_ns", "idle_ns"), sums, strict=True)))


_SUMS: Final = ("compute_ns", "communication_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
