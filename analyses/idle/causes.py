"""Why each device was idle: every ns of idle time has one cause, one layer and one operator (DEFINITIONS §4).

For each maximal gap [g, h) of a device, let b be the activity that ends it. If b was launched after g, the host was
late. The part of the gap before the launch is split by the innermost span of the launching thread, and the rest, from
launch to start, is launch latency. If b was launched before g, it waited for another stream (dependency), or the gap is
below the threshold (kernel gap), or it is unexplained. Without a recorded launch, and after the device's last activity,
the cause is not captured. Time outside all spans is Python, also on threads of the autograd engine, or host code if the
trace shows no Python.

Without a device, the time in which no operator runs replaces the idle time, and the thread that runs the steps replaces
the launching thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution, attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.layer_ranges import counting
from tracekit.analyses.idle.calls import Calls
from tracekit.analyses.idle.gaps import device_gaps
from tracekit.analyses.idle.host_code import by_function, by_os_call, host_code, sampled_most
from tracekit.analyses.idle.pieces import idle_pieces
from tracekit.analyses.result import Result, no_launches
from tracekit.analyses.scope import Scope, once
from tracekit.facts.stack_names import NOT_A_LAYER
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.limits import LONGEST_NAME
from tracekit.range_filter import RangeFilter
from tracekit.spans import BoolArray, nest, take
from tracekit.trace import Schema, Trace, one_of

__all__ = ["LISTED_GAPS", "IdleCauses", "IdleTables", "cause_name", "idle_causes"]

LISTED_GAPS = 100
"""The number of rows in the tables of longest gaps."""
_PLACED_GAPS = 10
"""The longest gaps, for which the innermost call is looked up."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IdleTables(Result):
    """The idle time of whole devices by cause: the time in which none of a device's streams worked."""

    by_cause: pl.DataFrame
    """`device_id`, `cause`, `total_ns`, `share` (of the device's window), `gaps`, and `call`, the innermost frame of Python code
    or API call that holds more than half of this time (null: none)."""
    by_call: pl.DataFrame | None
    """For causes without such a call, the few calls that hold more than half of the time together: `device_id`, `cause`, `call`,
    `total_ns`, `share` (of the cause's time on the device). None if there are none."""
    by_layer: pl.DataFrame
    """`layer` (null: in none) and `cause`, over all devices, with `total_ns` and `share` of the idle time."""
    by_operator: pl.DataFrame | None
    """The same by `operator`; None without a device."""
    by_frame: pl.DataFrame | None
    """The same by `frame` of the user's Python code, with `open_share`, the part of the window in which the frame was open. None if
    no frame is known."""
    by_range: pl.DataFrame | None
    """The same by `range`, the innermost user range, with or without launches in it, with `open_share`; numbers in names are `#`.
    None if no range is open.
    """
    by_os_call: pl.DataFrame | None
    """The time of the causes `python` and `host_code` by the open call of the operating system: `os_call` (null: none),
    `total_ns`, `share` of that time, `calls`. None if the profile has no such calls.
    """
    by_function: pl.DataFrame | None
    """The samples of that time by `function` (the innermost; null without a symbol): `samples`, `share`. None if the
    profile has no samples.
    """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IdleCauses(IdleTables):
    """The idle time of every device cut into pieces that have one cause each."""

    pieces: pl.DataFrame
    """`device_id`, `gap_id`, `start`, `duration_ns`, `cause`, `span_id` (the host span that made the device wait; null for
    none), `ended_by` (activity_id; null at the end of the window), `layer_id` (of `layers`), `op_id` (host.span_id of the
    innermost operator), `phase`, `frame` (the innermost frame of the user's own Python code, `file.py(line): function`; null
    where no stacks were recorded or none of the user's is open) and `dependency` (what was waited for). Times in ns. The
    pieces of a device sum to its `idle_ns` in `breakdown`."""
    gaps: pl.DataFrame
    """Each gap with its length `duration_ns`, its main `cause`, the `cause_ns` of that, the `operator`, `layer`, `frame`, `range`
    and `dependency` of the largest piece of that cause, the innermost `call` that holds more than half of the gap (of the ten
    longest), and the activity that ended it (`name`, `stream_id`, `activity_id`; null
    at the end of the window); longest first."""
    layers: pl.DataFrame
    """The layer table of the attribution."""
    idle_ns: int
    """The idle time of all devices."""


def idle_causes(scope: Scope | Trace) -> IdleCauses:
    """Idle time of the devices in the scope by cause.

    >>> import tracekit
    >>> result = idle_causes(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(result.pieces["duration_ns"].sum()) == result.idle_ns == int(result.by_cause["total_ns"].sum())
    True
    """
    return once(scope, _idle_causes)


def _idle_causes(scope: Scope) -> IdleCauses:
    trace = scope.trace
    owners = attribution(scope)
    gaps = device_gaps(scope)
    pieces = idle_pieces(scope, owners, gaps)
    named = _named(trace, owners, pieces)
    waits = host_code(trace, pieces)
    calls_ = Calls.of(owners.model.stack, scope.duration)
    by_cause = _by_cause(scope, pieces, calls_)
    ranges = _pooled(named)
    calls, functions = by_os_call(trace, waits), by_function(trace, waits)
    return IdleCauses(
        answer=_answer(scope, named) + _during(calls, functions),
        not_captured=_not_captured(scope, gaps),
        pieces=pieces,
        by_cause=by_cause,
        by_call=_by_call(pieces, by_cause, calls_),
        by_layer=_grouped(named, "layer"),
        by_operator=None if scope.on_cpu else _grouped(named, "operator"),
        by_frame=_with_open_share(scope, _grouped(named, "frame"), _open_frames(named)),
        by_range=_with_open_share(scope, _grouped(ranges, "range"), _open_ranges(named)),
        by_os_call=calls,
        by_function=functions,
        gaps=_longest(scope, gaps, named, calls_),
        layers=owners.layers,
        idle_ns=int(pieces["duration_ns"].sum()),
    )


# -- tables ----------------------------------------------------------------------------------------


def _named(trace: Trace, owners: Attribution, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces with the names of their operators, ranges and layers."""
    operators = trace.host.select(pl.col("span_id").alias("op_id"), pl.col("name").alias("operator"))
    ranges = trace.host.select(pl.col("span_id").alias("range_id"), pl.col("name").alias("range"))
    pieces = pieces.with_columns(_ranges(trace, owners, pieces))
    layers = owners.layers.select("layer_id", pl.col("path").alias("layer"))
    return (
        pieces.join(operators, on="op_id", how="left", maintain_order="left")
        .join(layers, on="layer_id", how="left", maintain_order="left")
        .join(ranges, on="range_id", how="left", maintain_order="left")
    )


def _ranges(trace: Trace, owners: Attribution, pieces: pl.DataFrame) -> pl.Series:
    """`range_id`: the innermost user range around the span that made the device wait, or around the launch if no span
    did; null for none. Unlike a layer, such a range need not launch work. If the trace's `layer_ranges` select ranges,
    it is one of these.
    """
    stack = owners.model.stack
    named = stack.of_kind("annotation") & ~stack.named(NOT_A_LAYER, "annotation")
    if trace.layer_ranges is not None and named.any():
        named = _chosen(stack, named, trace.layer_ranges)
    if not named.any():
        return pl.Series("range_id", [None], dtype=pl.Int64).new_from_index(0, pieces.height)
    launches = trace.device.select(pl.col("activity_id").alias("ended_by"), "launch_id")
    spans = (
        pieces.select("span_id", "ended_by")
        .join(launches, on="ended_by", how="left", maintain_order="left")
        .select(pl.coalesce("span_id", "launch_id").fill_null(-1))
        .to_series()
    )
    around = pl.Series("range_id", take(stack.nesting.nearest_ancestor(named), spans.to_numpy()))
    return around.set(around < 0, None)


def _chosen(stack: HostStack, named: BoolArray, chosen: RangeFilter) -> BoolArray:
    """The user ranges that the flags select."""
    rows = np.flatnonzero(named)
    rows = rows[counting(stack.frame["name", "domain"][rows], chosen)]
    if chosen.depth is not None:
        rows = rows[nest(stack.thread[rows], stack.start[rows], stack.end[rows]).depth() < chosen.depth]
    wanted = np.zeros(named.size, dtype=bool)
    wanted[rows] = True
    return wanted


def _pooled(named: pl.DataFrame) -> pl.DataFrame:
    """The pieces with the names of their ranges, without numbers, so that all iterations of a loop are one range."""
    return (
        named.select("range", "cause", "duration_ns")
        .join(_open_ranges(named), left_on="range", right_on="name", how="left")
        .select(pl.col("label").alias("range"), "cause", "duration_ns")
    )


def _open_ranges(named: pl.DataFrame) -> pl.DataFrame:
    """The names of the ranges of pieces, and the `label` of each: the name, or its pattern if several names have it."""
    names = named.select(pl.col("range").unique().drop_nulls().alias("name"))
    text = pl.col("name").cast(pl.String)
    pooled = text.str.replace_all(r"\d+", "#").str.slice(0, LONGEST_NAME)
    labels = names.with_columns(pooled.alias("label"))
    several = pl.len().over("label") > 1
    return labels.with_columns(pl.when(several).then("label").otherwise(text).alias("label"))


def _open_frames(named: pl.DataFrame) -> pl.DataFrame:
    """The names of the frames of pieces, each its own label."""
    frames = named.select(pl.col("frame").unique().drop_nulls().alias("label"))
    return frames.with_columns(pl.col("label").cast(pl.Categorical()).alias("name"))


def _with_open_share(scope: Scope, table: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame | None:
    """A table by the labels of spans (`name`, `label`), with the part of the window in which one of the spans is open; None without
    a label.
    """
    if not labels.height:
        return None
    end = pl.col("start") + pl.col("duration")
    host = scope.trace.host.filter(one_of("kind", "python", "annotation")).select(
        "name", "start", end.alias("end")
    )
    spans = host.join(labels, on="name").select("label", pl.col("start", "end").clip(scope.start, scope.end))
    spans = spans.sort("start").with_columns(pl.col("end").cum_max().shift(1).over("label").alias("before"))
    new = (pl.col("end") - pl.max_horizontal("start", "before")).clip(0)
    opened = spans.group_by("label").agg((new.sum() / scope.duration).alias("open_share"))
    return table.join(opened, left_on=table.columns[0], right_on="label", how="left", maintain_order="left")


def _by_cause(scope: Scope, pieces: pl.DataFrame, calls: Calls) -> pl.DataFrame:
    window = scope.duration
    share = pl.col("total_ns") / window if window else pl.lit(None, dtype=pl.Float64)
    return (
        pieces.join(_calls(pieces, calls, "device_id", "cause"), on=["device_id", "cause"], how="left")
        .group_by("device_id", "cause")
        .agg(
            pl.col("duration_ns").sum().alias("total_ns"),
            pl.col("gap_id").n_unique().cast(pl.Int64).alias("gaps"),
            pl.col("call").first(),
        )
        .with_columns(share.alias("share"))
        .sort("device_id", "total_ns", "cause", descending=[False, True, False])
        .select("device_id", pl.col("cause").cast(pl.String), "total_ns", "share", "gaps", "call")
    )


def _by_call(pieces: pl.DataFrame, by_cause: pl.DataFrame, calls: Calls) -> pl.DataFrame | None:
    """For each cause without a call that holds most of its time the few calls that hold most of it together."""
    rows = []
    for device, cause, ns in by_cause.filter(pl.col("call").is_null())[
        "device_id", "cause", "total_ns"
    ].rows():
        mine = pieces.filter((pl.col("device_id") == device) & (pl.col("cause") == cause))
        spans = mine["span_id"].fill_null(-1).to_numpy()
        parts = calls.several(spans, mine["duration_ns"].to_numpy())
        rows += [(device, cause, call, held, held / ns) for call, held in parts]
    schema: Schema = {
        "device_id": pl.Int64,
        "cause": pl.String,
        "call": pl.String,
        "total_ns": pl.Int64,
        "share": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row") if rows else None


def _calls(pieces: pl.DataFrame, calls: Calls, *by: str) -> pl.DataFrame:
    """The innermost `call` of each group of pieces."""
    rows = []
    for key, mine in pieces.group_by(by):
        spans = mine["span_id"].fill_null(-1).to_numpy()
        rows.append((*key, calls.innermost(spans, mine["duration_ns"].to_numpy())))
    schema: Schema = {**{name: pieces.schema[name] for name in by}, "call": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _grouped(named: pl.DataFrame, by: str) -> pl.DataFrame:
    """Idle time by one column and cause, with the names of the most idle time first."""
    total = int(named["duration_ns"].sum())
    share = pl.col("total_ns") / total if total else pl.lit(None, dtype=pl.Float64)
    return (
        named.group_by(by, "cause")
        .agg(pl.col("duration_ns").sum().alias("total_ns"))
        .with_columns(pl.col(by).cast(pl.String))
        .with_columns(share.alias("share"), pl.col("total_ns").sum().over(by).alias("all_ns"))
        .sort("all_ns", by, "total_ns", "cause", descending=[True, False, True, False], nulls_last=True)
        .select(by, pl.col("cause").cast(pl.String), "total_ns", "share")
    )


def _longest(scope: Scope, gaps: pl.DataFrame, named: pl.DataFrame, calls: Calls) -> pl.DataFrame:
    """The longest gaps, each with its largest cause and the largest piece of that cause."""
    longest = (
        gaps.with_columns((pl.col("end") - pl.col("start")).alias("duration_ns"))
        .sort("duration_ns", "start", "gap_id", descending=[True, False, False])
        .head(LISTED_GAPS)
    )
    pieces = named.join(longest.select("gap_id"), on="gap_id", how="semi").sort(
        "duration_ns", "start", descending=[True, False]
    )
    places = [pl.col(name).first() for name in ("operator", "layer", "frame", "range", "dependency")]
    main = (
        pieces.group_by("gap_id", "cause", maintain_order=True)
        .agg(pl.col("duration_ns").sum().alias("cause_ns"), *places)
        .sort("cause_ns", "cause", descending=[True, False])
        .unique("gap_id", keep="first", maintain_order=True)
    )
    few = longest.head(_PLACED_GAPS).select("gap_id")
    placed = _calls(pieces.join(few, on="gap_id", how="semi"), calls, "gap_id")
    rows = scope.activities if scope.on_cpu else scope.trace.device
    names = rows.select(pl.col("activity_id").alias("ended_by"), "name")
    return (
        longest.join(main, on="gap_id", how="left", maintain_order="left")
        .join(placed, on="gap_id", how="left", maintain_order="left")
        .join(names, on="ended_by", how="left", maintain_order="left")
        .select(
            *("device_id", "stream_id", "start", "duration_ns", pl.col("cause").cast(pl.String), "cause_ns"),
            pl.col("operator").cast(pl.String),
            *("layer", "frame", "call", pl.col("range").cast(pl.String), "dependency"),
            pl.col("name").cast(pl.String),
            pl.col("ended_by").alias("activity_id"),
        )
    )


# -- in words --------------------------------------------------------------------------------------


def _answer(scope: Scope, pieces: pl.DataFrame) -> str:
    total = int(pieces["duration_ns"].sum())
    if not total:
        return "An operator ran at all times." if scope.on_cpu else "No device was idle."
    sums = (
        pieces.group_by("cause")
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", "cause", descending=[True, False])
    )
    parts = [
        f"{cause_name(cause)} {format_share(ns / total)}{_library(pieces, ns) if cause == 'library_call' else ''}"
        for cause, ns in sums.head(3).rows()
    ]
    who = (
        "No operator ran for"
        if scope.on_cpu
        else "The devices were idle for"
        if len(scope.device_ids) > 1
        else "The device was idle for"
    )
    return f"{who} {format_ns(total)}: {', '.join(parts)}."


def _library(pieces: pl.DataFrame, total: int) -> str:
    """The library function with half or more of the `total` time of library calls, in ns; empty if there is none."""
    calls = pieces.filter(pl.col("cause") == "library_call")
    calls = calls.group_by(pl.col("operator").cast(pl.String)).agg(pl.col("duration_ns").sum())
    name, ns = calls.sort("duration_ns", "operator", descending=[True, False]).row(0)
    return f" (most in {name})" if name is not None and 2 * ns >= total else ""


def _during(calls: pl.DataFrame | None, functions: pl.DataFrame | None) -> str:
    """What the host ran outside recorded calls; empty if the trace does not show it."""
    named = None if calls is None else calls.drop_nulls("os_call")
    clauses = []
    if named is not None and named.height:
        clauses.append(
            f"the host spent {format_share(float(named['share'].sum()))} of the time in calls of the operating system, "
            f"most of it in {named['os_call'][0]}"
        )
    sampled = sampled_most(functions)
    if sampled is not None:
        function, share, count = sampled
        clauses.append(f"{format_share(share)} of {format_count(count)} samples show {function}")
    return f" Outside recorded calls, {', and '.join(clauses)}." if clauses else ""


def cause_name(cause: str) -> str:
    """The name of a cause in a sentence.

    >>> cause_name("data_loading"), cause_name("launch_api")
    ('data loading', 'launch calls')
    """
    return _NAMES.get(cause, cause.replace("_", " "))


_NAMES = {
    "launch_api": "launch calls",
    "module_loading": "loading of code to the device",
    "library_call": "library calls",
    "python": "Python",
    "host_code": "host code outside recorded calls",
    "dependency": "another stream",
    "kernel_gap": "gaps between queued kernels",
    "unexplained": "unknown cause",
    "not_captured": "cause not captured",
}


def _not_captured(scope: Scope, gaps: pl.DataFrame) -> str | None:
    if scope.on_cpu:
        return "no device activity; the time in which no operator runs takes the place of idle time"
    if gaps.height and not gaps["launched"].is_not_null().any():
        return no_launches(scope, "so the causes of idle time are unknown")
    return None
