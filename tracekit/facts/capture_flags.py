"""What makes a profiler record what a trace lacks: a flag of torch.profiler, or of Nsight Systems for its exports.

The sources are PyTorch's documentation of `torch.profiler` and NVIDIA's Nsight Systems User Guide (options of
`nsys profile`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["FLAGS", "flag_for", "how_to_record"]

_SHAPES_UNDER_NSYS: Final = (
    "--pytorch=autograd-shapes-nvtx (or torch.autograd.profiler.emit_nvtx(record_shapes=True))"
)

FLAGS: Final[dict[str, tuple[str, str]]] = {
    "device": ("ProfilerActivity.CUDA", "nsys profile --trace=cuda"),
    "ops": ("ProfilerActivity.CPU", "--pytorch=autograd-nvtx (or torch.autograd.profiler.emit_nvtx())"),
    "launches": ("ProfilerActivity.CPU as well", "nsys profile --trace=cuda,nvtx"),
    "everything": (
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        "nsys profile --trace=cuda,nvtx",
    ),
    "steps": (
        "a call of prof.step() after each iteration",
        "an NVTX range around each iteration, such as train_step",
    ),
    "shapes": ("record_shapes=True", _SHAPES_UNDER_NSYS),
    "memory": ("profile_memory=True", "--cuda-memory-usage=true"),
    "stacks": ("with_stack=True", "--python-backtrace=cuda"),
    "modules": (
        "with_stack=True (or the ranges of tracekit.capture)",
        "the ranges of tracekit capture --nsys",
    ),
    "layers": (
        "`tracekit capture`, or with_stack=True, or record_function around the modules",
        "`tracekit capture --nsys`, or NVTX ranges (torch.cuda.nvtx.range) around the modules",
    ),
    "sync": (
        "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
        "nsys profile --trace=cuda",
    ),
    "collectives": (
        "a NCCL process group and record_shapes=True",
        "nsys profile --trace=cuda,nvtx (NCCL's own ranges)",
    ),
    "counters": ("profiler_metrics in experimental_config", "--gpu-metrics-devices=all"),
    "occupancy": ("CUDA; other profilers do not estimate it", "Nsight Compute"),
    "names": ("with_stack=True or record_function ranges", "--python-sampling=true or NVTX ranges"),
    "warm-up": (
        "torch.profiler.schedule(wait=1, warmup=3, active=3) with prof.step() after each iteration",
        "--capture-range=cudaProfilerApi with torch.cuda.profiler.start() after those steps",
    ),
    "less": (
        "with_stack=False, fewer active steps and some warm-up ones "
        "(torch.profiler.schedule(wait=1, warmup=3, active=3))",
        "--sample=none, --cpuctxsw=none, no backtraces, fewer --trace sources, and a short --capture-range",
    ),
}
"""What is recorded → what records it with torch.profiler, and with Nsight Systems. Most keys are those of
`Meta.captured`; `everything` is host and device, `names` are those of Python code, `warm-up` leaves the first steps
out, `less` lowers what recording costs.
"""


def flag_for(what: str, format_: str) -> str:
    """The flag, or what else is to be done, for a trace of this format (`Meta.format`).

    >>> flag_for("memory", "kineto"), flag_for("memory", "nsys")
    ('profile_memory=True', '--cuda-memory-usage=true')
    """
    torch, nsys = FLAGS[what]
    return nsys if format_ == "nsys" else torch


def how_to_record(what: str, format_: str) -> str:
    """The same as a sentence without an end.

    >>> how_to_record("shapes", "kineto")
    'profile with record_shapes=True'
    """
    return f"{'record' if format_ == 'nsys' else 'profile'} with {flag_for(what, format_)}"
