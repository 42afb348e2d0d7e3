"""Traces of PyTorch's profiler (Kineto), and any other Chrome-format JSON.

The flags are those of PyTorch's documentation of `torch.profiler`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.limits import Limits
from tracekit.readers.format import Format, Progress
from tracekit.readers.kineto.vocabulary import FORMAT_NAME

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["KINETO"]


def _recognises(_path: Path) -> bool:
    return True  # the reader says what is wrong if the file is not a trace


def _read(path: Path, limits: Limits, progress: Progress | None = None) -> list[Trace]:
    from tracekit.readers.kineto.reader import read_kineto  # noqa: PLC0415

    return [read_kineto(path, limits, progress)]


KINETO: Final = Format(
    name=FORMAT_NAME,
    title="PyTorch's profiler",
    files=".json, .json.gz",
    recognises=_recognises,
    read=_read,
    verb="profile",
    of_pytorch=True,
    is_chrome=True,
    flags={
        "device": "ProfilerActivity.CUDA",
        "kernels": "ProfilerActivity.CUDA",
        "ops": "ProfilerActivity.CPU",
        "launches": "ProfilerActivity.CPU and ProfilerActivity.CUDA",
        "calls": "ProfilerActivity.CUDA",
        "everything": "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        "steps": "a schedule (torch.profiler.schedule) and a call of prof.step() after each iteration",  # one alone marks no steps
        "shapes": "record_shapes=True",
        "memory": "profile_memory=True",
        "stacks": "with_stack=True",
        "modules": "with_stack=True (or tracekit run)",
        "layers": "`tracekit run`, or with_stack=True, or record_function around the modules",
        "ranges": "ProfilerActivity.CPU, and torch.profiler.record_function in the program",
        "start_end_ranges": "Nsight Systems, since PyTorch's profiler has none",
        "os_calls": "Nsight Systems, since PyTorch's profiler has none",
        "sync": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
        "collectives": "a NCCL process group and record_shapes=True",
        "counters": "profiler_metrics in experimental_config",
        "occupancy": "CUDA; other profilers do not estimate it",
        "names": "with_stack=True or record_function ranges",
        "warm-up": "torch.profiler.schedule(wait=1, warmup=3, active=3) and a call of prof.step() after each iteration",
        "less": (
            "with_stack=False, fewer active steps and some warm-up ones "
            "(torch.profiler.schedule(wait=1, warmup=3, active=3))"
        ),
    },
    flags_on_amd={
        "sync": "CUDA; the profiler does not record it on ROCm",
        "collectives": "an RCCL process group (nccl in PyTorch) and record_shapes=True",
        "counters": "CUDA; on ROCm, ROCm Compute Profiler reads them",
    },
)
