"""What to advise a program that shows no PyTorch, in place of advice that names PyTorch's flags and functions.

Keys are ids of findings and bounds of the verdict; what is not here speaks of no framework, or only fires on PyTorch's
operators. In braces stand flags of `tracekit.readers.RECORDABLE`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BOUNDS", "FINDINGS"]

FINDINGS: Final = {
    "low_utilisation": (
        "Find what it waits for in the idle and launches tables: give the device more work at a time, prepare and copy data "
        "asynchronously, and replay what repeats as a CUDA graph where the host is the slower side."
    ),
    "exposed_communication": (
        "Start communication earlier, on a stream of its own, and wait for it only where the result is used; send fewer "
        "bytes. Compare the ranks first: part of it may be waiting for a slower rank."
    ),
    "data_loading": "Load and prepare data in other threads, ahead of time, into pinned memory.",
    "step_variability": (
        "Compare a slow step with a median one (--step): input and output, logging, allocation, other processes on the "
        "machine and inputs of changing size are the usual causes."
    ),
    "low_part_of_step": (
        "See what the host does there (tracekit idle --causes, tracekit view --html): waiting for data at the beginning, values "
        "copied back, output or logging at the end are the usual reasons."
    ),
    "host_bound_launches": (
        "Launch less: fuse small kernels, replay what repeats as a CUDA graph, give each launch more work, and remove "
        "synchronising calls from the loop."
    ),
    "compilation_in_steps": (
        "Load and compile before recording: run some iterations first, and build kernels and graphs ahead of the loop."
    ),
    "short_operators": "Do more in each call: batch or vectorise the loop, and fuse elementwise operations.",
    "no_tensor_cores": (
        "Allow TF32 or a 16-bit type in the library that computes this (cublasSetMathMode, cudnnSetConvolutionMathType, or the "
        "compute type of the call)."
    ),
    "layout_conversions": "Keep the data in the layout that the library computes in (NHWC for tensor cores).",
    "other_too_large": "Look these up in the kernel table; a range (NVTX) with a telling name around their launch groups them.",
    "short_kernels": (
        "Fuse them, give each more work, or replay what repeats as a CUDA graph, which launches all of its kernels at once."
    ),
    "blocking_synchronisation": (
        "Copy with asynchronous calls from and into pinned memory, and wait once, where the result is used; time with CUDA "
        "events."
    ),
    "allocation_calls": (
        "Allocate before the loop and reuse the memory, or take it from a pool (cudaMallocAsync, or the pool of the library)."
    ),
    "pageable_copies": (
        "Allocate the host's side with cudaMallocHost (or cudaHostRegister; in Python the library's pinned memory) and copy with "
        "asynchronous calls on a stream of their own, so that copies run at full speed and beside computation."
    ),
    "small_copies": "Create data on the device, and pack small inputs into one buffer that is copied once.",
    "memory_near_limit": "Free or reuse buffers earlier, use smaller types, or work on smaller pieces at a time.",
}
"""Finding → advice."""

BOUNDS: Final = {
    "host-bound": (
        "let the host work while the device computes (launch what comes next first, or use another thread) and remove waits "
        "for the device; where many short launches keep the host, replay them as a CUDA graph"
    ),
    "input-bound": "load and decode in other threads, ahead of time, into pinned memory, and copy asynchronously",
    "communication-bound": (
        "start it earlier, on a stream of its own beside the computation, and send fewer bytes; compare the ranks for a straggler"
    ),
    "compute-bound": "lower precision where the result allows it (TF32, 16-bit types), fused kernels, better shapes",
    "launch/short-kernel-bound": "fuse kernels, give each more work, or replay what repeats as a CUDA graph",
    "ranges only": "ranges alone tell no cause; record with {everything}",
    "nothing ran": "let the program work while the profiler records, with {everything}",
    "cpu": "fewer and larger operations, more threads, or a device",
}
"""Bound of the verdict → advice, below the title that it has anyway."""
