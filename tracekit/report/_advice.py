"""What to try when no rule found anything more precise."""

from __future__ import annotations

from typing import Final

from tracekit.report.model import Advice, Bound

__all__ = ["general_advice"]

_ADVICE: Final[dict[Bound, tuple[str, str]]] = {
    "host-bound": (
        "Keep the device fed",
        "remove synchronisations and .item() from the loop; then torch.compile or CUDA graphs, and larger batches",
    ),
    "input-bound": (
        "Load data faster",
        "more DataLoader workers, pin_memory=True, non_blocking copies, and decode ahead of time",
    ),
    "communication-bound": (
        "Hide or shrink communication",
        "larger buckets, overlap with the backward pass, lower precision of gradients; compare the ranks for a straggler",
    ),
    "memory-copy-bound": (
        "Copy less",
        "keep data on the device; pin host memory and copy on a stream of its own beside the computation",
    ),
    "compute-bound": (
        "Make the kernels cheaper",
        "lower precision (bf16, TF32), fused kernels (torch.compile, scaled_dot_product_attention), better shapes",
    ),
    "launch/short-kernel-bound": (
        "Launch fewer, longer kernels",
        "torch.compile or CUDA graphs, fused optimizers (fused=True), and larger batches",
    ),
    "idle": (
        "Find out what the device waits for",
        "look at the longest gaps in the timeline: events between streams, or launches that were not recorded",
    ),
    "cpu": (
        "See the top operators",
        "fewer and larger operators, more threads (torch.set_num_threads), or profile on a device",
    ),
    "nothing ran": (
        "Capture some work",
        "call the model inside the profiler's active steps, with activities=[CPU, CUDA]",
    ),
}


def general_advice(bound: Bound, stake: int) -> tuple[Advice, ...]:
    """The one advice that always fits this bound; `stake` is the time of the cost behind it, in ns."""
    title, text = _ADVICE[bound]
    return (Advice(title, text, stake if stake > 0 else None),)
