"""A rule about DistributedDataParallel's search for parameters that a step does not use."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.calls import calls_of
from tracekit.analyses.rules.idle_time import idle_of_spans
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns, times
from tracekit.groups import kept
from tracekit.name_table import NameTable

__all__ = ["UNUSED_PARAMETER_SEARCH"]

LEAST_SHARE: Final = 0.01
"""Of the window, what is at stake."""

_SEARCH: Final = r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$"
_USED: Final = r"^torch::autograd::AccumulateGrad$"
_FLAGS: Final = r"(?i)^int(32)?$"
"""The type of the numbers that say which parameters a rank used."""


def unused_parameter_search(scope: Scope, _result: Breakdown) -> Evidence | None:
    """DistributedDataParallel walks autograd's graph before each backward pass to find parameters without a gradient.

    The ranks then also sum which parameters they used, in an all-reduce of integers. At stake is the time of the search, on a device
    its idle time in it, and what nothing hides of these all-reduces.

    Fires when this is `LEAST_SHARE` of the window.
    """
    stack = attribution(scope).model.stack
    spans = scope.host("op", "annotation", columns=["span_id", "name", "start", "duration"])
    names = NameTable(spans["name"])
    searches = kept(spans, names.matching(_SEARCH))
    if not searches.height:
        return None
    lost = int(searches["duration"].sum())
    if not scope.on_cpu:
        searching = stack.named(_SEARCH, "op", "annotation")
        lost = idle_of_spans(scope, stack.nesting.nearest_ancestor(searching) >= 0).ns
    sums = calls_of(scope).table.filter(pl.col("name") == "all_reduce", pl.col("dtype").str.contains(_FLAGS))
    if sums.height != searches.height:  # the program has others, or they were not recorded
        sums = sums.clear()
    exposed = int(sums["exposed_ns"].sum())
    if lost + exposed < LEAST_SHARE * scope.duration:
        return None
    used = int(names.matching(_USED).sum())
    all_used = sums.height > 0 and used == sums["elements_in"].sum()
    told = (
        f" {count_of(sums.height, 'all-reduce')} of integers, which tell the other ranks what was used, "
        f"{'takes' if sums.height == 1 else 'take'} {format_ns(exposed)} that nothing hides."
        if sums.height
        else ""
    )
    return Evidence(
        title=f"Looking for unused parameters takes {of_time(lost + exposed, scope)}",
        text=f"DistributedDataParallel searches autograd's graph {times(searches.height)}, for {format_ns(lost)} in all"
        f"{'' if scope.on_cpu else ' of idle time'}.{told}{' Every parameter got a gradient, so none was unused.' if all_used else ''}",
        ns_at_stake=bounded(lost + exposed, scope),
        advice=_IN_VAIN if all_used else None,
        stretches=longest(searches),
    )


_IN_VAIN: Final = Advice(
    "Set find_unused_parameters=False in DistributedDataParallel: here every parameter was used."
)
UNUSED_PARAMETER_SEARCH = Rule(
    id="unused_parameter_search",
    analysis="breakdown",
    evidence=unused_parameter_search,
    advice=Advice(
        "Set find_unused_parameters=False in DistributedDataParallel if every step uses every parameter. If the same ones are unused in "
        "each step, static_graph=True needs no search."
    ),
)
