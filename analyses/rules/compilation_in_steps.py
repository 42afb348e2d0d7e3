"""Steps trace or compile code while the device, or without one the processors, have nothing to do.

At stake is the idle time that compilation causes (`analyses.idle_causes`), but for API calls that load code: those are
first-time work, and belong to `cold_start`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.severity import by_share
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Finding

if TYPE_CHECKING:
    from tracekit.analyses.idle import Idle
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["LEAST_SHARE", "check"]

LEAST_SHARE: Final = 0.02
"""In a steady state nothing is compiled; a lookup in the cache of compiled code takes less than this."""


def check(trace: Trace, scope: Scope, _result: Idle) -> Finding | None:
    """Fires when tracing and compilation keep the device idle for `LEAST_SHARE` of the window."""
    idle = caused_idle(trace, scope, "compilation", wanted=pl.col("span_kind") != "runtime")
    if not scope.duration or idle.ns / scope.duration < LEAST_SHARE:
        return None
    who = "no operator ran" if scope.on_cpu else "the device was idle"
    return Finding(
        id="compilation_in_steps",
        severity=by_share(idle.ns, scope.duration),
        title=f"Tracing and compilation take {format_share(idle.ns / scope.duration)} of the time",
        evidence=f"For {format_ns(idle.ns)} {who} while code was traced or compiled{idle.where}.",
        advice=(
            "Run the compiled model some steps before recording; if it stays, TORCH_LOGS=recompiles tells why it is "
            "compiled again: mark dynamic shapes (torch._dynamo.mark_dynamic) and keep Python values out of the model's inputs."
        ),
        ns_at_stake=idle.ns,
    )
