"""Names of NVIDIA's hardware metrics, as CUPTI (through Kineto) and Nsight Compute write them.

Sources: the metric tables of NVIDIA's Nsight Compute CLI manual ("Nvprof Transition Guide": flop_count_*, dram_*_bytes,
achieved_occupancy) and Kernel Profiling Guide (docs.nvidia.com/nsight-compute); for tensor cores the metrics that NVIDIA
names for their FLOPs (forums.developer.nvidia.com/t/285256); HTA's page on CUPTI counters for those of Kineto.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BYTES",
    "BYTES_PER_SECOND",
    "COUNTER_RANGE_CATEGORY",
    "DURATION",
    "DURATIONS",
    "FLOPS_OF",
    "FLOP_INSTRUCTION",
    "FLOP_KINDS",
    "KINETO_METRICS",
    "L1_BYTES",
    "L2_BYTES",
    "OCCUPANCY",
    "READ_BYTES",
    "REGISTERS",
    "TENSOR_FLOPS",
    "TENSOR_INSTRUCTION",
    "WORK",
    "WRITTEN_BYTES",
]

FLOP_INSTRUCTION: Final = r"^sm(?:sp)?__sass_thread_inst_executed_op_([dfh])(add|mul|fma)_pred_on\.sum$"
"""Instructions of threads in the ordinary units: fp64, fp32, fp16. A fused multiply-add is two operations."""
FLOP_KINDS: Final = 9
TENSOR_INSTRUCTION: Final = r"(inst_executed_pipe_tensor|ops_path_tensor|inst_executed_pipe_hmma).*\.sum$"
"""Above zero: the kernel computes on tensor cores, of which `FLOP_INSTRUCTION` counts nothing."""
TENSOR_FLOPS: Final = (
    r"^sm__ops_path_tensor_src_(bf16|tf32|fp\d+[^_]*)_dst_(bf16|tf32|fp\d+[^_]*)(_sparsity_(on|off))?\.sum$"
)
"""Operations on tensor cores by source and destination; a name with a sparsity is a part of the one without.

Products of integers have names of the same form, and are no floating-point operations.
"""

FLOPS_OF: Final = {
    ("fp64", "vector"): r"_op_d(add|mul|fma)_pred_on\.sum$",
    ("fp32", "vector"): r"_op_f(add|mul|fma)_pred_on\.sum$",
    ("fp16", "vector"): r"_op_h(add|mul|fma)_pred_on\.sum$",
    **{
        (name, "matrix"): rf"^sm__ops_path_tensor_src_{name}_dst_[a-z0-9]+\.sum$"
        for name in ("fp64", "tf32", "bf16", "fp16", "fp8")
    },
}
"""The counters of the FLOPs of each precision (of tensor cores, that of the factors) and unit."""

READ_BYTES: Final = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
WRITTEN_BYTES: Final = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
"""The first that is there counts; newer devices have the second name."""
BYTES: Final = "dram__bytes.sum"
BYTES_PER_SECOND: Final = "dram__bytes.sum.per_second"
L2_BYTES: Final = "lts__t_bytes.sum"
L1_BYTES: Final = "l1tex__t_bytes.sum"
"""What passes through the caches; of these, hierarchical rooflines are drawn."""
OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
DURATION: Final = "gpu__time_duration.sum"
DURATIONS: Final = (DURATION, "gpu__time_duration.avg", "gpu__time_duration.max")
"""Of one launch these are the same."""
REGISTERS: Final = "launch__registers_per_thread"

WORK: Final = "|".join(
    (
        FLOP_INSTRUCTION,
        TENSOR_INSTRUCTION,
        r"^dram__bytes(_op)?_(read|write)\.sum$",
        r"^dram__bytes\.sum(\.per_second)?$",
        r"^(lts|l1tex)__t_bytes\.sum$",
        r"^sm__warps_active\.avg\.pct_of_peak_sustained_active$",
    )
)
"""The metrics that tell work; the same launch measured twice gives about the same."""

KINETO_METRICS: Final = (
    "kineto__tensor_core_insts",
    "kineto__cuda_core_flops",
    READ_BYTES[0],
    WRITTEN_BYTES[0],
)
"""What a capture asks the PyTorch profiler for; the first two are names of Kineto's own."""

COUNTER_RANGE_CATEGORY: Final = "cuda_profiler_range"
"""Kineto's category of the events that hold hardware counters, each measured over one kernel."""
