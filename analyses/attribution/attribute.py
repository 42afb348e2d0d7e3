"""From every device activity to its launch, operators, layer and phase (DEFINITIONS §5).

An activity belongs where its launch call lies: the operators around the launch, the layer whose span is open at
the launch's start on the launch's thread, and the phase of the training step. Work of the backward pass belongs to
the layer of the forward operator with the same sequence number. Each row says by which `method` its layer is known:

* `capture`, `module`, `range`, `compiled`: a span of this source is open at the launch (`analyses._layer_spans`);
* `interval`: a start/end range is open in the process, and no other that does not contain it (`analyses._spanning_layers`);
* `sequence`: by the forward operator of the backward node; `accumulate`: a node without a number (the sum of a
  gradient) or the engine's own work, which follows the node before it;
* `enclosing-time`: on a thread of the autograd engine, the span open on the process's main thread at that time;
* `phase`: in no layer, but in a phase that has a name of its own: `<loss>`, `<optimizer>`, `<data>`, `<metrics>`,
  `<gradient reduction>`, `<buffer synchronisation>`, `<communication>`, `<set-up>`;
* `graph`: an activity of a replayed CUDA graph whose node was captured in a layer, where the replay is in none, in one
  that is less surely known or in one around that; without a known capture it is in no layer: `<cuda graph>`;
* `unattributed`: none of these.

Without a device the self time of operators takes the device's place.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.fused_names import fused_operators
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.span_places import (
    METHOD,
    METHODS,
    PHASE,
    UNATTRIBUTED,
    StackModel,
    stack_model,
)
from tracekit.analyses.attribution.traffic import Places, of_collectives, of_copies
from tracekit.analyses.result import no_launches
from tracekit.analyses.scope import Scope, once
from tracekit.facts.launch_apis import GRAPH_COPY, GRAPH_LAUNCH
from tracekit.facts.stack_names import GRAPH_LAYER, PHASES
from tracekit.groups import any_known, at_rows, groups, kept, none_to_null, or_none, text_codes
from tracekit.readers import flag_for, format_named
from tracekit.spans import BoolArray, Int64Array, distinct_rows, take
from tracekit.trace import Trace

__all__ = ["METHODS", "UNATTRIBUTED", "Attribution", "attributed", "attribution", "captured_in", "lies_below"]

ACTIVITY_COLUMNS = {
    "activity_id": pl.Int64,
    "op_id": pl.Int64,
    "outer_op_id": pl.Int64,
    "operator": pl.Categorical(),
    "layer_id": pl.Int64,
    "phase": pl.Enum(PHASES),
    "method": pl.Enum(METHODS),
    "recomputed": pl.Boolean,
}


class Attribution(msgspec.Struct, frozen=True, eq=False):
    """Where the activities of a scope belong."""

    activities: pl.DataFrame
    """One row per activity, in the scope's order, with the columns of ACTIVITY_COLUMNS: `op_id` and `outer_op_id` are the
    innermost and the outermost operator (host.span_id), `operator` is the innermost one's name; for a fused kernel outside of
    all operators, as a CUDA graph replays it, those in the kernel's name.
    """
    layers: pl.DataFrame
    """The tree of layers: `layer_id`, `parent_layer_id`, `path`, `name`, `type`, `source`, `depth`."""
    coverage: pl.DataFrame
    """One row per method: `method`, `activities`, `duration_ns`, `share` of the summed device time."""
    missing: tuple[str, ...]
    """The signals that the profile lacks, each with the flag that records it."""
    model: StackModel

    @property
    def coverage_share(self) -> float | None:
        """The part of the summed device time that has a layer or a named phase; None when nothing ran."""
        total = int(self.coverage["duration_ns"].sum())
        lost = int(kept(self.coverage, self.coverage["method"] == UNATTRIBUTED)["duration_ns"].sum())
        return (total - lost) / total if total else None


def attribution(scope: Scope | Trace) -> Attribution:
    """The operators, layer and phase of every activity of the scope.

    >>> import tracekit
    >>> places = attribution(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> sorted(places.activities["phase"].unique().cast(str))
    ['backward', 'data', 'forward', 'optimizer', 'other']
    """
    return once(scope, _attribution)


def _attribution(scope: Scope) -> Attribution:
    trace = scope.trace
    model = stack_model(trace, scope.steps)
    return _attribute(scope, model)


def attributed(scope: Scope) -> pl.DataFrame:
    """The activities of the scope with their places beside them (all of ACTIVITY_COLUMNS)."""
    return scope.once(attributed, lambda: _attributed(scope))


def _attributed(scope: Scope) -> pl.DataFrame:
    places = attribution(scope).activities
    return scope.activities.hstack(
        places[[name for name in places.columns if name not in ("activity_id", "op_id")]]
    )


def _attribute(scope: Scope, model: StackModel) -> Attribution:
    rows = scope.activities
    launch = or_none(rows["launch_id"])
    op = or_none(rows["op_id"])
    anchor = np.where(launch >= 0, launch, op)
    distinct, back = distinct_rows(anchor, model.stack.size)
    places = model.places(distinct)
    layer, method = places.layer[back], places.method[back]
    phase, recomputed = places.phase[back], places.recomputed[back]
    layer, method, phase = _captured(scope, model, layer, method, phase)
    placed = of_copies(scope, model, of_collectives(scope, model, Places(layer, method, phase)))
    phase = placed.phase
    layer, method = _graphs(model, launch, placed.layer, placed.method)
    outer = take(_outermost_operators(model.stack), np.where(op >= 0, op, anchor))
    activities = pl.DataFrame(
        {
            "activity_id": rows["activity_id"],
            "op_id": rows["op_id"],
            "outer_op_id": none_to_null(outer),
            "operator": _operators(scope),
            "layer_id": none_to_null(layer),
            "phase": at_rows(_PHASES, phase),
            "method": at_rows(_METHODS, method),
            "recomputed": recomputed,
        }
    )
    return Attribution(
        activities=activities,
        layers=model.layers.table,
        coverage=_coverage(method, rows["duration"].to_numpy()),
        missing=_missing(scope, model),
        model=model,
    )


def _operators(scope: Scope) -> pl.Series:
    """The name of each activity's innermost operator, or the operators that a fused kernel's name holds."""
    activities = scope.activities
    operator = at_rows(scope.trace.host["name"], activities["op_id"]).alias("operator")
    if not operator.null_count():
        return operator
    known = operator.is_not_null()
    of, names = text_codes(activities["name"])
    fused: list[str | None] = [None] * len(names)
    for at in np.unique(of[~known.to_numpy()]).tolist():
        fused[at] = ", ".join(fused_operators(names[at] or "")) or None
    return operator.zip_with(known, at_rows(pl.Series(fused, dtype=pl.Categorical()), of))


_PHASES: Final = pl.Series(PHASES, dtype=pl.Enum(PHASES))
_METHODS: Final = pl.Series(METHODS, dtype=pl.Enum(METHODS))


def _captured(
    scope: Scope, model: StackModel, layer: Int64Array, method: Int64Array, phase: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The layer in which the node of a replayed graph was captured, where that says more than the replay does."""
    captured = captured_in(scope, model.stack)
    if not (captured >= 0).any():
        return layer, method, phase
    distinct, back = distinct_rows(captured, model.stack.size)
    at = model.places(distinct)
    there, surer = at.layer[back], at.method[back] < method
    better = (there >= 0) & ((layer < 0) | surer | lies_below(model.layers.table, there, layer))
    replayed = (phase == PHASE["other"]) & (captured >= 0)
    return (
        np.where(better, there, layer),
        np.where(better, METHOD["graph"], method),
        np.where(replayed, at.phase[back], phase),
    )


def _graphs(
    model: StackModel, launch: Int64Array, layer: Int64Array, method: Int64Array
) -> tuple[Int64Array, Int64Array]:
    replays = model.stack.named(GRAPH_LAUNCH, "runtime")
    if not replays.any():
        return layer, method
    lost = (layer < 0) & (launch >= 0) & replays[np.maximum(launch, 0)]
    return (
        np.where(lost, model.layers.id_of(GRAPH_LAYER, "graph"), layer),
        np.where(lost, METHOD["graph"], method),
    )


def _outermost_operators(stack: HostStack) -> Int64Array:
    """For each span the outermost operator around it, itself included; −1 for none."""
    is_op = stack.of_kind("op")
    around = take(stack.operator, stack.nesting.parent)
    return stack.nesting.nearest_ancestor(is_op & (around < 0))


def _coverage(method: Int64Array, duration: Int64Array) -> pl.DataFrame:
    of = groups(method)
    times, total = of.sums(duration), int(duration.sum())
    return pl.DataFrame(
        {
            "method": at_rows(_METHODS, of.keys[0]),
            "activities": of.counts,
            "duration_ns": times,
            "share": pl.Series(times / total if total else [None] * of.size, dtype=pl.Float64),
        }
    )


def _missing(scope: Scope, model: StackModel) -> tuple[str, ...]:
    trace = scope.trace
    lost = no_launches(scope, "so device work has no operator and no layer")
    missing = [] if lost is None else [lost]
    if not model.layers.methods and trace.layer_ranges is not None:
        missing.append(
            f"no layers: the ranges that {trace.layer_ranges.label} selects enclose no operator and no launch"
        )
    elif not model.layers.methods:
        missing.append(_no_layers(trace))
    nodes = model.backward.is_node
    if nodes.any() and not (model.backward.forward >= 0).any():
        missing.append(
            "no sequence numbers that link backward to forward, so the backward pass has no layers:"
            " profile the forward pass in the same window"
        )
    return tuple(missing)


def _no_layers(trace: Trace) -> str:
    if "stacks" in trace.meta.captured and format_named(trace.meta.format).of_pytorch:
        # To record stacks again changes nothing.
        return "no layers: the recorded stacks name no modules; use `tracekit run`, or record_function around the modules"
    return f"no layers: record with {flag_for('layers', trace.meta.format)}"


# -- activities of CUDA graphs ----------------------------------------------------------------------
#
# From an activity of a replayed CUDA graph to the host span in which its node was captured.
#
# A replay is one call for all that the graph holds; the call that made the node lies where the work was written down:
# under the layer's range, in the operator, in the phase.


def captured_in(scope: Scope, stack: HostStack) -> Int64Array:
    """For each activity of the scope the innermost host span that was open when its graph node was made; −1 for none.

    A node of which only the copy was seen has none: all of a graph's nodes are copied in one call.
    """
    nodes = scope.trace.graph_nodes
    rows = scope.activities
    if nodes is None or not any_known(rows["graph_node"]):
        return np.full(rows.height, -1, dtype=np.int64)
    nodes = nodes.unique(["process_id", "graph_node"], keep="first", maintain_order=True)
    thread = stack.code_of(nodes["process_id"], nodes["thread_id"])
    span = stack.nesting.innermost_at(thread, nodes["start"].to_numpy())
    copies = np.flatnonzero(stack.named(GRAPH_COPY, "runtime"))
    span = np.where((thread >= 0) & ~np.isin(span, copies), span, -1)
    captures = nodes[["process_id", "graph_node"]].with_columns(pl.Series("span", span))
    joined = rows[["process_id", "graph_node"]].join(
        captures, on=["process_id", "graph_node"], how="left", maintain_order="left"
    )
    return or_none(joined["span"])


def lies_below(layers: pl.DataFrame, inner: Int64Array, outer: Int64Array) -> BoolArray:
    """Which layers of `inner` lie below those of `outer` beside them (rows of `layers`); −1, none, lies nowhere."""
    parent = or_none(layers["parent_layer_id"])
    below = np.zeros(inner.size, dtype=bool)
    above = take(parent, inner)
    while (above >= 0).any():
        below |= (above == outer) & (above >= 0)
        above = take(parent, above)
    return below
