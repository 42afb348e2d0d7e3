"""Without a device: operators so short that starting them takes the time.

Looks at the outermost operators of those names whose median is below `SHORT_NS`, without those that read a value
(`value_reads`) or load data, and the Python between operators
(the cause python of `analyses.idle_causes` in stretches below `NEAR_NS`). At stake is the sum of the two.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle import Idle
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import NS_PER_US, format_count, format_ns, format_share

__all__ = ["RULE"]

SHORT_NS: Final = 20 * NS_PER_US
"""To dispatch an operator takes some µs, twice as much while a profiler records it."""
NEAR_NS: Final = 100 * NS_PER_US
"""Python that only calls the next operator takes some µs, a few tens with stacks recorded; more is work of its own."""
LEAST_PART: Final = 0.5
"""Short operators are the pattern when half of the operators' time goes to them."""
LEAST_SHARE: Final = 0.4
"""Below two fifths of the window, other things matter more."""
LEAST_COUNT: Final = 100
"""Fewer are no pattern."""


def evidence(scope: Scope, _result: Idle) -> Evidence | None:
    """Fires when operators of typically less than `SHORT_NS` and the Python between them take `LEAST_SHARE` of the window."""
    if not scope.activities.height:
        return None
    operators = _outermost(scope)
    # By name: one call that the system interrupts for long does not make an operator a long one.
    short = operators.filter(pl.col("duration").median().over("name") < SHORT_NS)
    inside, all_ = int(short["duration"].sum()), int(operators["duration"].sum())
    if short.height < LEAST_COUNT or inside < LEAST_PART * all_:
        return None
    near = pl.col("duration_ns").sum().over("gap_id") < NEAR_NS
    between = caused_idle(scope, "python", wanted=near)
    at_stake = bounded(inside + between.ns, scope)
    if at_stake / scope.duration < LEAST_SHARE:
        return None
    names = short.group_by("name").agg(pl.len(), pl.col("duration").sum()).sort("duration", "name")
    name, count, _ = names.row(-1)
    return Evidence(
        title=f"Operator dispatch: tiny operators and the Python between them take {format_share(at_stake / scope.duration)} of the time",
        text=f"{format_count(short.height)} operators of typically less than {format_ns(SHORT_NS)} take {format_ns(inside)}, most of it "
        f"{name} ({format_count(count)} times), and the Python between operators {format_ns(between.ns)}{between.where}.",
        ns_at_stake=at_stake,
    )


def _outermost(scope: Scope) -> pl.DataFrame:
    """The outermost operators of the scope, without those that read a value or load data: `name`, `duration`."""
    model = attribution(scope).model
    stack = model.stack
    above = stack.nesting.nearest_ancestor(stack.of_kind("op"), include_self=False)
    above[stack.named(VALUE_OPERATOR, "op")] = 0
    rows = scope.host("op", columns=["span_id", "name", "duration"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    rows = rows.filter(pl.Series(above[rows["span_id"].to_numpy()] < 0))
    phase = model.places(rows["span_id"].to_numpy()).phase
    return rows.filter(pl.Series(phase != PHASES.index("data")))


RULE = Rule(
    id="short_operators",
    analysis="idle",
    evidence=evidence,
    runs="processor",
    advice=Advice(
        "Do more in each operator: batch or vectorise the loop, use fused or foreach variants "
        "(torch._foreach_add, fused=True), or torch.compile, which fuses elementwise operators.",
        plain=("Do more in each call: batch or vectorise the loop, and fuse elementwise operations."),
        flags=("--compile",),
    ),
    pattern="the dispatch of tiny operators and the Python between them",
)
