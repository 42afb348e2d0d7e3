"""What the profile lacks, and the flag of torch.profiler that would record it.

Only what would enable a table of the report is named. A run that never used a device is not told to record one:
that takes runtime calls without device activity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyses.lacking import has_launch_calls
from tracekit.facts.stack_names import COMPILED_REGION, NOT_A_LAYER
from tracekit.findings import Finding
from tracekit.readers import flag_for, format_named
from tracekit.trace import one_of

if TYPE_CHECKING:
    from tracekit.analyses.breakdown import Breakdown
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["check"]


def check(trace: Trace, scope: Scope, _result: Breakdown) -> Finding | None:
    """Fires when a table of the report stays empty for want of a flag; profiles of torch.profiler only."""
    if not format_named(trace.meta.format).of_pytorch:
        return None
    lacking = _lacking(trace, scope)
    if not lacking:
        return None
    names = [what for what, _, _ in lacking]
    flags = list(dict.fromkeys(flag for _, _, flag in lacking))
    return Finding(
        id="incomplete_capture",
        severity="info",
        title=f"The profile lacks {_listed(names)}",
        evidence=f"Without {_listed([f'{what}: no {table}' for what, table, _ in lacking], '; ')}.",
        advice=f"Profile again with {_listed(flags)}.",
        ns_at_stake=None,
    )


def _lacking(trace: Trace, scope: Scope) -> list[tuple[str, str, str]]:
    """(what, the table it would enable, the flag)."""
    captured = trace.meta.captured
    called = (trace.host["kind"] == "runtime").any() if trace.host.height else False
    launched = trace.has_device or called
    has_ops = "ops" in captured or (
        trace.host.height > 0 and bool(trace.host.filter(pl.col("kind") == "op").height)
    )
    rows: list[tuple[bool, str, str, str]] = [
        (called and not trace.has_device, "device activity", "breakdown of the device", "everything"),
        (not has_ops, "operators", "times by operator and layer", "everything"),
        (
            trace.has_device and "launches" not in captured and not has_launch_calls(trace),
            "launch calls",
            "launch delays and causes of idle time",
            "everything",
        ),
        ("steps" not in captured and not scope.steps.height, "steps", "step times", "steps"),
        (
            has_ops and "shapes" not in captured,
            "shapes",
            "times by shape",
            "shapes",
        ),
        (
            has_ops and not captured & {"layers", "modules"} and not _has_ranges(trace),
            "layers",
            "times by layer",
            "modules",
        ),
        (launched and "memory" not in captured, "allocator events", "memory timeline", "memory"),
    ]
    return [(what, table, flag_for(key, trace.meta.format)) for missing, what, table, key in rows if missing]


def _has_ranges(trace: Trace) -> bool:
    """Whether somebody named ranges, or torch.compile compiled regions, which stand for layers."""
    names = trace.host.select("kind", "name").filter(one_of("kind", "annotation", "op")).unique()
    text = pl.col("name").cast(pl.String)
    ranges = (pl.col("kind") == "annotation") & ~text.str.contains(NOT_A_LAYER)
    return bool(names.select((ranges | text.str.contains(COMPILED_REGION)).any()).item())


def _listed(items: list[str], separator: str = ", ") -> str:
    if separator != ", " or len(items) < 2:
        return separator.join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
