"""The digest of a scope: its window cut at the steps, and every ns of every device given to one leaf.

At each instant a device computes, communicates, copies or is idle, the first of these that applies (DEFINITIONS §3). Of several
activities of one class that run at once, the one that began first has the time; what it hides counts only where it reaches
beyond.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.idle.gaps import device_gaps
from tracekit.analyses.idle.pieces import idle_pieces
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER, span_causes
from tracekit.analyses.memory import memory
from tracekit.analyses.scope import Scope, once, step_at, step_spans
from tracekit.digest.model import KINDS, LAYERS, LEAVES, NO_STEP, STEPS, VALUES, Digest, Facts
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.stack_names import PHASES
from tracekit.groups import groups, or_none
from tracekit.intervals import EMPTY, IntervalSet
from tracekit.names import clean, clean_frame
from tracekit.spans import Int64Array
from tracekit.trace import CATEGORIES, Schema, Trace

__all__ = ["digest_of"]

_CLASSES = ("compute", "communication", "memory")
_COUNTED = ("synchronisation", "allocation", "module_loading")
"""Calls of the host that wait or stall, by the cause of the idle time that they make."""
_CATEGORY = pl.Enum((*CATEGORIES, *CAUSES))
_KEYS = ("kind", "category", "name", "operator", "shapes", "dtypes", "layer_id", "phase")
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
    rows = pl.concat([_sliced(pl.concat([*_work(scope), _idle(scope)]), edges, numbers), _calls(scope)])
    rows = rows.filter(pl.col("step").is_in(steps["step"].implode()))
    alike = groups(*(or_none(rows[name].to_physical()) for name in _KEYS))
    numbers_of, leaves = _leaves(scope, rows.select(_KEYS)[alike.first])
    cells = groups(rows["step"].to_numpy(), numbers_of[alike.of])
    sums = {name: cells.sums(rows[name].to_numpy()) for name in ("ns", "calls", "duration_ns")}
    values = pl.DataFrame({"step": cells.keys[0], "leaf": cells.keys[1], **sums}, VALUES)
    return Digest(_facts(scope), steps, leaves, _layers(scope, leaves), values)


def _leaves(scope: Scope, keys: pl.DataFrame) -> tuple[Int64Array, pl.DataFrame]:
    """The number of the leaf of each row of keys, and the leaves: keys that agree in all their texts are one."""
    layers = attribution(scope).layers.select("layer_id", pl.col("path").alias("layer"), "type")
    told = keys.join(layers, on="layer_id", how="left", maintain_order="left").select(
        pl.col(name).cast(kind) for name, kind in LEAVES.items() if name != "leaf"
    )
    told = pl.concat([told.select("kind"), clean_frame(told.drop("kind"))], how="horizontal")
    texts = told.columns
    leaves = told.unique().sort(texts, nulls_last=True).with_row_index("leaf").cast({"leaf": pl.Int64})
    numbers = told.join(leaves, on=texts, how="left", nulls_equal=True, maintain_order="left")["leaf"]
    return numbers.to_numpy(), leaves


def _layers(scope: Scope, leaves: pl.DataFrame) -> pl.DataFrame:
    """The layers of the leaves, and those around them."""
    table = attribution(scope).layers
    texts = clean_frame(table.select("path", "name", "type"))
    parents = texts["path"].gather(table["parent_layer_id"]).alias("parent")
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


# -- pieces of the time of devices ------------------------------------------------------------------
#
# Frames with the columns of `_KEYS`, the `start` and `end` of a piece, and of the first piece of each activity or gap also the whole's
# `begins` and `duration_ns`.


def _keys_of(kind: str) -> list[pl.Expr]:
    """The key columns of pieces of one kind, in types that all kinds share."""
    types: Schema = {"layer_id": pl.Int64, "phase": pl.Enum(PHASES)}
    return [
        pl.lit(kind).cast(pl.Enum(KINDS)).alias("kind"),
        pl.col("category").cast(pl.String).cast(_CATEGORY),
        *(pl.col(name).cast(types.get(name, pl.Categorical())) for name in _KEYS[2:]),
    ]


def _of_operator(host: pl.DataFrame, op_id: pl.Series) -> list[pl.Series]:
    """Name and inputs of the operators."""
    columns = {"operator": "name", "shapes": "shapes", "dtypes": "dtypes"}
    return [host[column].gather(op_id).alias(name) for name, column in columns.items()]


def _work(scope: Scope) -> Iterator[pl.DataFrame]:
    """The pieces of the window in which each device worked."""
    placed = attributed(scope)
    places = placed.select(
        "activity_id", *_of_operator(scope.trace.host, placed["op_id"]), "layer_id", "phase"
    ).with_columns(placed["operator"])
    rows = scope.overlapping.select(
        "activity_id",
        "device_id",
        "class",
        "category",
        "name",
        "start",
        "end",
        pl.col("duration").alias("duration_ns"),
    )
    rows = rows.with_columns(pl.col("start", "end").clip(scope.start, scope.end)).sort(
        "start", "end", "activity_id"
    )
    rows = rows.join(places, on="activity_id", how="left", maintain_order="left").with_columns(
        pl.col("phase").fill_null("other")
    )
    for device in scope.device_ids:
        mine, taken = rows.filter(pl.col("device_id") == device), EMPTY
        for kind in _CLASSES:
            own = mine.filter(pl.col("class") == kind)
            yield _exposed(own, kind, taken)
            taken = taken | IntervalSet.of(own["start"].to_numpy(), own["end"].to_numpy())


def _exposed(rows: pl.DataFrame, kind: str, taken: IntervalSet) -> pl.DataFrame:
    """The pieces of activities of one class that none before them has, and that are not taken; a piece of no length of an activity
    that has none.
    """
    starts, ends = rows["start"].to_numpy(), rows["end"].to_numpy()
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ends))[:-1] if ends.size else ends
    low = np.maximum(starts, reach)
    row, start, end = _without(low, np.maximum(ends, low), taken)
    seen = np.zeros(low.size, dtype=bool)
    seen[row] = True
    hidden = np.flatnonzero(~seen)
    at = np.concatenate([row, hidden])
    first = pl.Series(np.append(np.diff(row, prepend=-1) > 0, np.ones(hidden.size, dtype=bool)))
    return rows[at].select(
        *_keys_of(kind),
        pl.Series("start", np.concatenate([start, starts[hidden]]), dtype=pl.Int64),
        pl.Series("end", np.concatenate([end, starts[hidden]]), dtype=pl.Int64),
        pl.when(first).then("start").alias("begins"),
        pl.when(first).then("duration_ns").alias("duration_ns"),
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
    # The tables of `idle_causes` would take as long again.
    pieces = idle_pieces(scope, attribution(scope), device_gaps(scope))
    host = scope.trace.host
    called = host["kind"].gather(pieces["span_id"]).is_in(["runtime", "sync"])
    rows = pieces.with_columns(
        host["name"].gather(pieces["span_id"]).alias("name"),
        called.alias("called"),
        *_of_operator(host, pieces["op_id"]),
    ).with_columns(
        pl.when("called").then("name").alias("name"), pl.col("cause").cast(pl.String).alias("category")
    )
    return rows.select(
        *_keys_of("idle"),
        "start",
        (pl.col("start") + pl.col("duration_ns")).alias("end"),
        pl.col("start").alias("begins"),
        "duration_ns",
    )


def _sliced(pieces: pl.DataFrame, edges: Int64Array, numbers: Int64Array) -> pl.DataFrame:
    """The pieces cut at the edges: the columns of `_KEYS` with `step`, `ns`, `calls`, `duration_ns`."""
    start, end = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    last = numbers.size - 1
    low = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, last)
    high = np.clip(np.searchsorted(edges, end, side="left") - 1, low, last)
    row = np.repeat(np.arange(start.size), high - low + 1)
    at = np.arange(row.size) + np.repeat(low - (np.cumsum(high - low + 1) - (high - low + 1)), high - low + 1)
    ns = np.minimum(end[row], edges[at + 1]) - np.maximum(start[row], edges[at])
    begun = pl.Series(at == low[row]) & pieces["begins"].is_not_null()[row]
    return pieces[row].select(
        *_KEYS,
        pl.Series("step", numbers[at], dtype=pl.Int64),
        pl.Series("ns", ns, dtype=pl.Int64),
        begun.cast(pl.Int64).alias("calls"),
        pl.when(begun).then("duration_ns").otherwise(0).alias("duration_ns"),
    )


# -- calls of the host ------------------------------------------------------------------------------


def _calls(scope: Scope) -> pl.DataFrame:
    """The calls of the host that wait, allocate or load code, in the step in which they begin on the host."""
    host, owners = scope.trace.host, attribution(scope)
    stack, causes = owners.model.stack, span_causes(scope.trace, owners.model).cause
    wanted = stack.of_kind("runtime", "sync") & np.isin(causes, [CAUSE_NUMBER[name] for name in _COUNTED])
    spans = np.flatnonzero(wanted)
    if scope.window == "steps":
        step = step_at(scope.steps, host["start"].to_numpy()[spans]).fill_null(NO_STEP)
    else:
        step = pl.repeat(NO_STEP, spans.size, dtype=pl.Int64, eager=True)
    places = owners.model.places(spans)
    rows = pl.DataFrame(
        {
            "category": pl.Series(CAUSES).gather(causes[spans]),
            "name": host["name"].gather(spans),
            "layer_id": _known(places.layer),
            "phase": pl.Series(PHASES).gather(places.phase),
            "duration_ns": host["duration"].gather(spans),
            "step": step,
        }
    ).with_columns(_of_operator(host, _known(stack.nesting.nearest_ancestor(stack.of_kind("op"))[spans])))
    one = [pl.lit(0, pl.Int64).alias("ns"), pl.lit(1, pl.Int64).alias("calls")]
    return rows.select(*_keys_of("call"), "step", *one, "duration_ns")


def _known(rows: Int64Array) -> pl.Series:
    """The rows, null for −1."""
    return pl.Series(rows, dtype=pl.Int64).set(pl.Series(rows < 0), None)


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
        peak_memory_bytes=_peak_memory(scope),
    )


def _peak_memory(scope: Scope) -> int | None:
    """Of the capture, else of the profile, where it has totals."""
    manifest, peaks = scope.trace.manifest, memory(scope).peaks
    known = [] if manifest is None else [run.peak_memory_bytes for run in manifest.runs]
    if peaks is not None and not any(known):
        known = peaks.filter(~pl.col("relative"), pl.col("device_id") >= 0)["peak_bytes"].to_list()
    return max(filter(None, known), default=None)
