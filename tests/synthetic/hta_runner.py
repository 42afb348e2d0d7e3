"""Runs HolisticTraceAnalysis on trace files and writes what it finds as JSON: `hta_runner.py OUT TRACE…`.

A script of its own, because HTA warns on import, logs to standard output, and asks the environment how to round.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

US = 1000


def ns(value: float) -> float:
    return float(value) * US


def analyse(path: str) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path})
    (temporal,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    idle, _ = analysis.get_idle_time_breakdown(visualize=False)
    _, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=100_000, include_memory_kernels=True
    )
    (overlap,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    queues = analysis.get_queue_length_time_series()
    return {
        "temporal": {key: ns(temporal[f"{key}(us)"]) for key in TEMPORAL},
        "idle": [(int(r.stream), r.idle_category, ns(r.idle_time)) for r in idle.itertuples()],
        "kernels": {
            row["name"]: {
                "kernel_type": row["kernel_type"],
                **{key: ns(row[column]) for key, column in KERNEL_COLUMNS.items()},
            }
            for row in kernels.to_dict("records")
        },
        "overlap_percent": float(overlap["comp_comm_overlap_pctg"]),
        "launches": [
            (int(r.correlation), ns(r.cpu_duration), ns(r.gpu_duration), ns(r.launch_delay))
            for r in launches.itertuples()
        ],
        "queues": [
            (int(r.stream), ns(r.ts), int(r.queue_length)) for q in queues.values() for r in q.itertuples()
        ],
    }


TEMPORAL = ("idle_time", "compute_time", "non_compute_time", "kernel_time")
KERNEL_COLUMNS = {
    "total": "sum (us)",
    "mean": "mean (us)",
    "min": "min (us)",
    "max": "max (us)",
    "std": "stddev",
}

if __name__ == "__main__":
    # HTA rounds times to whole microseconds unless it is told not to.
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    Path(sys.argv[1]).write_text(json.dumps({path: analyse(path) for path in sys.argv[2:]}))
