"""The digest of a scope: its window cut at the steps, and every ns of every device given to one leaf.

At each instant a device computes, communicates, copies or is idle, the first of these that applies (DEFINITIONS §3). Of several
activities of one class that run at once, the one that began first has the time; what it hides counts only where it reaches
beyond.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.completeness import completeness
from tracekit.analyses.idle.pieces import idle_pieces
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER, span_causes
from tracekit.analyses.memory import memory
from tracekit.analyses.scope import Scope, once, step_at, step_spans
from tracekit.analyses.stalls import stalled_ns
from tracekit.classify import ACTIVITY_CLASSES
from tracekit.digest.model import KINDS, LAYERS, LEAVES, NO_STEP, STEPS, VALUES, Digest, Facts
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.stack_names import PHASES
from tracekit.groups import at_rows, falling, groups, none_to_null, or_none, rows_of
from tracekit.intervals import EMPTY, IntervalSet
from tracekit.names import clean, clean_frame
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import CATEGORIES, Schema, Trace

__all__ = ["digest_of"]

_COUNTED = ("synchronisation", "allocation", "module_loading")
"""Calls of the host that wait or stall, by the cause of the idle time that they make."""
_LOADING = "data_loading"
_KEYS: Final[Schema] = {
    "kind": pl.Enum(KINDS),
    "category": pl.Enum((*CATEGORIES, *CAUSES)),
    **dict.fromkeys(("name", "operator", "shapes", "dtypes"), pl.Categorical()),
    "layer_id": pl.Int64,
    "phase": pl.Enum(PHASES),
}
"""What tells leaves apart within a trace, without their texts."""


def digest_of(of: Scope | Trace) -> Digest:
    """The digest of a scope; of a trace, that of its default scope.

    >>> import tracekit
    >>> made = digest_of(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(made.values["ns"].sum()) == int(made.steps["time_ns"].sum()) * made.facts.devices
    True
    """
    return once(of, _digest_of)


def _digest_of(scope: Scope) -> Digest:
    edges, numbers = _slices(scope)
    steps = _steps(scope, edges, numbers)
    rows = pl.concat([_sliced(pl.concat([_work(scope), _idle(scope)]), edges, numbers), _calls(scope)])
    steps = _whole_steps(scope, steps, rows)
    kept = np.isin(rows["step"].to_numpy(), steps["step"].to_numpy())
    rows = rows if kept.all() else rows[np.flatnonzero(kept)]
    alike = groups(*(or_none(rows[name].to_physical()) for name in _KEYS))
    numbers_of, leaves = _leaves(scope, rows[list(_KEYS)][alike.first])
    cells = groups(rows["step"].to_numpy(), numbers_of[alike.of])
    sums = {name: cells.sums(rows[name].to_numpy()) for name in ("ns", "calls", "duration_ns")}
    values = pl.DataFrame({"step": cells.keys[0], "leaf": cells.keys[1], **sums}, VALUES)
    return Digest(_facts(scope), steps, leaves, _layers(scope, leaves), values)


def _leaves(scope: Scope, keys: pl.DataFrame) -> tuple[Int64Array, pl.DataFrame]:
    """The number of the leaf of each row of keys, and the leaves: keys that agree in all their texts are one."""
    layers = attribution(scope).layers
    told = clean_frame(
        keys.drop("kind", "layer_id").with_columns(
            at_rows(layers["path"], keys["layer_id"]).alias("layer"),
            at_rows(layers["type"], keys["layer_id"]).alias("type"),
        )
    )
    told = told.insert_column(0, keys["kind"])[[name for name in LEAVES if name != "leaf"]]
    texts = told.columns
    leaves = told.unique().sort(texts, nulls_last=True).with_row_index("leaf").cast({"leaf": pl.Int64})
    numbers = told.join(leaves, on=texts, how="left", nulls_equal=True, maintain_order="left")["leaf"]
    return numbers.to_numpy(), leaves


def _layers(scope: Scope, leaves: pl.DataFrame) -> pl.DataFrame:
    """The layers of the leaves, and those around them."""
    table = attribution(scope).layers
    texts = clean_frame(table.select("path", "name", "type"))
    parents = at_rows(texts["path"], table["parent_layer_id"]).alias("parent")
    told = texts.with_columns(parents, table["source"].is_in(OF_MODEL).alias("part_of_model"))
    told = told.unique("path", keep="first", maintain_order=True).select(
        pl.col(name).cast(kind) for name, kind in LAYERS.items()
    )
    around, wanted = dict(told["path", "parent"].rows()), set[str]()
    for leaf in leaves["layer"].drop_nulls().unique():
        path = leaf
        while path is not None and path not in wanted:
            wanted.add(path)
            path = around[path]
    return told.filter(pl.col("path").is_in(wanted))


def _slices(scope: Scope) -> tuple[Int64Array, Int64Array]:
    """The edges of the slices of the window, and the step that each is: `NO_STEP` for what lies between periods."""
    whole = np.array([scope.start, max(scope.end, scope.start)]), np.array([NO_STEP])
    if scope.window != "steps" or not scope.steps.height:
        return whole
    spans = step_spans(scope)
    starts = np.clip(spans["span_start"].to_numpy(), scope.start, scope.end)
    numbers = spans["step"].to_numpy()
    starts[0] = scope.start
    if scope.periods:  # each ends where another begins, or what is no step
        ends = np.clip(spans["span_end"].to_numpy(), starts, np.append(starts[1:], scope.end))
        starts, numbers = (
            np.column_stack([starts, ends]).ravel(),
            np.column_stack([numbers, np.full(numbers.size, NO_STEP)]).ravel(),
        )
    edges = np.append(starts, scope.end)
    kept = np.diff(edges) > 0
    return (np.append(edges[:-1][kept], scope.end), numbers[kept]) if kept.any() else whole


def _steps(scope: Scope, edges: Int64Array, numbers: Int64Array) -> pl.DataFrame:
    times = pl.DataFrame(
        {"step": numbers, "time_ns": np.diff(edges)}, schema_overrides={"step": pl.Int64, "time_ns": pl.Int64}
    )
    if (numbers != NO_STEP).any():
        times = times.filter(pl.col("step") != NO_STEP)
    named = times.join(scope.steps.select("step", "name"), on="step", how="left", maintain_order="left")
    return named.select(pl.col(name).cast(kind) for name, kind in STEPS.items()).with_columns(
        pl.col("name").fill_null("")
    )


def _whole_steps(scope: Scope, steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps; of a file that ends too early without the last one with work, which it cuts, and what follows. One step stays."""
    if not completeness(scope).breaks:
        return steps
    worked = rows.filter(~pl.col("kind").is_in(["idle", "call"]))["step"].unique()
    met = np.flatnonzero(np.isin(steps["step"].to_numpy(), worked.to_numpy()))
    return steps.head(max(1, int(met[-1]))) if met.size else steps


# -- pieces of the time of devices ------------------------------------------------------------------
#
# Frames with the columns of `_KEYS`, the `start` and `end` of a piece, whether it is the `first` of its activity or gap, whether it
# is `called` there, and the `duration_ns` of the whole.


def _pieces_of(columns: dict[str, pl.Series]) -> pl.DataFrame:
    """The columns, those of `_KEYS` first, in the types that all kinds of pieces share."""
    for name, kind in _KEYS.items():
        column = columns[name]
        if (
            isinstance(column.dtype, pl.Enum) and column.dtype != kind
        ):  # by number: of each row a text would be made
            words = column.dtype.categories.cast(kind)
            columns[name] = at_rows(words, column.to_physical())
        else:
            columns[name] = column.cast(kind)
    return pl.DataFrame({**dict.fromkeys(_KEYS), **columns})


def _of_operator(host: pl.DataFrame, op_id: pl.Series | Int64Array) -> dict[str, pl.Series]:
    """Name and inputs of the operators."""
    columns = {"operator": "name", "shapes": "shapes", "dtypes": "dtypes"}
    return {name: at_rows(host[column], op_id) for name, column in columns.items()}


def _constant(value: str, kind: str, size: int) -> pl.Series:
    return pl.Series([value], dtype=_KEYS[kind]).new_from_index(0, size)


def _work(scope: Scope) -> pl.DataFrame:
    """The pieces of the window in which each device worked."""
    rows, owners = scope.overlapping, attribution(scope).activities
    starts, ends = (np.clip(rows[name].to_numpy(), scope.start, scope.end) for name in ("start", "end"))
    order = falling(starts, ends, rows["activity_id"].to_numpy())
    kind = rows["class"].to_physical().to_numpy()[order]
    device = rows["device_id"].to_numpy()[order]
    starts, ends = starts[order], ends[order]
    parts = [_exposed(starts[:0], ends[:0], EMPTY)]
    for number in scope.device_ids:
        taken = EMPTY
        for each in range(len(ACTIVITY_CLASSES)):
            mine = np.flatnonzero((device == number) & (kind == each))
            row, begin, until, new = _exposed(starts[mine], ends[mine], taken)
            parts.append((mine[row], begin, until, new))
            taken = taken | IntervalSet.of(starts[mine], ends[mine])
    at, start, end, first = (np.concatenate(part) for part in zip(*parts, strict=True))
    rows = rows["activity_id", "class", "category", "name", "duration"][order[at]]
    placed = rows_of(owners["activity_id"], rows["activity_id"].to_numpy())
    op_id = at_rows(owners["op_id"], placed)
    return _pieces_of(
        {
            "kind": rows["class"],
            "category": rows["category"],
            "name": rows["name"],
            **_of_operator(scope.trace.host, op_id),
            "operator": at_rows(owners["operator"], placed),
            "layer_id": at_rows(owners["layer_id"], placed),
            "phase": at_rows(owners["phase"], placed).fill_null("other"),
            "start": pl.Series(start),
            "end": pl.Series(end),
            "first": pl.Series(first),
            "called": pl.Series(first & _begins(or_none(op_id), start) if scope.on_cpu else first),
            "duration_ns": rows["duration"],
        }
    )


def _begins(op_id: Int64Array, start: Int64Array) -> BoolArray:
    """Of pieces of operators' self time, which is the first of a call: between two of them other operators are called in it."""
    order = falling(op_id, start)
    began = np.ones(op_id.size, dtype=bool)
    began[order[1:]] = (np.diff(op_id[order]) != 0) | (op_id[order[1:]] < 0)
    return began


def _exposed(
    starts: Int64Array, ends: Int64Array, taken: IntervalSet
) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
    """The pieces of activities of one class that none before them has, and that are not taken; a piece of no length of an activity
    that has none: row, start, end, and whether it is the activity's first.
    """
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ends))[:-1] if ends.size else ends
    low = np.maximum(starts, reach)
    row, start, end = _without(low, np.maximum(ends, low), taken)
    seen = np.zeros(low.size, dtype=bool)
    seen[row] = True
    hidden = np.flatnonzero(~seen)
    return (
        np.concatenate([row, hidden]),
        np.concatenate([start, starts[hidden]]),
        np.concatenate([end, starts[hidden]]),
        np.append(np.diff(row, prepend=-1) > 0, np.ones(hidden.size, dtype=bool)),
    )


def _without(
    low: Int64Array, high: Int64Array, taken: IntervalSet
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The pieces of disjoint stretches in order that are not taken: row, start, end."""
    full = np.flatnonzero(high > low)
    if not taken or not full.size:
        return full, low[full], high[full]
    free = taken.complement(int(low[full[0]]), int(high[full[-1]]))
    first = np.searchsorted(free.ends, low[full], side="right")
    met = np.maximum(np.searchsorted(free.starts, high[full], side="left") - first, 0)
    row = np.repeat(full, met)
    at = np.arange(row.size) + np.repeat(first - (np.cumsum(met) - met), met)
    return row, np.maximum(low[row], free.starts[at]), np.minimum(high[row], free.ends[at])


def _idle(scope: Scope) -> pl.DataFrame:
    """The pieces in which each device was idle, by cause; the name is that of the call, if one made the device wait."""
    pieces, host = idle_pieces(scope), scope.trace.host
    spans = or_none(pieces["span_id"])
    call = attribution(scope).model.stack.of_kind("runtime", "sync")
    called = (spans >= 0) & call[spans] if call.size else spans >= 0
    return _pieces_of(
        {
            "kind": _constant("idle", "kind", pieces.height),
            "category": pieces["cause"],
            "name": at_rows(host["name"], np.where(called, spans, -1)),
            **_of_operator(host, pieces["op_id"]),
            "layer_id": pieces["layer_id"],
            "phase": pieces["phase"],
            "start": pieces["start"],
            "end": pieces["start"] + pieces["duration_ns"],
            "first": pl.Series([True]).new_from_index(0, pieces.height),
            "called": pl.Series([True]).new_from_index(0, pieces.height),
            "duration_ns": pieces["duration_ns"],
        }
    )


def _sliced(pieces: pl.DataFrame, edges: Int64Array, numbers: Int64Array) -> pl.DataFrame:
    """The pieces cut at the edges: the columns of `_KEYS` with `step`, `ns`, `calls`, `duration_ns`."""
    start, end = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    last = numbers.size - 1
    low = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, last)
    high = np.clip(np.searchsorted(edges, end, side="left") - 1, low, last)
    row = np.repeat(np.arange(start.size), high - low + 1)
    at = np.arange(row.size) + np.repeat(low - (np.cumsum(high - low + 1) - (high - low + 1)), high - low + 1)
    begun, called = (
        ((at == low[row]) & pieces[name].to_numpy()[row]).astype(np.int64) for name in ("first", "called")
    )
    counted = {
        "step": numbers[at],
        "ns": np.minimum(end[row], edges[at + 1]) - np.maximum(start[row], edges[at]),
        "calls": called,
        "duration_ns": pieces["duration_ns"].to_numpy()[row] * begun,
    }
    return pieces[list(_KEYS)][row].hstack([pl.Series(name, column) for name, column in counted.items()])


# -- calls of the host ------------------------------------------------------------------------------


def _calls(scope: Scope) -> pl.DataFrame:
    """The calls of the host that wait, allocate or load, in the step in which they begin on the host."""
    host, owners = scope.trace.host, attribution(scope)
    stack, causes = owners.model.stack, span_causes(scope).cause
    wanted = stack.of_kind("runtime", "sync") & np.isin(causes, [CAUSE_NUMBER[name] for name in _COUNTED])
    # Of loading in loading the outermost, and only that for which a step may wait: not what other threads load ahead.
    loading = causes == CAUSE_NUMBER[_LOADING]
    if loading.any():
        outermost = loading & (stack.nesting.nearest_ancestor(loading, include_self=False) < 0)
        wanted |= outermost & np.isin(stack.thread, list(owners.model.phases.main.values()))
    spans = np.flatnonzero(wanted)
    step = np.full(spans.size, NO_STEP)
    if scope.window == "steps":
        step = or_none(step_at(scope.steps, stack.start[spans]), NO_STEP)
    places = owners.model.places(spans)
    return _pieces_of(
        {
            "kind": _constant("call", "kind", spans.size),
            "category": at_rows(pl.Series(CAUSES), causes[spans]),
            "name": at_rows(host["name"], spans),
            **_of_operator(host, stack.operator[spans]),
            "layer_id": none_to_null(places.layer),
            "phase": at_rows(pl.Series(PHASES), places.phase),
            "step": pl.Series(step),
            "ns": pl.Series(np.zeros_like(step)),
            "calls": pl.Series(np.ones_like(step)),
            "duration_ns": at_rows(host["duration"], spans),
        }
    )


# -- which run --------------------------------------------------------------------------------------


def _facts(scope: Scope) -> Facts:
    meta, manifest = scope.trace.meta, scope.trace.manifest
    chosen = None if manifest is None else manifest.settings
    names = dict.fromkeys(clean(device.name) for device in meta.devices if device.name)
    versions = dict(meta.producer if manifest is None else {**meta.producer, **manifest.versions})
    return Facts(
        name=clean(meta.name if manifest is None else f"{Path(meta.path).resolve().parent.name}/{meta.name}"),
        format=meta.format,
        workload="" if manifest is None else clean(manifest.workload),
        device=", ".join(names) or ("" if manifest is None else clean(manifest.device_name)),
        devices=max(1, len(scope.device_ids)),
        on_cpu=scope.on_cpu,
        rank=meta.rank,
        world_size=meta.world_size,
        steps_inferred_from=scope.inferred_from,
        settings={} if chosen is None else msgspec.structs.asdict(chosen),
        versions={clean(name): clean(value) for name, value in versions.items() if name != "trace_id"},
        captured=tuple(sorted(meta.captured)),
        undisturbed_ns=() if manifest is None else tuple(manifest.step_times_ns("M")),
        recorded_utc_ns=meta.origin_utc_ns,
        samples_per_step=None if manifest is None else manifest.samples_per_step,
        damage=_damage(scope),
        peak_memory_bytes=_peak_memory(scope),
        stalled_ns=stalled_ns(scope),
    )


def _damage(scope: Scope) -> tuple[str, ...]:
    """Defects of the file after which it is not whole; if records that matter are missing, what is missing too."""
    told = scope.trace.health["severity"].is_in(
        ["error"] if completeness(scope).sure else ["error", "warning"]
    )
    return tuple(scope.trace.health.filter(told)["kind"])


def _peak_memory(scope: Scope) -> int | None:
    """Of the capture, else of the profile, where it has totals."""
    manifest, peaks = scope.trace.manifest, memory(scope).peaks
    known = [] if manifest is None else [run.peak_memory_bytes for run in manifest.runs]
    if peaks is not None and not any(known):
        known = peaks.filter(~pl.col("relative"), pl.col("device_id") >= 0)["peak_bytes"].to_list()
    return max(filter(None, known), default=None)
