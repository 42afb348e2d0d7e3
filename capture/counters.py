"""Hardware counters of each kernel of a step, if the device and this torch's profiler provide them.

The names are those of Kineto and CUPTI, as in HTA's documentation of its CUPTI counter analysis:
https://hta.readthedocs.io/en/latest/source/features/cupti_counter_analysis.html. The profiler reports no error if it is
not permitted to count, or was built without counters; it then writes no range.

Kineto compiles its counters only for CUDA up to 12.6 (https://github.com/pytorch/kineto/pull/1437), and torch dropped them in
2026 (https://github.com/pytorch/pytorch/pull/187204). No build has written one for us so far.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity

from tracekit.capture.device import synchronize
from tracekit.capture.nsys import under_nsys
from tracekit.capture.profiler import OneCycle
from tracekit.facts.gpu_metrics import COUNTER_RANGE_CATEGORY, KINETO_METRICS

__all__ = ["METRICS", "has_counters", "measure", "profile_step"]

METRICS: Final = KINETO_METRICS
_LAST_CUDA: Final = (12, 6)
_LONGEST_TEXT: Final = 150


def has_counters(device: torch.device) -> bool:
    """True for a device with hardware counters: an NVIDIA GPU, whose counters Kineto reads through CUPTI."""
    return device.type == "cuda" and torch.version.cuda is not None


def measure(step: Callable[[], object], device: torch.device, target: Path, *, ranks: int) -> str | None:
    """Run `step` once and count `METRICS` for each kernel, and write the profiler's trace to `target`.

    Returns None, or one line that says why there are no counters: a capture goes on if the profiler fails.
    """
    if ranks > 1:
        return "a kernel that waits for another rank cannot be measured alone"
    if under_nsys():
        return "nsys is using the counters"
    built_for = torch.version.cuda
    if built_for is not None and tuple(map(int, built_for.split("."))) > _LAST_CUDA:
        return f"torch's profiler has none in builds for CUDA above 12.6, and this one is for {built_for}"
    try:
        profile_step(step, device, target)
    except Exception as error:  # noqa: BLE001 - an experimental part of the profiler; the manifest says what it said
        return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_TEXT]
    if not _holds_ranges(target):
        return "the profiler wrote none; this user may not read them, or this build of torch does not support them"
    return None


def profile_step(step: Callable[[], object], device: torch.device, target: Path) -> None:
    """Run `step`, count `METRICS` and write the profiler's trace; raises the errors of the profiler."""
    config = torch._C._profiler._ExperimentalConfig(
        profiler_metrics=list(METRICS), profiler_measure_per_kernel=True
    )
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with OneCycle(activities=activities, experimental_config=config) as profiler:
        step()
        synchronize(device)
    profiler.export_chrome_trace(str(target))


def _holds_ranges(trace: Path) -> bool:
    with trace.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(f'"{COUNTER_RANGE_CATEGORY}"'.encode()) >= 0
