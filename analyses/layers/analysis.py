"""Which layer of the model takes the time: device time along the tree of layers (DEFINITIONS §5).

Every activity belongs to one layer, to a pseudo-layer in angle brackets (work in no layer, but in a phase with a name:
`<loss>`, `<optimizer>`, `<data>`) or to `unattributed`; `tracekit.analyses.attribution` gives the method. The own time
of a row is the sum of its own activities, so the own times of all rows sum to the device time exactly. Inclusive times
add those of the rows below it in the tree. Without a device, the self times of operators replace the activities.

Host time is the time of a layer's calls on their threads. The own time leaves out calls of other layers, and the
inclusive time adds the rows below. The backward pass calls no layers, so host times do not include it, except for
layers that it computes again.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, Attribution, attributed, attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers.groups import CHILDREN, HostTimes, by_group, host_times, pattern_of, shares
from tracekit.analyses.result import PHASE_COLUMNS, Result, TableView
from tracekit.analyses.roofline.rates import RATES, tree_rates, with_rates
from tracekit.analyses.scope import Scope, launch_times, once
from tracekit.classes import dataclass
from tracekit.facts.stack_names import NO_LAYERS, PHASES
from tracekit.facts.units import format_ns, format_share
from tracekit.groups import any_known, at_rows, kept, none_to_null, or_none, text_codes
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Schema, Trace
from tracekit.trees import depth_first, rolled_up, rolled_up_least, union_per_node

__all__ = ["CLASSES", "TABLES", "Layers", "has_layers", "layers", "most_own_time"]

CLASSES = ("compute", "communication", "memory")

_NAMED = 3
"""The number of layers in the answer."""

_LONGEST = 48
"""The answer shows only the end of a longer path, which says most."""

_SUMS = (
    "device_own_ns",
    *(f"{name}_ns" for name in PHASES),
    *(f"class_{name}_ns" for name in CLASSES),
    "recomputed_ns",
    "activities",
)
_NEVER = np.iinfo(np.int64).max

TABLES: Final = {
    "tree": TableView(
        "Layers",
        (
            "layer_id parent_layer_id path parent name type source depth calls device_ns "
            f"device_own_ns {PHASE_COLUMNS} class_compute_ns class_communication_ns class_memory_ns "
            "recomputed_ns activities union_ns host_ns host_self_ns idle_caused_ns idle_caused_own_ns"
            f" share own_share {RATES}"
        ),
        short="path device_ns share device_own_ns calls host_ns idle_caused_ns flops_per_s bound union_ns type",
        titles={
            "communication_ns": "gradients, buffers",
            "device_own_ns": "own",
            "idle_caused_ns": "idle caused",
        },
        hidden="layer_id parent_layer_id parent depth",
        tree=True,
        main=True,
    ),
    "by_type": TableView(
        "By type of layer",
        (
            f"type layers calls device_ns device_own_ns {PHASE_COLUMNS} recomputed_ns host_ns "
            f"host_self_ns idle_caused_own_ns mean_ns share own_share {RATES}"
        ),
        short="type device_own_ns own_share device_ns layers calls host_ns flops_per_s bound",
        titles={
            "mean_ns": "mean of a layer",
            "communication_ns": "gradients, buffers",
            "device_own_ns": "own",
            "idle_caused_own_ns": "idle caused",
        },
    ),
    "by_pattern": TableView(
        "Repeated layers as one",
        (
            f"pattern type layers calls device_ns device_own_ns {PHASE_COLUMNS} recomputed_ns host_ns "
            "host_self_ns idle_caused_own_ns mean_ns share own_share"
        ),
        short="pattern device_own_ns own_share device_ns type layers calls host_ns",
        titles={
            "mean_ns": "mean of a layer",
            "communication_ns": "gradients, buffers",
            "device_own_ns": "own",
            "idle_caused_own_ns": "idle caused",
            "pattern": "layer",
        },
    ),
    "by_phase": TableView(
        "By phase", "phase activities device_ns share", short="phase device_ns share activities"
    ),
    "coverage": TableView(
        "How the layer is known",
        "method activities duration_ns share",
        short="method duration_ns share activities",
        titles={"duration_ns": "on device"},
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layers(Result):
    """Device and host time along the tree of layers."""

    tree: pl.DataFrame
    """One row per layer with any time, in depth-first order, siblings in the order in which they first ran. `path`,
    `parent` (its path), `name` (the last part), `type` (class of the module), `source` of the layer, `depth`; `calls`
    in the scope; `device_ns` (inclusive) and `device_own_ns`; the inclusive time by phase (`forward_ns` … `other_ns`)
    and by class (`class_compute_ns`, `class_communication_ns`, `class_memory_ns`); `union_ns`, the time in which at
    least one of those activities ran; `recomputed_ns`, forward work that ran again in the backward pass; `activities`
    (inclusive); `share` and `own_share` of the summed device time. `host_ns` and `host_self_ns` are null if neither the
    row nor the rows below it have calls. `idle_caused_ns` (inclusive) and `idle_caused_own_ns` are the device's idle
    time that a span of the layer caused (`analyses.idle.causes`), null if no launch was recorded. `layer_id` and
    `parent_layer_id` number the layers; they are null for the row `unattributed`.
    """
    by_type: pl.DataFrame | None
    """The rows by class (`Conv2d`). A layer inside another of its class counts once. None if no class is known."""
    by_pattern: pl.DataFrame
    """The rows by path, with `*` for numbers (`encoder.layer.*.attention`), and by class."""
    by_phase: pl.DataFrame
    """`activities`, `device_ns`, `share` per phase."""
    coverage: pl.DataFrame
    """`activities`, `duration_ns`, `share` per method of attribution."""
    attributed_share: float | None
    """The part of the device time in layers or named phases; None when nothing ran."""


def layers(scope: Scope | Trace) -> Layers:
    """Device and host time by layer of the scope.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> found = layers(trace)
    >>> int(found.tree["device_own_ns"].sum()) == int(select(trace).activities["duration"].sum())
    True
    >>> found.tree.filter(found.tree["type"] == "Conv2d")["path"][0]
    'stem.0'
    """
    return once(scope, _layers)


def _layers(scope: Scope) -> Layers:
    places = attribution(scope)
    rows = attributed(scope)
    total = int(rows["duration"].sum())
    tree = _tree(scope, places, rows, total)
    by_phase = _by_phase(rows, total)
    by_pattern = by_group(tree.hstack([pattern_of(tree).alias("pattern")]), ["pattern", "type"], total)
    return Layers(
        answer=_answer(by_pattern, by_phase, has_layers(tree), places.coverage_share, on_cpu=scope.on_cpu),
        not_captured="; ".join(places.missing) or None,
        tree=tree,
        by_type=with_rates(
            by_group(tree.with_columns(_type_or_pseudo().alias("type")), ["type"], total),
            scope,
            "types",
            ["type"],
        )
        if any_known(tree["type"])
        else None,
        by_pattern=by_pattern,
        by_phase=by_phase,
        coverage=places.coverage,
        attributed_share=places.coverage_share,
    )


def _type_or_pseudo() -> pl.Expr:
    """Rows for work in no layer have no class; their name takes its place."""
    return pl.when(pl.col("source").is_in(OF_MODEL)).then("type").otherwise("name")


def _tree(scope: Scope, places: Attribution, rows: pl.DataFrame, total: int) -> pl.DataFrame:
    table = places.layers
    # One more row, for what is in no layer.
    parent = np.append(or_none(table["parent_layer_id"]), -1)
    depth = np.append(table["depth"].to_numpy(), 0)
    layer = or_none(rows["layer_id"], table.height)
    own, first = _own_sums(scope, rows, layer, parent.size)
    host = host_times(scope, places.model, parent.size)
    sums = rolled_up(own, parent, depth)
    device = sums[:, 0]
    calls, inside = host.rolled_up(parent, depth)
    first = rolled_up_least(np.minimum(first, host.first), parent, depth)
    spans = (rows["start"].to_numpy(), rows["end"].to_numpy())
    union = union_per_node(layer, *spans, parent, depth)
    idle_own = _idle_caused(scope, parent.size)
    idle = rolled_up(idle_own, parent, depth)
    columns = _columns(table, own, sums, union, host, calls, inside)
    columns |= _idle_columns(scope, idle, idle_own) | tree_rates(scope, parent, depth)
    kept = np.flatnonzero((sums[:, -1] > 0) | (device > 0) | (inside.total > 0) | (idle > 0))
    order = _walk(kept, parent, first)
    return pl.DataFrame(columns)[order].with_columns(shares(total))


def _own_sums(
    scope: Scope, rows: pl.DataFrame, layer: Int64Array, size: int
) -> tuple[Int64Array, Int64Array]:
    """For each layer the sums of `_SUMS` over its own activities, and the first launch of them."""
    time = pl.col("duration")
    frame = rows[["duration", "phase", "class", "recomputed"]].hstack(
        [pl.Series("layer", layer), pl.Series("launched", launch_times(scope.trace, rows))]
    )
    sums = frame.group_by("layer").agg(
        time.sum().alias("device_own_ns"),
        *(time.filter(pl.col("phase") == name).sum().alias(f"{name}_ns") for name in PHASES),
        *(time.filter(pl.col("class") == name).sum().alias(f"class_{name}_ns") for name in CLASSES),
        time.filter("recomputed").sum().alias("recomputed_ns"),
        pl.len().cast(pl.Int64).alias("activities"),
        pl.col("launched").min(),
    )
    own = np.zeros((size, len(_SUMS)), dtype=np.int64)
    first = np.full(size, _NEVER)
    at = sums["layer"].to_numpy()
    own[at] = sums[list(_SUMS)].to_numpy()
    first[at] = sums["launched"].to_numpy()
    return own, first


def _columns(
    table: pl.DataFrame,
    own: Int64Array,
    sums: Int64Array,
    union: Int64Array,
    host: HostTimes,
    calls: Int64Array,
    inside: HostTimes,
) -> dict[str, pl.Series]:
    paths = table["path"]
    above = table["parent_layer_id"]
    lost = {"path": UNATTRIBUTED, "name": UNATTRIBUTED, "source": UNATTRIBUTED, "depth": 0}
    columns = {
        "layer_id": _with(table["layer_id"], None),
        "parent_layer_id": _with(above, None),
        "path": _with(paths, lost["path"]),
        "parent": _with(at_rows(paths, above), None),
        **{name: _with(table[name], lost.get(name)) for name in ("name", "type", "source", "depth")},
        "calls": _or_null(calls, inside.has_spans),
        "device_ns": pl.Series(sums[:, 0]),
        "device_own_ns": pl.Series(own[:, 0]),
    }
    columns |= {name: pl.Series(sums[:, at]) for at, name in enumerate(_SUMS) if at}
    return columns | {
        "union_ns": pl.Series(union),
        "host_ns": _or_null(inside.total, inside.has_spans),
        "host_self_ns": _or_null(host.total, inside.has_spans),
    }


def _idle_caused(scope: Scope, size: int) -> Int64Array:
    """For each layer the idle time that its own spans caused; the last row has the idle time that no layer caused."""
    pieces = idle_causes(scope).pieces
    caused = np.zeros(size, dtype=np.int64)
    np.add.at(caused, or_none(pieces["layer_id"], size - 1), pieces["duration_ns"].to_numpy())
    return caused


def _idle_columns(scope: Scope, idle: Int64Array, own: Int64Array) -> dict[str, pl.Series]:
    has_launches = scope.on_cpu or any_known(scope.activities["launch_id"])
    captured = np.full(idle.size, has_launches)
    return {"idle_caused_ns": _or_null(idle, captured), "idle_caused_own_ns": _or_null(own, captured)}


def _with(values: pl.Series, last: object) -> pl.Series:
    return pl.concat([values, pl.Series([last], dtype=values.dtype)], rechunk=True)


def _or_null(values: Int64Array, captured: BoolArray) -> pl.Series:
    return none_to_null(np.where(captured, values, -1))


def _walk(kept: Int64Array, parent: Int64Array, first: Int64Array) -> Int64Array:
    """The kept rows in depth-first order, siblings in the order in which they first ran; the last row stays last."""
    place = np.full(parent.size, -1, dtype=np.int64)
    place[kept] = np.arange(kept.size)
    above = np.where(parent[kept] >= 0, place[np.maximum(parent[kept], 0)], -1)
    order = kept[depth_first(above, np.where(kept == parent.size - 1, _NEVER, first[kept]))]
    return np.concatenate([order[order != parent.size - 1], order[order == parent.size - 1]])


def _by_phase(rows: pl.DataFrame, total: int) -> pl.DataFrame:
    of, phases = text_codes(rows["phase"])
    times = np.zeros(len(phases), dtype=np.int64)
    np.add.at(times, of, rows["duration"].to_numpy())
    counts = np.bincount(of, minlength=len(phases)).tolist()
    found = sorted(zip(phases, counts, times.tolist(), strict=True), key=lambda row: (-row[2], row[0] or ""))
    shares = [(*row, row[2] / total if total else None) for row in found]
    return pl.DataFrame(shares, schema=_BY_PHASE, orient="row")


_BY_PHASE: Final[Schema] = {
    "phase": pl.String,
    "activities": pl.Int64,
    "device_ns": pl.Int64,
    "share": pl.Float64,
}


def has_layers(tree: pl.DataFrame) -> bool:
    """Whether a tree has a row for a layer of the model, and not only rows for work outside layers."""
    return not set(tree["source"].to_list()).isdisjoint(OF_MODEL)


def _answer(
    by_pattern: pl.DataFrame,
    by_phase: pl.DataFrame,
    layers_known: bool,
    covered: float | None,
    *,
    on_cpu: bool,
) -> str:
    if covered is None:
        return "Nothing ran."
    total = format_ns(int(by_phase["device_ns"].sum()))
    what = "operators' self time" if on_cpu else "device time"
    if not layers_known:
        phases = ", ".join(f"{name} {format_share(part)}" for name, part in by_phase["phase", "share"].rows())
        return f"The layers of {total} of {what} are unknown. By phase: {phases}."
    known = by_pattern.filter(pl.col("pattern") != UNATTRIBUTED)
    largest = ", ".join(
        f"{label} {format_share(share)}" for label, _, share in most_own_time(known, count=_NAMED)
    )
    text = f"{format_share(covered)} of {total} of {what} is in layers or named phases."
    return f"{text} The largest: {largest}." if largest else text


def most_own_time(by_pattern: pl.DataFrame, *, count: int) -> list[tuple[str, int, float]]:
    """(label, ns, share of the device time) of the layers with the most own time.

    Layers that differ only in numbers count as one, and the label gives their number. That of work in no layer says what it is.
    """
    rows = kept(by_pattern, by_pattern["device_own_ns"] > 0).head(count)
    return [
        ((f"{layers} × " if layers > 1 else "") + NO_LAYERS.get(path, _label(path, kind)), time, share)
        for path, kind, layers, time, share in rows[
            "pattern", "type", "layers", "device_own_ns", "own_share"
        ].rows()
    ]


def _label(path: str, kind: str | None) -> str:
    """The path, with the class of the layer where the path ends in a number that says nothing of it."""
    if not kind or not re.search(r"(^|[./])(\d+|\*)$", path):
        return _short(path)
    return kind if path == CHILDREN else f"{_short(path)} ({kind})"


def _short(path: str) -> str:
    """The path, or as many of its last parts as fit."""
    if len(path) <= _LONGEST:
        return path
    start = re.compile(r"[./]").search(path, len(path) - _LONGEST)
    return f"…{path[start.end() :] if start else path[1 - _LONGEST :]}"
