"""Kineto's vocabulary: the meaning of event categories in every version of the format.

The kind of an event comes from its category alone: a stream number does not make an event device work (Triton
operators carry one), and neither does its absence.
"""

from __future__ import annotations

from typing import Final

from tracekit.facts.capture_names import ENRICHED_CATEGORY

__all__ = [
    "ANNOTATION_PREFIXES",
    "DEVICE_CATEGORIES",
    "DEVICE_SYNC_CATEGORIES",
    "DROPPED_CATEGORIES",
    "FORMAT_NAME",
    "FORWARD_BACKWARD_FLOW",
    "HOST_CATEGORIES",
    "MEMORY_EVENT",
    "STOP_EVENT",
]

FORMAT_NAME: Final = "kineto"

HOST_CATEGORIES: Final[dict[str, str]] = {
    "cpu_op": "op",
    "Operator": "op",
    "user_annotation": "annotation",
    "python_function": "python",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Runtime": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "overhead": "overhead",
    "collective_comm": "annotation",
}
"""Category → kind of host span."""

DEVICE_CATEGORIES: Final[dict[str, str]] = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "mtia_ccp_events": "kernel",
    "mtia_workloadd": "kernel",
    "hpu_op": "kernel",
}
"""Category → kind of device activity."""

DEVICE_SYNC_CATEGORIES: Final = frozenset({"cuda_sync", "cuda_event", "xpu_sync"})
"""Device-side waiting: recorded, but not work."""

DROPPED_CATEGORIES: Final[dict[str, str]] = {
    "gpu_user_annotation": "Kineto derives these from host ranges and kernels; the originals are kept",
    "Trace": "the profiler's own window, which holds no work",
    "external_correlation": "internal numbers of the profiler",
    "mtia_insight": "summaries that the vendor's tool derives",
    ENRICHED_CATEGORY: "tracks of layers and idle time that `tracekit export --to chrome` adds",
}
"""Categories that repeat the data of other events, each with the reason for leaving it out."""

FORWARD_BACKWARD_FLOW: Final = frozenset({"fwdbwd", "forward_backward"})
MEMORY_EVENT: Final = "[memory]"
STOP_EVENT: Final = "Record Window End"
"""When the profiler stopped."""
ANNOTATION_PREFIXES: Final = ("enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
"""Names that 2021 files list among the operators although they are annotations."""
