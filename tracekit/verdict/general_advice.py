"""The words of general advice, for every bound, and for code of the host that runs nothing."""

from __future__ import annotations

from typing import Final

from tracekit.analyses.rules.idle_time import Blocked
from tracekit.analyses.rules.rule import Advice as Words
from tracekit.findings import Bound

__all__ = ["BLOCKED", "GENERAL"]

GENERAL: Final[dict[Bound, tuple[str, Words]]] = {
    "host-bound": (
        "Keep the device busy",
        Words(
            "The idle tables show what the host does during the gaps. Do that ahead of time, in another thread or process, or on the "
            "device.\n"
            "[waits] Remove synchronisations such as .item() from the loop.\n"
            "[!compiled !graphs] If the host is busy with many short launches, use torch.compile or CUDA graphs.",
            plain=(
                "Let the host work while the device computes: launch the next work first, or use another thread.\n"
                "[waits] Remove waits for the device.\n"
                "[!graphs] If the host is busy with many short launches, replay them as a CUDA graph."
            ),
            flags=("--compile", "--batch"),
        ),
    ),
    "input-bound": (
        "Load data faster",
        Words(
            "Use more DataLoader workers, and decode ahead of time.\n"
            "[pageable] Set pin_memory=True and copy with non_blocking=True.",
            plain="Load and decode in other threads, ahead of time and into pinned memory, and copy asynchronously.",
            flags=("--workers", "--pin-memory"),
        ),
    ),
    "communication-bound": (
        "Hide or shrink communication",
        Words(
            "[training !ddp !fsdp] Overlap it with the backward pass, as DistributedDataParallel does.\n"
            "[training] Reduce gradients in a lower precision.\n"
            "[!training] Overlap it with computation that does not need its result.\n"
            "[!compared] Compare the ranks, since one may be slower than the others.",
            plain=(
                "Start it earlier, on a separate stream alongside the computation, and send fewer bytes. Compare the ranks, "
                "since one may be slower than the others."
            ),
        ),
    ),
    "memory-copy-bound": (
        "Copy less",
        Words(
            "Keep data on the device, and copy on a separate stream alongside the computation.\n"
            "[pageable] Pin the host memory.",
            flags=("--pin-memory",),
        ),
    ),
    "launch/short-kernel-bound": (
        "Launch fewer, longer kernels",
        Words(
            "[!compiled] torch.compile fuses kernels.\n"
            "[!graphs] CUDA graphs start many kernels at once.\n"
            "[graphs] Put more of the kernels into the graphs.\n"
            "[optimizer_launches] Create the optimizer with fused=True.\n"
            "[!serving] A larger batch makes each kernel longer.",
            plain="Fuse kernels, or give each kernel more work.\n[!graphs] Replay repeated work as a CUDA graph.",
            flags=("--compile", "--batch"),
        ),
    ),
    "idle": (
        "Find out what the device waits for",
        Words(
            "Look at the longest gaps in the timeline.\n"
            "[streams] Events between streams and unrecorded launches are possible causes."
        ),
    ),
    "incomplete": (
        "Record again",
        Words("Record again with fewer steps, so that the profiler's buffers hold all of them."),
    ),
    "too little": (
        "Record more of the program",
        Words("Record more steps, or for longer; a few activities may not be typical of it."),
    ),
    "cpu": (
        "Look at the largest operators",
        Words(
            "[small_operators] Use fewer and larger operators.\n"
            "Use more threads (torch.set_num_threads), or a device.",
            plain="[small_operators] Use fewer and larger operations.\nUse more threads, or a device.",
            flags=("--threads",),
        ),
    ),
    "counters": (
        "Measure times in a second run",
        Words("Profile without {counters} to measure times, and use only the counters from this profile."),
    ),
    "ranges only": (
        "Record operators and kernels",
        Words(
            "tracekit capture --levels M,MLG records operators and kernels as well. If you run the profiler yourself, use "
            "{everything}.",
            plain="Ranges alone show no cause. Record with {everything}.",
        ),
    ),
    "nothing ran": (
        "Capture some work",
        Words(
            "Call the model while the profiler records, with {everything}. If there is a schedule, export the trace in on_trace_ready: "
            "when a cycle is over, the next one begins, and its trace is empty at first.",
            plain="Let the program work while the profiler records, with {everything}.",
        ),
    ),
}
"""For every bound a title and general advice."""

BLOCKED: Final[dict[Blocked, tuple[str, Words]]] = {
    "waits": (
        "The host waits for something else",
        Words(
            "The thread that launches work is blocked there, so it has nothing to do.\n"
            "[!training] If it waits for requests, serve more of them.\n"
            "If it waits for another thread or process, make that faster, or let it work further ahead."
        ),
    ),
    "sleeps": (
        "The host sleeps",
        Words(
            "The thread that launches work does nothing there: remove the pause, or wait on a queue, an event or a condition "
            "instead, which returns as soon as there is work."
        ),
    ),
}
"""For code of the host that runs nothing a title and advice."""
