"""Runs HTA's critical path on steps of traces and writes what it finds as JSON: `hta_paths.py OUT TRACE…`.

A script of its own, because HTA warns on import, logs to standard output, and asks the environment how to round.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MOST_STEPS = 3


def path_of(path: str, step: int) -> dict[str, Any]:
    """The path of one step, in ns, by the kind of its edges and by kernel; or the error that HTA ends with."""
    from hta.trace_analysis import TraceAnalysis

    try:
        analysis = TraceAnalysis(trace_files={0: path})
        names = analysis.t.symbol_table.get_sym_table()
        rows = analysis.t.get_trace(0)
        named = rows["name"].map(lambda one: names[one].startswith("ProfilerStep"))
        # Ranges of the device have the names of the steps as well, and count as instances.
        instances = rows[named].reset_index(drop=True)
        steps = instances[instances["stream"] == -1]
        if step >= len(steps):
            return {"steps": len(steps)}
        graph, done = analysis.critical_path_analysis(
            rank=0, annotation="ProfilerStep", instance_id=int(steps.index[step])
        )
        if not done:
            return {"steps": len(steps), "fault": "no path"}
        parts = graph.get_critical_path_breakdown()
    except Exception as error:  # noqa: BLE001 - what HTA raises is the result
        return {"fault": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    if not parts["stream"].notna().any():
        return {"steps": len(steps), "fault": "an empty path"}
    kernels = parts[(parts["type"] == "critical_path_operator") & (parts["stream"] >= 0)]
    return {
        "steps": len(steps),
        "name": names[steps.iloc[step]["name"]],
        "total": round(1000 * float(parts["duration"].sum())),
        "by": {
            str(key): round(1000 * float(ns))
            for key, ns in parts.groupby("bound_by")["duration"].sum().items()
        },
        "kernels": round(1000 * float(kernels["duration"].sum())),
    }


if __name__ == "__main__":
    # HTA rounds times to whole microseconds unless it is told not to.
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    out, *paths = sys.argv[1:]
    found = {path: [path_of(path, step) for step in range(MOST_STEPS)] for path in paths}
    Path(out).write_text(json.dumps(found))
