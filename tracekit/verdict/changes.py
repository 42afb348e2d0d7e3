"""The change that each finding advises, as `tracekit what-if` writes it: the name of a flag and its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CHANGES"]

CHANGES: Final[Mapping[str, tuple[str, str | bool]]] = {
    "allocation_calls": ("remove", "cause:allocation"),
    "blocking_synchronisation": ("remove-sync", True),
    "code_outside_operators": ("scale", "cause:python=0.5"),
    "cold_start": ("remove", "cause:module_loading"),
    "compilation_in_steps": ("remove", "cause:compilation"),
    "data_loading": ("no-loader-wait", True),
    "exposed_communication": ("overlap-comm", True),
    "host_bound_launches": ("cuda-graph", "step"),
    "optimizer_in_passes": ("fuse", "optimizer"),
    "optimizer_not_fused": ("fuse", "optimizer"),
    "profiler_overhead": ("remove", "cause:profiler_overhead"),
    "random_numbers": ("remove", "category:random"),
    "short_kernels": ("cuda-graph", "step"),
    "value_reads": ("remove-sync", True),
}
"""By finding, so far as a replay can tell what its advice does."""
