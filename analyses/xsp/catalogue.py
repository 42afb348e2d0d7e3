"""The 15 analyses of XSP by its numbers: what each asks, which levels it needs, and its columns.

After Li, Dakkak, Xiong, Wei, Xu and Hwu, "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs"
(IPDPS 2020). `overhead` is no analysis of the paper's list: it shows what the ladder of levels is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

__all__ = ["CATALOGUE", "COLUMNS", "MISSING", "Entry", "empty_table"]

_T, _N, _F, _B = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()

COLUMNS: Final[dict[str, tuple[pl.DataType, str]]] = {
    "index": (_N, "place in the order of execution, from 1"),
    "run": (_T, "name of the run"),
    "workload": (_T, "what was run"),
    "device_name": (_T, "where it ran"),
    "precision": (_T, "precision whose peak holds: of the operator, else of the run"),
    "batch": (_N, "samples of a batch of one rank"),
    "samples_per_step": (_N, "samples of a step over all ranks"),
    "parameters": (_N, "parameters; of a layer its own"),
    "latency_ns": (_F, "of the model a step at level M, of a layer its calls in a step at level ML"),
    "throughput_per_s": (_F, "samples a second: samples of a step over its latency"),
    "optimal": (_B, "whether this is the optimal batch"),
    "layer": (_T, "path of the layer; what is in no layer stands under a name in angle brackets"),
    "type": (_T, "class of the layer; null where the profile does not tell"),
    "leaf": (_B, "no other layer is called in it"),
    "calls": (_F, "calls a step"),
    "self_ns": (_F, "own time: the latency without the layers inside"),
    "input_shapes": (_T, "of the layer's first call, JSON"),
    "output_shapes": (_T, "of the layer's first call, JSON"),
    "allocated_bytes": (_F, "bytes allocated a step, in all phases, without the layers inside"),
    "forward_bytes": (_F, "the part of it in calls of the layer itself"),
    "layers": (_N, "layers of the type that were called"),
    "leaves": (_N, "those in which no other layer is called"),
    "share": (_F, "of the sum over all rows"),
    "name": (_T, "kernel, copy or fill; operator where no device was captured"),
    "kind": (_T, "kernel, memcpy, memset, graph, or op"),
    "phase": (_T, "phase of the step in which it was launched"),
    "operator": (_T, "innermost operator around the launch"),
    "steps": (_N, "steps in which it was seen"),
    "grid": (_T, "thread blocks"),
    "block": (_T, "threads of a block"),
    "duration_ns": (_F, "device time of the call at level MLG"),
    "kernels": (_F, "kernels, copies and fills a step"),
    "sum_ns": (_F, "their durations at level MLG a step, summed"),
    "gpu_ns": (_F, "the time a step in which at least one of them runs (union)"),
    "non_gpu_ns": (_F, "self_ns − gpu_ns; null where the device worked on after the call"),
    "gpu_share": (_F, "gpu_ns over the latency, of a layer over self_ns; of a model null without a device"),
    "flops": (_F, "floating-point operations"),
    "flops_source": (_T, "counter (ncu), counter, analytic (from shapes), or several"),
    "counted_flops": (_N, "of a step, counted by torch's counter at level metrics"),
    "dram_read_bytes": (_F, "bytes read from device memory (counter)"),
    "dram_write_bytes": (_F, "bytes written to device memory (counter)"),
    "dram_bytes": (_F, "bytes read and written"),
    "dram_source": (
        _T,
        "counter (ncu), counter, derived (from their rate and the time that ncu measured), or several",
    ),
    "occupancy": (_F, "achieved occupancy, 0 to 1, weighted by duration"),
    "occupancy_source": (_T, "counter (ncu), counter, estimate (the profiler's), or several"),
    "intensity": (_F, "arithmetic intensity: flops over bytes read and written"),
    "tflops": (_F, "10¹² flops a second of gpu_ns or duration_ns"),
    "attainable_tflops": (_F, "roofline at this intensity: min(peak, intensity × bandwidth)"),
    "memory_bound": (_B, "the intensity is below peak / bandwidth"),
    "level": (_T, "level of the run"),
    "quantity": (_T, "what was measured"),
    "added_ns": (_F, "what this level adds to the same quantity at the level above"),
    "ratio": (_F, "over the quantity at the level at which it counts"),
}
"""Every column of the tables: its type and what it means. Means are 20 % trimmed means over the steps."""

_TRAFFIC = ("dram_read_bytes", "dram_write_bytes", "dram_bytes", "dram_source")
_WORK = ("flops", "flops_source", *_TRAFFIC, "occupancy", "occupancy_source")
_BOUND = ("precision", "intensity", "tflops", "attainable_tflops", "memory_bound")
_GROUP = ("kernels", "sum_ns", "gpu_ns")

MISSING: Final = {
    "M": "the latency of the model needs level M: tracekit capture … --levels M",
    "ML": "the latency of layers needs level ML: tracekit capture … --levels ML",
    "MLG": "kernels and their times need level MLG: tracekit capture … --levels MLG",
    "layers": ("the trace has no layers: record with {layers}"),
    "memory": "no allocations: record with {memory}",
    "bytes": (
        "bytes to and from device memory need hardware counters: a trace with the CUPTI metrics dram__bytes_read.sum and"
        " dram__bytes_write.sum, as --metrics, or a table of Nsight Compute, as --ncu"
    ),
    "shapes": "FLOPs need recorded shapes ({shapes}) or hardware counters",
}
"""What a table lacks, and how it is recorded; in braces keys of `tracekit.readers.RECORDABLE`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One analysis: its `key` (A1 … A15), `title`, the `question`, the `levels` it needs, its columns, and those of
    them that a narrow page shows.
    """

    key: str
    title: str
    question: str
    levels: tuple[str, ...]
    columns: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of the columns."""
        return {name: COLUMNS[name][0] for name in self.columns}


_LAYER = ("index", "layer", "type")
_ENTRIES: Final = (
    Entry(
        "A1",
        "Model information",
        "How fast is the model, and at which batch?",
        ("M",),
        (
            *("run", "workload", "device_name", "precision", "batch", "samples_per_step", "parameters"),
            *("latency_ns", "throughput_per_s", "optimal"),
        ),
        ("run", "batch", "latency_ns", "throughput_per_s", "optimal"),
    ),
    Entry(
        "A2",
        "Layer information",
        "Which layers does the model run?",
        ("ML", "MLG"),
        (
            *(*_LAYER, "leaf", "calls", "latency_ns", "self_ns", "allocated_bytes", "forward_bytes"),
            *("parameters", "input_shapes", "output_shapes"),
        ),
        (*_LAYER, "output_shapes", "latency_ns", "self_ns", "allocated_bytes"),
    ),
    Entry(
        "A3",
        "Layer latency",
        "How long does each layer take, in the order of execution?",
        ("ML",),
        (*_LAYER, "leaf", "latency_ns", "self_ns", "share"),
        (*_LAYER, "latency_ns", "self_ns", "share"),
    ),
    Entry(
        "A4",
        "Layer memory allocation",
        "How much memory does each layer allocate, in the order of execution?",
        ("MLG",),
        (*_LAYER, "allocated_bytes", "forward_bytes", "share"),
        (*_LAYER, "allocated_bytes", "forward_bytes", "share"),
    ),
    Entry(
        "A5",
        "Layer type distribution",
        "Of which types are the layers?",
        ("ML",),
        ("type", "layers", "leaves", "calls", "share"),
        ("type", "layers", "leaves", "calls", "share"),
    ),
    Entry(
        "A6",
        "Layer latency by type",
        "Which types of layers take the time?",
        ("ML",),
        ("type", "layers", "self_ns", "share"),
        ("type", "layers", "self_ns", "share"),
    ),
    Entry(
        "A7",
        "Layer memory allocation by type",
        "Which types of layers allocate the memory?",
        ("MLG",),
        ("type", "layers", "allocated_bytes", "forward_bytes", "share"),
        ("type", "layers", "allocated_bytes", "forward_bytes", "share"),
    ),
    Entry(
        "A8",
        "GPU kernel information",
        "Which kernels run, call by call?",
        ("MLG",),
        (
            *("index", "name", "kind", "layer", "phase", "operator", "steps", "grid", "block", "duration_ns"),
            *(*_WORK, *_BOUND),
        ),
        (
            "index",
            "name",
            "layer",
            "duration_ns",
            "flops",
            "dram_read_bytes",
            "dram_write_bytes",
            "occupancy",
        ),
    ),
    Entry(
        "A9",
        "GPU kernel roofline",
        "Is each kernel bound by memory or by arithmetic?",
        ("MLG", "metrics"),
        (
            "index",
            "name",
            "layer",
            "duration_ns",
            "flops",
            "flops_source",
            "dram_bytes",
            "dram_source",
            *_BOUND,
        ),
        ("index", "name", "layer", "intensity", "tflops", "attainable_tflops", "memory_bound"),
    ),
    Entry(
        "A10",
        "GPU kernel information by name",
        "Which kernels take the time?",
        ("MLG",),
        ("name", "kind", *_GROUP, "share", *_WORK, *_BOUND),
        ("name", "kernels", "sum_ns", "share", "flops", "occupancy", "memory_bound"),
    ),
    Entry(
        "A11",
        "GPU kernel information by layer",
        "Which layers take the device's time?",
        ("MLG",),
        (*_LAYER, *_GROUP, "share", *_WORK, *_BOUND),
        (*_LAYER, "kernels", "gpu_ns", "share", "flops", "occupancy", "memory_bound"),
    ),
    Entry(
        "A12",
        "GPU metrics by layer",
        "How much arithmetic and memory traffic does each layer cause?",
        ("MLG", "metrics"),
        (*_LAYER, "gpu_ns", *_WORK),
        (*_LAYER, "flops", "flops_source", "dram_read_bytes", "dram_write_bytes", "occupancy"),
    ),
    Entry(
        "A13",
        "GPU and non-GPU latency of layers",
        "What of each layer's time does the device work?",
        ("ML", "MLG"),
        (*_LAYER, "self_ns", "gpu_ns", "non_gpu_ns", "gpu_share"),
        (*_LAYER, "self_ns", "gpu_ns", "non_gpu_ns", "gpu_share"),
    ),
    Entry(
        "A14",
        "Layer roofline",
        "Is each layer bound by memory or by arithmetic?",
        ("MLG", "metrics"),
        (*_LAYER, "gpu_ns", "flops", "flops_source", "dram_bytes", "dram_source", *_BOUND),
        (*_LAYER, "intensity", "tflops", "attainable_tflops", "memory_bound"),
    ),
    Entry(
        "A15",
        "GPU kernel information by model",
        "What do the kernels of the model do, and what bounds it?",
        ("M", "MLG", "metrics"),
        ("run", "batch", "latency_ns", *_GROUP, "gpu_share", *_WORK, "counted_flops", *_BOUND),
        ("run", "batch", "latency_ns", "gpu_ns", "gpu_share", "flops", "occupancy", "memory_bound"),
    ),
    Entry(
        "overhead",
        "What each level adds",
        "How much does each level of recording slow down what lies above it?",
        ("M",),
        ("quantity", "level", "latency_ns", "added_ns", "ratio"),
        ("quantity", "level", "latency_ns", "added_ns", "ratio"),
    ),
)
CATALOGUE: Final[dict[str, Entry]] = {entry.key: entry for entry in _ENTRIES}
"""The analyses by key, in order."""


def empty_table(key: str) -> pl.DataFrame:
    """The table of an analysis without rows."""
    return pl.DataFrame(schema=CATALOGUE[key].schema)
