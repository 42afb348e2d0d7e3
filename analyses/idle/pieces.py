"""Idle gaps cut into pieces, each with its cause, the span that caused it, and the place of that span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution, attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.idle.gaps import KERNEL_GAP_NS, device_gaps, waits_for
from tracekit.analyses.idle.host_code import Pieces, timeline
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER, SpanCauses, span_causes
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import CAUSES, ENGINE_CALL
from tracekit.facts.stack_names import PHASES
from tracekit.groups import are_known, at_rows, kept, none_to_null, or_none, rows_of, text_codes, with_series
from tracekit.limits import LONGEST_NAME
from tracekit.spans import Int64Array, distinct_rows, take
from tracekit.trace import Schema

__all__ = ["PIECE_COLUMNS", "idle_pieces"]

_C = CAUSE_NUMBER
_NEVER = np.iinfo(np.int64).min
_LATENCY_NS = (10_000, 100_000)
"""The least and the most that is taken for the latency of a launch."""

PIECE_COLUMNS: Schema = {
    "device_id": pl.Int64,
    "gap_id": pl.Int64,
    "start": pl.Int64,
    "duration_ns": pl.Int64,
    "cause": pl.Enum(CAUSES),
    "span_id": pl.Int64,
    "ended_by": pl.Int64,
    "layer_id": pl.Int64,
    "op_id": pl.Int64,
    "phase": pl.Enum(PHASES),
    "frame": pl.Categorical(),
    "dependency": pl.Categorical(),
}


class _Rows(msgspec.Struct, frozen=True, eq=False):
    """Pieces as arrays: the row of the gap, start, end, cause, and the host span that caused it (−1 for none)."""

    gap: Int64Array
    start: Int64Array
    end: Int64Array
    cause: Int64Array
    span: Int64Array


class _Places(msgspec.Struct, frozen=True, eq=False):
    """The places of pieces; −1 for none."""

    layer: Int64Array
    op: Int64Array
    phase: Int64Array
    frame: Int64Array


def idle_pieces(scope: Scope) -> pl.DataFrame:
    """The pieces of the gaps (`device_gaps`), by gap and time, with the columns of PIECE_COLUMNS."""
    return scope.once(idle_pieces, lambda: _idle_pieces(scope))


def _idle_pieces(scope: Scope) -> pl.DataFrame:
    owners, gaps, causes = attribution(scope), device_gaps(scope), span_causes(scope)
    latency = _latency(gaps)
    gaps = with_series(gaps, _returned(gaps, causes)).with_columns(_host_until(latency))
    main = _main_threads(scope, owners, gaps)
    host = _host_part(scope, owners, gaps, main, causes)
    rest, dependency = _rest(scope, gaps, latency)
    places = [_at_spans(owners, host, main, causes), _at_activities(scope, owners, gaps, rest, main, causes)]
    columns = {**_columns([host, rest]), **_columns(places)}
    del host, rest, places
    order = np.lexsort((np.concatenate(columns["start"]), np.concatenate(columns["gap"])))

    def sorted_(name: str) -> Int64Array:
        # One column after the other, each freed: there may be more pieces than events.
        return np.concatenate(columns.pop(name))[order]

    gap, start = sorted_("gap"), sorted_("start")
    made = {
        "device_id": at_rows(gaps["device_id"], gap),
        "gap_id": pl.Series(gap),
        "start": pl.Series(start),
        "duration_ns": pl.Series(sorted_("end") - start),
        "cause": at_rows(_CAUSES, sorted_("cause")),
        "span_id": none_to_null(sorted_("span")),
        "ended_by": at_rows(gaps["ended_by"], gap),
        "layer_id": none_to_null(sorted_("layer")),
        "op_id": none_to_null(sorted_("op")),
        "phase": at_rows(_PHASES, sorted_("phase")),
        "frame": _frame_texts(causes, sorted_("frame")),
        "dependency": at_rows(dependency, gap),
    }
    return pl.DataFrame([made[name].cast(dtype).alias(name) for name, dtype in PIECE_COLUMNS.items()])


_CAUSES: Final = pl.Series(CAUSES, dtype=PIECE_COLUMNS["cause"])
_PHASES: Final = pl.Series(PHASES, dtype=PIECE_COLUMNS["phase"])


def _frame_texts(causes: SpanCauses, frame: Int64Array) -> pl.Series:
    """The frames that these spans show; null for none."""
    if not (frame >= 0).any():
        return pl.Series([None], dtype=pl.Categorical).new_from_index(0, frame.size)
    codes, names = text_codes(at_rows(causes.names, frame))
    return at_rows(pl.Series([name and name[:LONGEST_NAME] for name in names], dtype=pl.Categorical), codes)


def _columns(parts: Sequence[_Rows | _Places]) -> dict[str, list[Int64Array]]:
    """The columns of parts of one kind, by name."""
    return {name: [getattr(part, name) for part in parts] for name in parts[0].__struct_fields__}


# -- the host was late -----------------------------------------------------------------------------


def _latency(gaps: pl.DataFrame) -> int:
    """The time from a launch to its start on an idle device, in ns: the median of the gaps, within reason."""
    late = kept(gaps, (gaps["launched"] > gaps["start"]) & (gaps["launched"] < gaps["end"]))
    median = (late["end"] - late["launched"]).median()
    return round(float(np.clip(float(str(median or 0)), *_LATENCY_NS)))


def _returned(gaps: pl.DataFrame, causes: SpanCauses) -> pl.Series:
    """When each launch call let the device go: at its end; at its begin, if it waits for what it launched itself."""
    launch = or_none(gaps["launch_id"])
    waits = (causes.of(launch) == _C["synchronisation"]) & are_known(gaps["ended_by"])
    return gaps["launched"].zip_with(pl.Series(waits), gaps["returned"]).alias("returned")


def _host_until(latency: int) -> pl.Expr:
    """`until`: up to when the host kept the device waiting; null without a launch.

    Until the launch, if the device was idle then; if the call took longer than a launch does, or still ran when the
    device became idle, until the call returned.
    """
    blocks = pl.col("returned") - pl.col("launched") > latency
    late = pl.col("launched") > pl.col("start")
    until = pl.when(late & ~blocks).then("launched").otherwise("returned")
    return until.clip(pl.col("start"), pl.col("end")).alias("until")


def _host_part(
    scope: Scope, owners: Attribution, gaps: pl.DataFrame, main: Int64Array, causes: SpanCauses
) -> _Rows:
    """The time of gaps in which the host was late, by what it did."""
    stack = owners.model.stack
    start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    if scope.on_cpu:  # an operator is its own launch
        late, thread = np.arange(gaps.height), main
    else:
        end = or_none(gaps["until"], _NEVER)
        late = np.flatnonzero(end > start)
        launch = at_rows(gaps["launch_id"], late).to_numpy().astype(np.int64)
        thread = stack.thread[launch]
    pieces = timeline(stack.nesting, thread).split(thread, start[late], end[late])
    if not scope.on_cpu:
        pieces = _before_backward(owners, pieces, thread, main[late])
    span = _inside_steps(stack, pieces)
    return _Rows(late[pieces.interval], pieces.start, pieces.end, causes.of(span), span)


def _before_backward(owners: Attribution, pieces: Pieces, thread: Int64Array, main: Int64Array) -> Pieces:
    """The same pieces, but where a thread of the autograd engine has no span open, the main thread's: the engine has nothing to run
    until that thread calls it. While it waits for the engine, and where it only runs a step, it tells nothing.

    `thread` and `main` are those of the intervals.
    """
    stack, of = owners.model.stack, pieces.interval
    on_engine = np.isin(thread, owners.model.backward.engine_threads) & (main >= 0) & (main != thread)
    lost = np.flatnonzero((pieces.span < 0) & on_engine[of])
    if not lost.size:
        return pieces
    callers = main[of[lost]]
    parts = timeline(stack.nesting, callers).split(callers, pieces.start[lost], pieces.end[lost])
    waits = stack.inside(ENGINE_CALL, parts.span, "python")
    untold = waits | (take(stack.of_kind("step").astype(np.int64), parts.span) == 1)
    each = np.ones(pieces.span.size, dtype=np.int64)
    each[lost] = parts.counts
    rows = np.repeat(np.arange(each.size), each)
    start, end, span = pieces.start[rows], pieces.end[rows], pieces.span[rows]
    split = np.zeros(each.size, dtype=bool)
    split[lost] = True
    inside = split[rows]
    start[inside], end[inside] = parts.start, parts.end
    span[inside] = np.where(untold, -1, parts.span)
    counts = np.bincount(of[rows], minlength=pieces.counts.size)
    return Pieces(counts.astype(np.int64), start, end, span)


def _inside_steps(stack: HostStack, pieces: Pieces) -> Int64Array:
    """The span of each piece; in none but a step, what began before the step and is still open, if there is such a span."""
    of_step = stack.of_kind("step")
    rows = np.flatnonzero(take(of_step.astype(np.int64), pieces.span) == 1)
    if not rows.size:
        return pieces.span
    steps, of_row = np.unique(pieces.span[rows], return_inverse=True)
    if stack.nesting.may_overlap():
        others = np.flatnonzero(~of_step)
        open_then = stack.nesting_of(others).innermost_at(stack.thread[steps[of_row]], pieces.start[rows])
        around = take(others, open_then)
    else:  # all that is open lies around the step
        around = take(stack.nesting.parent, steps)
        while (nested := np.flatnonzero(take(of_step.astype(np.int64), around) == 1)).size:
            around[nested] = stack.nesting.parent[around[nested]]
        around = around[of_row]
    span = pieces.span.copy()
    span[rows] = np.where(around >= 0, around, span[rows])
    return span


def _stepping_thread(owners: Attribution) -> int:
    """The thread that runs the steps of the process with steps; if none is known, the thread with the most spans."""
    mains = list(owners.model.phases.main.values())
    if mains:
        return mains[0]
    codes, counts = np.unique(owners.model.stack.thread, return_counts=True)
    return int(codes[counts.argmax()]) if codes.size else -1


# -- and when it was not ---------------------------------------------------------------------------


def _rest(scope: Scope, gaps: pl.DataFrame, latency: int) -> tuple[_Rows, pl.Series]:
    """The time of gaps after the host's part, and for each gap the text of the dependency at its end.

    Up to a launch latency after the begin of the call it is that; the rest has another cause.
    """
    if scope.on_cpu or not gaps.height:
        nothing = np.zeros(0, dtype=np.int64)
        return _Rows(nothing, nothing, nothing, nothing, nothing), _no_sources(gaps)
    start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    linked = are_known(gaps["launched"])
    launched = or_none(gaps["launched"], _NEVER)
    late = launched > start
    waits = waits_for(scope, kept(gaps, linked & ~late))
    waiting = np.zeros(gaps.height, dtype=bool)
    waiting[waits["gap_id"].to_numpy()] = True
    cause = np.where(end - start < KERNEL_GAP_NS, _C["kernel_gap"], _C["unexplained"])
    cause = np.where(waiting, _C["dependency"], cause)
    cause = np.where(linked, cause, _C["not_captured"])
    begin = np.where(are_known(gaps["until"]), or_none(gaps["until"]), start)
    started = np.where(late, end, np.clip(launched + latency, begin, end))
    started = np.where(linked, started, begin)
    launch = or_none(gaps["launch_id"])
    waited, after = np.flatnonzero(started > begin), np.flatnonzero(end > started)
    rows = _Rows(
        np.concatenate([waited, after]),
        np.concatenate([begin[waited], started[after]]),
        np.concatenate([started[waited], end[after]]),
        np.concatenate([np.full(waited.size, _C["launch_latency"]), cause[after]]),
        np.concatenate([launch[waited], np.full(after.size, -1)]),
    )
    return rows, _named_sources(scope, gaps, waits)


def _named_sources(scope: Scope, gaps: pl.DataFrame, waits: pl.DataFrame) -> pl.Series:
    """`kernel (stream 20)`, with the device if it is another one; null for gaps without a dependency."""
    if not waits.height:
        return _no_sources(gaps)
    device, gap = scope.trace.device, waits["gap_id"].to_numpy()
    # Names as text only of what was waited for: those of all kernels would take more than all else.
    sources = pl.DataFrame(
        [
            at_rows(device["name"], waits["source"]).cast(pl.String),
            at_rows(device["stream_id"], waits["source"]),
            at_rows(device["device_id"], waits["source"]),
            at_rows(gaps["device_id"], gap).alias("here"),
        ]
    )
    other = pl.format("device {}, ", "device_id")
    where = pl.when(pl.col("device_id") != pl.col("here")).then(other).otherwise(pl.lit(""))
    text = pl.format("{} ({}stream {})", "name", where, "stream_id").cast(pl.Categorical)
    place = np.full(gaps.height, -1, dtype=np.int64)
    place[gap] = np.arange(gap.size)
    return at_rows(sources.select(text.alias("text"))["text"], place)


def _no_sources(gaps: pl.DataFrame) -> pl.Series:
    return pl.Series([None], dtype=pl.Categorical).new_from_index(0, gaps.height)


# -- where it lies ---------------------------------------------------------------------------------


def _at_spans(owners: Attribution, rows: _Rows, main: Int64Array, causes: SpanCauses) -> _Places:
    """Layer, operator, phase and frame around the spans."""
    stack = owners.model.stack
    distinct, back = distinct_rows(rows.span, stack.size)
    places = owners.model.places(distinct)
    op = take(stack.operator, rows.span)
    frame = _frames(owners, rows, rows.span, main, causes)
    return _Places(places.layer[back], op, places.phase[back], frame)


def _at_activities(
    scope: Scope, owners: Attribution, gaps: pl.DataFrame, rows: _Rows, main: Int64Array, causes: SpanCauses
) -> _Places:
    """Layer, operator and phase of the activities that end the gaps, and the frame around their launches."""
    ended = or_none(gaps["ended_by"])[rows.gap]
    touching, own = (rows_of(of["activity_id"], ended) for of in (scope.overlapping, owners.activities))
    op, launch = (take(or_none(scope.overlapping[name]), touching) for name in ("op_id", "launch_id"))
    anchor = np.where(launch >= 0, launch, op)
    distinct, back = distinct_rows(anchor, owners.model.stack.size)
    places = owners.model.places(distinct)
    attributed = own >= 0
    phase = take(or_none(owners.activities["phase"].to_physical()), own)
    layer = take(or_none(owners.activities["layer_id"]), own)
    return _Places(
        np.where(attributed, layer, places.layer[back]),
        op,
        np.where(attributed, phase, places.phase[back]),
        _frames(owners, rows, anchor, main, causes),
    )


def _frames(
    owners: Attribution, rows: _Rows, spans: Int64Array, main: Int64Array, causes: SpanCauses
) -> Int64Array:
    """The user's frame around each span. If its thread has none, like threads of the autograd engine, the main thread's
    frame at that time.
    """
    frame = take(causes.frame, spans)
    lost = np.flatnonzero((frame < 0) & (main[rows.gap] >= 0))
    if lost.size and (causes.frame >= 0).any():
        open_then = owners.model.stack.nesting.innermost_at(main[rows.gap[lost]], rows.start[lost])
        frame[lost] = take(causes.frame, open_then)
    return frame


def _main_threads(scope: Scope, owners: Attribution, gaps: pl.DataFrame) -> Int64Array:
    """For each gap the main thread of the process that launched the activity at its end; −1 if that is unknown."""
    if scope.on_cpu:
        return np.full(gaps.height, _stepping_thread(owners), dtype=np.int64)
    launch = or_none(gaps["launch_id"])
    main = np.full(launch.size, -1, dtype=np.int64)
    launched = launch >= 0
    main[launched] = owners.model.phases.main_thread(owners.model.stack.process[launch[launched]])
    return main
