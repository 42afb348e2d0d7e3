"""Rules about updates of parameters: many small kernels or operators that could be one, in the optimizer or beside it."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.optimizer import UNFUSED, one_pass, optimizer_ranges, unfusable, usual_passes
from tracekit.analyses.processors import slowed_by_recording
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.kernels import costliest
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, bounded_by_host, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import stalled_within
from tracekit.analyses.traits import traits
from tracekit.facts.stack_names import CLEARS_GRADIENTS
from tracekit.facts.units import count_of, format_count, format_ns, listed
from tracekit.groups import at_rows, kept, with_series
from tracekit.intervals import IntervalSet
from tracekit.name_table import NameTable
from tracekit.trace import one_of

__all__ = ["OPTIMIZER_IN_PASSES", "OPTIMIZER_NOT_FUSED", "UPDATES_ONE_BY_ONE"]

LEAST_KERNELS_PER_STEP: Final = 50
"""A fused or foreach optimizer launches at most some tens of kernels a step, for any number of parameters."""
OPTIMIZER_NOT_FUSED_LEAST_SHARE: Final = 0.01
"""Of the summed device time; the launches of so many small kernels cost the host several times that."""

_OF_LAUNCHES: Final = ("operator_dispatch", "python", "launch_api", "launch_latency")


def optimizer_not_fused(scope: Scope, result: Kernels) -> Evidence | None:
    """The optimizer updates parameter by parameter, with several kernels for each.

    At stake is the time of those kernels, and the idle time of the device while the host starts them, but for the arithmetic
    of the costliest operator that works in place: a fused optimizer reads and writes the same data in one pass, which
    takes no less. Without a device, it is the time of the optimizer's ranges without that arithmetic, without
    stalls (`analyses.stalls`), and without what the recording adds.

    Fires when a step, or an update if there are fewer, runs `LEAST_KERNELS_PER_STEP` optimizer kernels that are not fused, and no fused
    optimizer.
    """
    rows = result.by_name.filter((pl.col("category") == "optimizer") & UNFUSED)
    count, total = int(rows["count"].sum()), int(rows["total_ns"].sum())
    steps, updates = scope.steps.height if scope.window == "steps" else 0, optimizer_ranges(scope).height
    rare = updates > 0 and not 0 < steps <= updates  # as where gradients of several steps are accumulated
    each = count / max(updates if rare else steps, 1)
    if (
        "fused_optimizer" in traits(scope)  # what it runs beside that counts its steps
        or not result.total_ns
        or total / result.total_ns < OPTIMIZER_NOT_FUSED_LEAST_SHARE
        or each < LEAST_KERNELS_PER_STEP
    ):
        return None
    needed = one_pass(scope)
    if scope.on_cpu:
        what, idle, waits = "operator calls", "The code between them takes", "the code between them"
        starts = (ranges := optimizer_ranges(scope))["start"].to_numpy()
        whole = IntervalSet.of(starts, starts + ranges["duration"].to_numpy()).clip(scope.start, scope.end)
        waited = (whole - scope.intervals()).measure
        stalled = min(stalled_within(scope, whole), max(total + waited - needed, 0))
        at_stake = round((total + waited - stalled - needed) / slowed_by_recording(scope.trace))
    else:
        what, idle, waits = "kernels", "Between them, the device is idle for", "the waits for them"
        waited, stalled = caused_idle(scope, *_OF_LAUNCHES, wanted=_in_updates(scope)).ns, 0
        at_stake = total + waited - needed
    if at_stake <= 0:
        return None
    return Evidence(
        title=f"The optimizer runs {each:,.0f} {what} {'an update' if rare else 'a step' if steps else 'in this trace'} "
        f"({of_time(total + waited, scope)}{f' with {waits}' if waited else ''})",
        text=f"{format_count(count)} unfused {what} of the optimizer take {format_ns(total)}. "
        f"{costliest(rows)} takes the most.{f' {idle} {format_ns(waited)}.' if waited else ''}"
        f"{_left_out(scope, needed, stalled)}",
        ns_at_stake=bounded(at_stake, scope),
        waited_ns=0 if scope.on_cpu else waited,
        advice=_without_fused(scope),
        stretches=longest(optimizer_ranges(scope)),
    )


def _in_updates(scope: Scope) -> pl.Expr:
    """Which idle time the optimizer's phase causes, but for that of clearing gradients, which a fused update does not save."""
    stack = attribution(scope).model.stack
    clears = stack.nesting.nearest_ancestor(stack.named(CLEARS_GRADIENTS, "annotation")) >= 0
    return one_of("phase", "optimizer") & ~pl.col("span_id").is_in(np.flatnonzero(clears)).fill_null(
        value=False
    )


def _left_out(scope: Scope, needed: int, stalled: int) -> str:
    """A sentence about the time that is not at stake; empty if there is none."""
    recorded = scope.on_cpu and slowed_by_recording(scope.trace) > 1
    parts = [f"{format_ns(needed)} of arithmetic"] if needed else []
    parts += [f"{format_ns(stalled)} of stalls"] if stalled else []
    parts += ["recording overhead"] if recorded else []
    *most, last = parts or [""]
    return f" Not at stake: {', '.join(most)}{' and ' if most else ''}{last}." if last else ""


def _without_fused(scope: Scope) -> Advice | None:
    """Advice for optimizers of `torch.optim` that have no fused implementation; None if another one is among them."""
    names = unfusable(scope)
    if not names:
        return None
    has = f"{listed(names)} {'has' if len(names) == 1 else 'have'} no fused=True"
    return Advice(
        f"{has}. Keep foreach=True, the default on a device, and compile the optimizer's step with torch.compile.",
        processor=(
            f"{has} (torch.optim.AdamW, Adam, SGD and Adagrad have it); foreach=True does not help on processors. Compile the "
            "optimizer's step with torch.compile."
        ),
    )


_SPARSE: Final = (
    "[sparse_gradients] Use fewer and larger embedding tables, or sparse=False if they are small: fused optimizers do not "
    "support sparse gradients."
)

OPTIMIZER_NOT_FUSED = Rule(
    id="optimizer_not_fused",
    analysis="kernels",
    evidence=optimizer_not_fused,
    advice=Advice(
        "[!sparse_gradients] Create the optimizer with fused=True (torch.optim.AdamW, Adam, SGD, Adagrad), or with foreach=True "
        f"where fused is not available; do not set foreach=False.\n{_SPARSE}",
        processor=(
            "[!sparse_gradients] Create the optimizer with fused=True (torch.optim.AdamW, Adam, SGD and Adagrad support it on "
            f"processors too); foreach=True does not help on processors.\n{_SPARSE}"
        ),
    ),
)


# -- optimizer_in_passes ----------------------------------------------------------------------------

LEAST_PASSES: Final = 3
"""Fewer operators, as of SGD with momentum, move little more than one that does all."""
OPTIMIZER_IN_PASSES_LEAST_SHARE: Final = 0.02
"""Of the window."""

_FOREACH: Final = r"^aten::_foreach_"


def optimizer_in_passes(scope: Scope, _result: Kernels) -> Evidence | None:
    """The optimizer updates all parameters at once (`foreach=True`), with one operator after the other: each of them reads and writes
    as much as a fused optimizer does in one pass.

    At stake is the time of these kernels but for one pass of the costliest operator.

    Fires when a step has `LEAST_PASSES` such operators, and this is `OPTIMIZER_IN_PASSES_LEAST_SHARE` of the window.
    """
    if scope.window != "steps":
        return None
    rows = kept(attributed(scope), attributed(scope)["category"] == "optimizer")
    operator = at_rows(scope.trace.host["name"], rows["op_id"])
    rows = kept(with_series(rows, operator.alias("operator")), NameTable(operator).matching(_FOREACH))
    by_name = rows.group_by("operator").agg(pl.col("duration").sum(), pl.col("op_id").n_unique())
    each, total = by_name["op_id"].sum() / scope.steps.height, int(rows["duration"].sum())
    at_stake = bounded_by_host(total - usual_passes(scope)[0], scope)
    if by_name.height < LEAST_PASSES or at_stake < OPTIMIZER_IN_PASSES_LEAST_SHARE * scope.duration:
        return None
    largest = by_name.sort("duration", "operator", descending=[True, False]).head(3)["operator"]
    return Evidence(
        title=f"The optimizer goes over its data with {by_name.height} operators instead of one ({of_time(total, scope)})",
        text=f"{listed(largest.cast(pl.String).to_list())} take the most. All together take {format_ns(total)}, in "
        f"{count_of(round(each), 'call')} a step. Each reads and writes the parameters, gradients or moments again.",
        ns_at_stake=at_stake,
        advice=_without_fused(scope),
        stretches=longest(rows),
    )


OPTIMIZER_IN_PASSES = Rule(
    id="optimizer_in_passes",
    analysis="kernels",
    evidence=optimizer_in_passes,
    runs="device",
    advice=Advice(
        "[!sparse_gradients] Create the optimizer with fused=True (torch.optim.AdamW, Adam, SGD, Adagrad), which does it in one pass.\n"
        f"{_SPARSE}"
    ),
)


# -- updates_one_by_one -----------------------------------------------------------------------------

LEAST_UPDATES_PER_STEP: Final = 100
"""A model of some tens of tensors has fewer."""
UPDATES_ONE_BY_ONE_LEAST_SHARE: Final = 0.01
"""Of the window, with the waits for these kernels."""

_UPDATE: Final = r"^aten::(mul|add|sub|div|lerp|addcmul|addcdiv|copy|clamp|zero)_$"
NEARLY_ALL: Final = 0.95
_ZERO: Final = "aten::zero_"
_TO_NONE: Final = Advice(
    "Clear gradients with zero_grad(set_to_none=True), which launches nothing and is the default since PyTorch 2.0. Set other tensors to zero in "
    "one call (torch._foreach_zero_)."
)
_BESIDE_THE_MODEL: Final = ("optimizer", "other")


def updates_one_by_one(scope: Scope, _result: Kernels) -> Evidence | None:
    """Tensors are changed in place one after the other, beside the model's passes and outside of an optimizer: averaged
    weights, clipped or zeroed gradients.

    At stake are the time of these kernels and the idle time of the device while the host starts them.

    Fires when a step has `LEAST_UPDATES_PER_STEP` such kernels, and they take `UPDATES_ONE_BY_ONE_LEAST_SHARE` of the window with
    the waits for them.
    """
    if scope.window != "steps":
        return None
    rows = attributed(scope)
    beside = one_of("phase", *_BESIDE_THE_MODEL) & one_of("category", "elementwise", "copy")
    mask = rows.select(beside.fill_null(value=False)).to_series().to_numpy()
    rows = kept(rows, mask & NameTable(rows["operator"]).matching(_UPDATE))
    each = rows.height / scope.steps.height
    if each < LEAST_UPDATES_PER_STEP:
        return None
    before = pl.col("ended_by").is_in(rows["activity_id"].implode())
    total, waited = int(rows["duration"].sum()), caused_idle(scope, *_OF_LAUNCHES, wanted=before).ns
    at_stake = bounded(total + waited, scope)
    if at_stake < UPDATES_ONE_BY_ONE_LEAST_SHARE * scope.duration:
        return None
    operators = rows.group_by("operator").len().sort("len", "operator", descending=[True, False])
    waits = f" Before them, the device is idle for {format_ns(waited)}." if waited else ""
    zeroed = int((rows["operator"].cast(pl.String) == _ZERO).sum()) >= NEARLY_ALL * rows.height
    what = "set single tensors to zero" if zeroed else "update single tensors outside the optimizer"
    return Evidence(
        title=f"{each:,.0f} kernels a step {what} "
        f"({of_time(total + waited, scope)}{' with the waits for them' if waited else ''})",
        text=f"{format_count(rows.height)} kernels of {listed(operators['operator'].cast(pl.String).head(3).to_list())} "
        f"take {format_ns(total)}.{waits}",
        ns_at_stake=at_stake,
        waited_ns=waited,
        advice=_TO_NONE if zeroed else None,
        stretches=longest(rows),
    )


UPDATES_ONE_BY_ONE = Rule(
    id="updates_one_by_one",
    analysis="kernels",
    evidence=updates_one_by_one,
    runs="device",
    advice=Advice(
        "Update a list of tensors in one call, as torch._foreach_mul_ and torch._foreach_add_ do. For averaged weights, "
        "torch.optim.swa_utils.AveragedModel does so with multi_avg_fn=get_ema_multi_avg_fn(decay)."
    ),
)
