"""Without a device: Python reads values out of tensors, which on a device waits for all work that is queued.

Counted are the outermost of `aten::item` and its kin (`.item()`, `float(tensor)`, `if tensor:`) in the steps; not
those of the optimizer, whose step counters lie in the host's memory anyway. At stake is the time in them; where that is below `LEAST_SHARE`,
the trace cannot tell, since the waits come with a device.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.span_causes import span_causes
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.spans import Int64Array, take
from tracekit.trace import Trace

__all__ = ["RULE"]

LEAST_A_STEP: Final = 1
"""One wait in every step keeps the host from running ahead."""
LEAST_SHARE: Final = 0.01
"""Below a hundredth of the window the time on the processors says nothing about that on a device."""


def evidence(scope: Scope, _result: Idle) -> Evidence | None:
    """Fires when values are read `LEAST_A_STEP` times a step or more, outside data loading and the optimizer."""
    trace = scope.trace
    model = attribution(scope).model
    reads = _reads(scope, model)
    steps = max(scope.steps.height if scope.window == "steps" else 1, 1)
    if reads.size < LEAST_A_STEP * steps:
        return None
    stack = model.stack
    spent = bounded(int((stack.end[reads] - stack.start[reads]).sum()), scope)
    a_step = reads.size / steps
    return Evidence(
        title=f"Python reads values of tensors (.item()) {_times(round(a_step))} a step",
        text=f".item() and its kin ran {format_count(reads.size)} times and took {format_ns(spent)}, "
        f"{format_share(spent / scope.duration)} of the time{_where(trace, model, reads)}. On a device each waits until "
        "all queued work is done.",
        ns_at_stake=spent if spent >= LEAST_SHARE * scope.duration else None,
        severity=by_share(spent, scope.duration),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{format_count(count)} times"


def _reads(scope: Scope, model: StackModel) -> Int64Array:
    stack = model.stack
    value = stack.named(VALUE_OPERATOR, "op")
    outer = value & (stack.nesting.nearest_ancestor(value, include_self=False) < 0)
    rows = scope.host("op", columns=["span_id"])["span_id"].to_numpy()
    rows = rows[outer[rows]]
    phase = model.places(rows).phase
    chosen: Int64Array = rows[(phase != PHASES.index("optimizer")) & (phase != PHASES.index("data"))]
    return chosen


def _where(trace: Trace, model: StackModel, reads: Int64Array) -> str:
    """The line of code with most of them, where stacks were recorded; else the layer."""
    frames = span_causes(trace, model).frame
    names = model.stack.frame["name"].cast(pl.String)
    found = take(frames, reads)
    if (found >= 0).any():
        return f", most of them in {names.gather(found[found >= 0]).mode().sort()[0]}"
    layers = model.places(reads).layer
    if (layers >= 0).any():
        table = model.layers.table["path"]
        return f", most of them in layer {table.gather(layers[layers >= 0]).mode().sort()[0]}"
    return ""


RULE = Rule(
    id="value_reads",
    analysis="idle",
    evidence=evidence,
    runs="processor",
    advice=Advice(
        "Keep the value in a tensor: accumulate losses and metrics and call .item() every N steps; "
        "replace Python conditions on tensors by torch.where.",
    ),
    pattern="reading values of tensors with .item() and its kin",
)
