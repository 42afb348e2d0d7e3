"""Steps trace or compile code while the device, or without one the processors, have nothing to do.

At stake is the idle time that compilation causes (`analyses.idle_causes`), but for API calls that load code: those are
first-time work, and belong to `cold_start`.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.idle import Idle
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.02
"""In a steady state nothing is compiled; a lookup in the cache of compiled code takes less than this."""


def evidence(scope: Scope, _result: Idle) -> Evidence | None:
    """Fires when tracing and compilation keep the device idle for `LEAST_SHARE` of the window."""
    idle = caused_idle(scope, "compilation", wanted=pl.col("span_kind") != "runtime")
    if not scope.duration or idle.ns / scope.duration < LEAST_SHARE:
        return None
    who = "no operator ran" if scope.on_cpu else "the device was idle"
    return Evidence(
        title=f"Tracing and compilation take {format_share(idle.ns / scope.duration)} of the time",
        text=f"For {format_ns(idle.ns)} {who} while code was traced or compiled{idle.where}.",
        ns_at_stake=idle.ns,
    )


RULE = Rule(
    id="compilation_in_steps",
    analysis="idle",
    evidence=evidence,
    advice=Advice(
        "Run the compiled model some steps before recording; if it stays, TORCH_LOGS=recompiles tells why"
        " it is compiled again: mark dynamic shapes (torch._dynamo.mark_dynamic) and keep Python values "
        "out of the model's inputs.",
        plain=(
            "Load and compile before recording: run some iterations first, and build kernels and graphs ahead"
            " of the loop."
        ),
    ),
)
