"""Why launches are not known, in one place: they were not recorded, or nothing could be linked to them."""

from __future__ import annotations

from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import LAUNCH
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["has_launch_calls", "no_launches"]


def has_launch_calls(trace: Trace) -> bool:
    """Whether the host has calls that put work on a device, whatever became of it.

    >>> import tracekit
    >>> has_launch_calls(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    False
    """
    calls = trace.host.select("kind", "name").filter(trace.host["kind"] == "runtime")
    return bool(calls["name"].unique().cast(str).str.contains(LAUNCH).any())


def no_launches(scope: Scope, so: str = "") -> str | None:
    """Why no activity of the scope has a launch, what follows (`so`), and what to do; None when one has.

    Launch calls that were recorded and have no activity are another fault than none at all: the profiler links the two
    by numbers (correlation ids), and a flag does not bring those back.
    """
    if scope.on_cpu or not scope.activities.height or scope.activities["launch_id"].is_not_null().any():
        return None
    follows = f", {so}" if so else ""
    if has_launch_calls(scope.trace):
        return (
            f"launch calls were recorded, but no activity could be linked to one (correlation ids are missing or"
            f" match nothing){follows}; use the file as the profiler wrote it"
        )
    return f"no launch calls{follows}; {how_to_record('launches', scope.trace.meta.format)}"
